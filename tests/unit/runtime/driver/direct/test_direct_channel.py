"""Who hands over what to whom, and where."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, RoundRobin, generate, stateless
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port
from airflow_logio.runtime.driver.direct import direct_channel
from airflow_logio.runtime.driver.direct.direct_channel import DirectChannel, host_towards, senders_of
from airflow_logio.runtime.systems.contents import digest_of
from airflow_logio.store.memory.store import MemoryLogStore
from airflow_logio.store.records import GroupRef
from tests.support.bundle.replayed import pipeline as chain

TABLE = pa.table({"id": [1, 2, 3]})
SLOTS = 2
"""Of a group with at most two replicas."""
SQLITE = "sqlite:////tmp/log.db"


@stateless
def same(rows: pa.Table) -> pa.Table:
    return rows


@generate
def all_of(rows: pa.Table) -> pa.Table:
    return rows


def replicated() -> Pipeline:
    made = Pipeline("many", params={"transactions": str})
    source = made.source("source", ParquetSource("{transactions}", records_per_event=1))
    one = made.operator("one", same, source, replay=True)
    two = made.operator("two", same, one, replay=True)
    made.group("work", one, two)
    made.replicate("work", partition=RoundRobin(), max=2)
    last = made.operator("last", all_of, two, window=EveryEvents(2))
    made.sink("end", Count(), last)
    made.lineage("source.out", "two.out")
    return made.freeze()


def channel(pipeline: Pipeline, group: str, log: MemoryLogStore, slots: list[Slot] | None = None) -> DirectChannel:
    return DirectChannel(pipeline, GroupRef(1, group, 1), log.addresses, lambda _: slots or [])


def event(operator: str) -> Event:
    return Event(Port(operator, "out"), 1, Kind.DATA, 3, None, b"", made_of=MadeOf("in1", 0, digest_of(TABLE), 24))


@pytest.fixture
def log() -> MemoryLogStore:
    return MemoryLogStore()


@pytest.fixture
def two(log: MemoryLogStore) -> Iterator[tuple[DirectChannel, DirectChannel]]:
    """The channels of `doubled` and of `items`, which gets its events."""
    made = channel(chain, "doubled", log), channel(chain, "items", log)
    for one in made:
        one.start(SQLITE)
    yield made
    for one in made:
        one.stop()


def test_events_that_go_to_other_groups_are_handed_over() -> None:
    assert senders_of(chain, "doubled") == {Port("doubled", "out"): 1}
    assert senders_of(chain, "more") == {Port("more", "out"): 2}
    assert senders_of(chain, "ends") == {}, "nobody replays it"
    many = replicated()
    assert senders_of(many, "work.1") == {Port(f"two[{slot}]", "out"): 1 for slot in range(SLOTS)}, "`one` stays inside"


def test_a_group_without_such_events_listens_nowhere(log: MemoryLogStore) -> None:
    silent = channel(chain, "ends", log)
    silent.start(SQLITE)
    assert log.addresses.of_group(1, "ends") is None
    silent.keep(Port("save", "out"), b"digest", TABLE)
    silent.stop()


def test_a_receiver_finds_the_driver_by_the_log(two: tuple[DirectChannel, DirectChannel], log: MemoryLogStore) -> None:
    sender, receiver = two
    address = log.addresses.of_group(1, "doubled")
    assert address is not None and address.location.startswith("grpc+tls://127.0.0.1:")
    offers = receiver.offers()
    assert offers.taken(event("doubled")) is None
    sender.keep(Port("doubled", "out"), digest_of(TABLE), TABLE)
    sender.keep(Port("doubled", "other"), b"z" * 16, TABLE)
    assert offers.taken(event("doubled")) == TABLE
    assert sender._kept.body(b"z" * 16) is None, "no other group gets it"
    assert sender.offers().taken(event("doubled")) is None, "it does not ask itself"


def test_the_owner_of_a_slot_is_asked(log: MemoryLogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    many, home = replicated(), "last"
    slots = [Slot(0, None), Slot(1, "work.2")]
    receiver = channel(many, home, log, slots)
    assert [receiver._application_of(f"two[{slot}]") for slot in range(SLOTS)] == [None, "work.2"]
    assert receiver._peer_of("two[0]") is None
    slots[1] = Slot(1, "work.1")
    assert receiver._application_of("two[1]") == "work.2", "for some seconds it is not asked again"
    monkeypatch.setattr(direct_channel, "OWNERS_KNOWN_SECONDS", 0.0)
    assert receiver._application_of("two[1]") == "work.1"

    def unavailable(_: str) -> list[Slot]:
        raise LogUnavailable("it is restarted")

    receiver._slots_of = unavailable
    assert receiver._application_of("two[1]") == "work.1", "who it was is the best guess"


def test_a_driver_that_cannot_listen_says_so_and_works(
    log: MemoryLogStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(direct_channel, "host_towards", lambda _: "203.0.113.1")  # of no interface
    sender = channel(chain, "doubled", log)
    sender.start(SQLITE)
    sender.keep(Port("doubled", "out"), digest_of(TABLE), TABLE)
    sender.stop()
    assert "group doubled hands over no records directly" in caplog.text
    assert log.addresses.of_group(1, "doubled") is None


@pytest.mark.parametrize(
    "url",
    [
        SQLITE,
        "postgresql:///log?host=/run/postgresql",
        "postgresql://anna:geheim@localhost/log",
        "postgresql://127.0.0.1:5433/log",
        "postgresql:///log?host=127.0.0.1,127.0.0.2",
    ],
)
def test_who_reaches_the_log_on_this_host_is_on_this_host(url: str) -> None:
    assert host_towards(url) in ("127.0.0.1", "::1")


def test_towards_another_host_the_address_is_the_one_that_leads_there() -> None:
    try:
        found = host_towards("postgresql://192.0.2.1/log")
    except OSError:
        pytest.skip("this host has no way to others")
    assert found == socket.inet_ntoa(socket.inet_aton(found)) and not found.startswith("127.")


def test_a_host_that_nobody_knows_is_an_error_that_start_catches(
    log: MemoryLogStore, caplog: pytest.LogCaptureFixture
) -> None:
    channel(chain, "doubled", log).start("postgresql://no-such-host.invalid/log")
    assert "hands over no records directly" in caplog.text
