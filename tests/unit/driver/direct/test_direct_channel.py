"""Who hands over what to whom, and where."""

from __future__ import annotations

import gc
import socket
import time
import weakref
from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, RoundRobin, generate, stateless
from airflow_logio.driver.direct import direct_channel
from airflow_logio.driver.direct.direct_channel import Announcement, DirectChannel, host_towards, senders_of
from airflow_logio.errors import LogUnavailable, NotPermitted
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port
from airflow_logio.store.port.unfenced_port import LINGER_SECONDS, DirectAddress
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.systems.arrow import digest_of
from airflow_logio.testing.memory_log.store import MemoryAddressBook, MemoryLogStore
from airflow_logio.testing.memory_log.tables import GroupKey
from tests.support.bundle.replayed import pipeline as chain
from tests.support.own_calls import as_seen
from tests.support.waiting import eventually

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


def channel(pipeline: Pipeline, group: str, log: MemoryLogStore) -> DirectChannel:
    return DirectChannel(pipeline, GroupRef(1, group, 1), log)


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
    assert senders_of(chain, "ends") == {}, "no driver replays it"
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
    slots = [Slot(0, None), Slot(1, "work.2")]
    monkeypatch.setattr(log, "slots", lambda run_id, group: slots)
    receiver = channel(replicated(), "last", log)
    assert [receiver._application_of(f"two[{slot}]") for slot in range(SLOTS)] == [None, "work.2"]
    assert receiver._peer_of("two[0]") is None
    slots[1] = Slot(1, "work.1")
    assert receiver._application_of("two[1]") == "work.2", "for some seconds it is not asked again"
    monkeypatch.setattr(direct_channel, "OWNERS_KNOWN_SECONDS", 0.0)
    assert receiver._application_of("two[1]") == "work.1"

    def unavailable(run_id: int, group: str) -> list[Slot]:
        raise LogUnavailable("it is restarted")

    monkeypatch.setattr(log, "slots", unavailable)
    assert receiver._application_of("two[1]") == "work.1", "who it was is the best guess"


# --- when a group has finished ----------------------------------------------------------------------------------------


class Lag:
    """`doubled` has finished; what becomes of `items` is in `states`, one look after the other. Looks take a second."""

    def __init__(self, log: MemoryLogStore, patch: pytest.MonkeyPatch) -> None:
        self.states: list[GroupState] = []
        self.looks = 0
        self.sender = channel(chain, "doubled", log)
        self.sender.start(SQLITE)
        patch.setattr(log, "groups", self._groups)
        patch.setattr(direct_channel, "time", as_seen(time, monotonic=lambda: float(self.looks)))
        patch.setattr(self.sender._kept, "wait_until_asked", lambda _: None)

    def _groups(self, run_id: int) -> list[SimpleNamespace]:
        self.looks += 1
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        found = {"doubled": GroupState.FINISHED, "items": state, "ends": GroupState.RUNNING}
        return [SimpleNamespace(group=group, state=of_group) for group, of_group in found.items()]

    def keep(self) -> None:
        self.sender.keep(Port("doubled", "out"), digest_of(TABLE), TABLE)

    def ends(self) -> None:
        self.sender.may_linger()
        self.sender.stop()


@pytest.fixture
def lag(log: MemoryLogStore, monkeypatch: pytest.MonkeyPatch) -> Lag:
    return Lag(log, monkeypatch)


def test_a_driver_stays_for_receivers_that_lag_until_these_have_ended(lag: Lag) -> None:
    lag.keep()
    lag.states = [GroupState.RUNNING] * 5 + [GroupState.FINISHED]
    lag.ends()
    assert lag.looks == 6


def test_it_does_not_stay_for_ever(lag: Lag) -> None:
    lag.keep()
    lag.states = [GroupState.RUNNING]
    lag.ends()
    assert lag.looks == LINGER_SECONDS


def test_it_does_not_stay_for_those_who_have_all(lag: Lag) -> None:
    lag.keep()
    lag.sender._kept.body(digest_of(TABLE))
    lag.states = [GroupState.RUNNING]
    lag.ends()
    assert lag.looks == 0


def test_one_whose_group_has_not_finished_does_not_stay(lag: Lag) -> None:
    lag.keep()
    lag.states = [GroupState.RUNNING]
    lag.sender.stop()
    assert lag.looks == 0


# --- where it listens -------------------------------------------------------------------------------------------------


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


