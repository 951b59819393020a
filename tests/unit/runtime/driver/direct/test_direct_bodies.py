"""Bodies that go from driver to driver: the same as in the log, to whoever may have them, and never more than a hint."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import flight

from airflow_logio.protocol.values import Event, Kind, MadeOf, Port
from airflow_logio.runtime.driver.direct import body_client, direct_bodies
from airflow_logio.runtime.driver.direct.body_client import BodyClient
from airflow_logio.runtime.driver.direct.body_server import BodyServer
from airflow_logio.runtime.driver.direct.credentials import Credentials, new_credentials
from airflow_logio.runtime.driver.direct.direct_bodies import DirectBodies, Peer
from airflow_logio.runtime.driver.direct.kept_bodies import KeptBodies
from airflow_logio.runtime.systems.arrow import as_read
from airflow_logio.runtime.systems.contents import digest_of
from airflow_logio.store.address_port import DirectAddress

OUT = Port("doubled", "out")


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    return new_credentials()


class CountingServer(BodyServer):
    questions = 0

    def _answers(self, asked: bytes) -> Iterator[pa.RecordBatch]:
        self.questions += 1
        return super()._answers(asked)


class Sender:
    """A driver that has made some tables."""

    def __init__(self, credentials: Credentials, kept: KeptBodies | None = None) -> None:
        self.kept = kept or KeptBodies()
        self.server = CountingServer(self.kept, credentials, "127.0.0.1")
        self.address = DirectAddress(1, self.server.uri, credentials.certificate.decode(), credentials.token)

    @property
    def questions(self) -> int:
        return self.server.questions

    def made(self, *tables: pa.Table) -> list[Event]:
        events = []
        for number, table in enumerate(tables, start=1):
            digest = digest_of(table)
            self.kept.put(digest, table)
            made_of = MadeOf("in1", 0, digest, table.nbytes)
            events.append(Event(OUT, number, Kind.DATA, table.num_rows, None, b"", made_of=made_of))
        return events

    def bodies(self, address: Callable[[], DirectAddress | None] | None = None) -> DirectBodies:
        peer = Peer("doubled", address or (lambda: self.address))
        return DirectBodies({"doubled": peer}.get)


@pytest.fixture
def sender(credentials: Credentials) -> Iterator[Sender]:
    made = Sender(credentials)
    yield made
    made.server.shutdown()


def numbers(first: int, count: int = 10) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + count), pa.int64())})


ODD = {
    "texts": pa.table({"a": ["x", None, "ä" * 100]}),
    "nested": pa.table({"a": [[{"b": 1}], [], None]}),
    "a dictionary": pa.table({"a": pa.array(["x", "y", "x"]).dictionary_encode()}),
    "no records": numbers(0, 0),
    "no columns": pa.table({}),
    "chunks and metadata": pa.concat_tables([numbers(0), numbers(10)]).replace_schema_metadata({"a": "b"}),
    "large": pa.table({"a": pa.array(range(600_000), pa.int64())}),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_comes_is_what_would_have_been_read_from_the_log(sender: Sender, kind: str) -> None:
    (event,) = sender.made(ODD[kind])
    taken = sender.bodies().taken(event)
    assert taken == as_read(ODD[kind])
    assert taken.schema.metadata is None


def test_those_that_are_expected_come_with_one_question(sender: Sender) -> None:
    tables = [numbers(100 * number) for number in range(50)]
    events = sender.made(*tables)
    bodies = sender.bodies()
    bodies.expect(events)
    assert [bodies.taken(event) for event in events] == tables
    assert (sender.questions, bodies.count) == (1, 50)
    assert not bodies._coming["doubled"]
    assert not bodies._came
    assert bodies._came_bytes == 0


def test_no_more_than_some_bytes_come_at_once(sender: Sender) -> None:
    events = sender.made(*(numbers(number, 500_000) for number in range(8)))  # 4 MB each
    bodies = sender.bodies()
    bodies.expect(events)
    for event in events:
        assert bodies.taken(event) is not None
    assert sender.questions == 4


def test_what_the_sender_has_forgotten_is_asked_for_once(sender: Sender) -> None:
    kept = KeptBodies(most_bytes=200)
    forgetful = Sender(new_credentials(), kept)
    events = forgetful.made(numbers(0), numbers(10), numbers(20), numbers(30))  # 80 bytes each
    bodies = forgetful.bodies()
    bodies.expect(events)
    assert [bodies.taken(event) is not None for event in events] == [False, False, True, True]
    assert forgetful.questions == 1
    assert not bodies._missing
    forgetful.server.shutdown()


def test_a_body_that_is_too_large_for_the_memory_is_not_kept() -> None:
    kept = KeptBodies(most_bytes=100)
    kept.put(b"small", numbers(0))
    kept.put(b"large", numbers(0, 1_000))
    assert kept.body(b"large") is None


def test_memory_counts_what_is_kept_encoded() -> None:
    kept = KeptBodies(most_bytes=10**6)
    table = pa.table({"a": pa.array([7] * 100_000, pa.int64())})
    kept.put(b"same", table)
    kept.put(b"same", table)
    assert kept._bytes == table.nbytes
    body = kept.body(b"same")
    assert body is not None
    assert kept._bytes == len(body) < table.nbytes / 10
    assert kept.body(b"same") is body
    kept.put(b"other", numbers(0, 125_000))
    assert kept._bytes == 10**6
    assert kept.body(b"same") is None, "who came first goes first"


def test_bodies_are_wanted_until_all_receivers_have_them_or_nobody_asks_any_more() -> None:
    kept = KeptBodies()
    assert not kept.are_wanted(60)
    kept.put(b"a", numbers(0), receivers=2)
    assert kept.are_wanted(60)
    assert not kept.are_wanted(0)
    kept.body(b"a")
    kept.body(b"never heard of")
    assert kept.are_wanted(60)
    kept.body(b"a")
    assert not kept.are_wanted(60)
    assert kept.body(b"a") is not None, "one that was restarted asks again"
    small = KeptBodies(most_bytes=100)
    for name in (b"a", b"b"):
        small.put(name, numbers(0))
    small.body(b"b")
    assert not small.are_wanted(60), "the other one has gone"


# --- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "another", "ä"])
def test_without_its_token_a_driver_tells_nothing(sender: Sender, token: str) -> None:
    (event,) = sender.made(numbers(0))
    assert event.made_of is not None
    asking = BodyClient(replace(sender.address, token=token))
    with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightUnavailableError, flight.FlightInternalError)):
        asking.ask([event.made_of.digest])
    assert sender.questions == 0
    with pytest.raises(flight.FlightUnauthenticatedError):
        _unsigned(sender).do_get(flight.Ticket(event.made_of.digest)).read_all()
    assert sender.questions == 0


def _unsigned(sender: Sender) -> flight.FlightClient:
    certificate = sender.address.certificate.encode()
    return flight.FlightClient(sender.address.location, tls_root_certs=certificate, override_hostname="logio-driver")


def test_nobody_else_can_pretend_to_be_the_driver(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    """Another server has taken its port, and knows the token."""
    (event,) = sender.made(numbers(0))
    other = new_credentials().certificate.decode()
    bodies = sender.bodies(lambda: replace(sender.address, certificate=other))
    assert bodies.taken(event) is None
    assert sender.questions == 0
    assert "do not come directly from grpc+tls://127.0.0.1:" in caplog.text
    assert sender.address.token not in caplog.text


def test_what_is_no_body_counts_for_nothing(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    (event,) = sender.made(numbers(0))
    assert event.made_of is not None
    sender.kept._kept[event.made_of.digest] = b"no stream"
    bodies = sender.bodies()
    assert bodies.taken(event) is None
    assert "no body: the body of event 1 of doubled.out" in caplog.text
    assert bodies.count == 0


# --- who does not answer ----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr("airflow_logio.runtime.driver.direct.direct_bodies.time.monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_one_that_has_ended_is_said_once_and_left_alone_for_longer_and_longer(
    sender: Sender, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (event,) = sender.made(numbers(0))
    asked = []

    def address() -> DirectAddress:
        asked.append(clock.now)
        return sender.address

    bodies = sender.bodies(address)
    sender.server.shutdown()
    for _ in range(200):
        assert bodies.taken(event) is None
        clock.now += 1.0
    assert [round(one - 100) for one in asked] == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def test_its_successor_is_asked_as_soon_as_the_log_knows_it(
    sender: Sender, credentials: Credentials, clock: Clock
) -> None:
    events = sender.made(numbers(0), numbers(10))
    successor = Sender(new_credentials())
    successor.made(numbers(0), numbers(10))
    book = [sender.address]
    bodies = sender.bodies(lambda: book[-1])
    assert bodies.taken(events[0]) == numbers(0)
    sender.server.shutdown()
    book.append(successor.address)
    assert bodies.taken(events[1]) is None, "this question was for the one that has ended"
    clock.now += 1.5
    assert bodies.taken(events[1]) == numbers(10)
    successor.server.shutdown()


def test_one_without_an_address_rests_in_silence(
    sender: Sender, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (event,) = sender.made(numbers(0))
    found: list[DirectAddress | None] = [None]
    bodies = sender.bodies(lambda: found[-1])
    assert bodies.taken(event) is None
    found.append(sender.address)
    assert bodies.taken(event) is None
    clock.now += 1.5
    assert bodies.taken(event) == numbers(0)
    assert not caplog.records


def test_one_that_takes_connections_and_says_nothing_costs_seconds_once(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_client, "PATIENCE_SECONDS", 0.3)
    (event,) = sender.made(numbers(0))
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = replace(sender.address, location=f"grpc+tls://127.0.0.1:{deaf.getsockname()[1]}")
        bodies = sender.bodies(lambda: address)
        began = time.monotonic()
        assert bodies.taken(event) is None
        assert bodies.taken(event) is None
        assert time.monotonic() - began < 5


def test_many_ask_at_the_same_time(sender: Sender) -> None:
    tables = [numbers(number) for number in range(100)]
    events = sender.made(*tables)
    found: list[bool] = []

    def ask() -> None:
        bodies = sender.bodies()
        bodies.expect(events)
        found.append([bodies.taken(event) for event in events] == tables)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_hints_that_lead_nowhere_do_not_fill_the_memory(sender: Sender) -> None:
    bodies = DirectBodies(lambda _: None)
    for number in range(1, direct_bodies.MOST_HINTS + 5):
        made_of = MadeOf("in", 0, number.to_bytes(16, "big"))
        bodies.expect([Event(OUT, number, Kind.DATA, 1, None, b"", made_of=made_of)])
    assert len(bodies._coming["doubled"]) == direct_bodies.MOST_HINTS