def test_an_address_that_cannot_be_told_is_not_kept_open(
    log: MemoryLogStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(self: MemoryAddressBook, ref: GroupRef, address: DirectAddress) -> None:
        raise NotPermitted("permission denied for table logio_address")

    monkeypatch.setattr(MemoryAddressBook, "put", refused)
    sender = channel(chain, "doubled", log)
    sender.start(SQLITE)
    sender.keep(Port("doubled", "out"), digest_of(TABLE), TABLE)
    assert not sender._kept.are_wanted()
    sender.may_linger()
    sender.stop()
    assert "permission denied for table logio_address" in caplog.text


def test_bodies_of_all_epochs_are_counted_and_only_the_last_one_is_kept(
    two: tuple[DirectChannel, DirectChannel], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "airflow_logio")
    sender, receiver = two
    sender.keep(Port("doubled", "out"), digest_of(TABLE), TABLE)
    epochs = [receiver.offers() for _ in range(2)]
    assert receiver.offers().taken(event("doubled")) == TABLE
    sender.say()
    assert "came directly" not in caplog.text, "no one was to be asked"
    gone = weakref.ref(epochs.pop())
    del epochs
    gc.collect()
    assert gone() is None
    assert receiver.offers().taken(event("doubled")) == TABLE
    receiver.say()
    assert "2 events of replay operators came directly" in caplog.text


# --- an address in the log --------------------------------------------------------------------------------------------

REF = GroupRef(1, "doubled", 2)


def address(incarnation: int, location: str = "grpc+tls://here:1") -> DirectAddress:
    return DirectAddress(incarnation, location, "server", "client", "key", "token")


@pytest.fixture
def announced(log: MemoryLogStore, caplog: pytest.LogCaptureFixture) -> Iterator[Announcement]:
    caplog.set_level("INFO", "airflow_logio")
    made = Announcement(log.addresses, REF, address(2), seconds=0.01)
    yield made
    made.end()


def is_there(log: MemoryLogStore) -> bool:
    return log.addresses.of_group(1, "doubled") == address(2)


def test_an_address_is_told_when_the_log_is_back(
    log: MemoryLogStore, announced: Announcement, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unavailable(self: MemoryAddressBook, ref: GroupRef, address: DirectAddress) -> None:
        raise LogUnavailable("it is restarted")

    with monkeypatch.context() as outage:
        outage.setattr(MemoryAddressBook, "put", unavailable)
        announced.begin()
        assert "the address of group doubled is not in the log yet: it is restarted. It is tried again" in caplog.text
        assert "directly at" not in caplog.text
    eventually(lambda: is_there(log), what="it is told")
    eventually(lambda: "hands over records directly at grpc+tls://here:1" in caplog.text, what="that is said")


@pytest.mark.parametrize("instead", [None, address(1, "grpc+tls://there:1")], ids=["nothing", "an earlier one"])
def test_an_address_that_the_log_has_lost_is_told_again(
    log: MemoryLogStore, announced: Announcement, instead: DirectAddress | None, caplog: pytest.LogCaptureFixture
) -> None:
    announced.begin()
    assert is_there(log)
    found = log.tables.addresses
    with log.tables.transaction():
        del found[GroupKey(1, "doubled")]
    if instead is not None:
        log.addresses.put(REF, instead)
    eventually(lambda: is_there(log), what="it is told again")
    eventually(lambda: "hands over records directly again at" in caplog.text, what="that is said")


def test_a_later_address_stays(log: MemoryLogStore, announced: Announcement, caplog: pytest.LogCaptureFixture) -> None:
    announced.begin()
    log.addresses.put(GroupRef(1, "doubled", 3), address(3))
    eventually(lambda: "has a later driver than incarnation 2" in caplog.text, what="it is noticed")
    assert log.addresses.of_group(1, "doubled") == address(3)


@pytest.mark.parametrize(
    "url",
    [
        SQLITE,
        "postgresql:///log?host=/run/postgresql",
        "postgresql://anna:geheim@localhost/log",
        "postgresql://127.0.0.1:5433/log",
        "postgresql:///log?host=127.0.0.1,127.0.0.2",
        "postgresql:///log?host=no-such-host.invalid:5433&host=127.0.0.1:5434",
        "postgresql:///log?hostaddr=127.0.0.1",
    ],
)
def test_who_reaches_the_log_on_this_host_is_on_this_host(url: str) -> None:
    assert host_towards(url) in ("127.0.0.1", "::1")


def test_the_next_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one may be of IPv6, which this host may not have."""
    of_name = [
        (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("255.255.255.255", 5432)),  # no one may connect to it
        (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 5432)),
    ]
    monkeypatch.setattr(direct_channel, "socket", as_seen(socket, getaddrinfo=lambda *_, **__: of_name))
    assert host_towards("postgresql://db/log") == "127.0.0.1"


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
