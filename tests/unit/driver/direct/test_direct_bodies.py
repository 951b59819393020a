"""Bodies that go from driver to driver: the same as in the log, for their receivers alone, and never more than a hint."""

from __future__ import annotations

import gc
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from pyarrow import flight

from airflow_logio.driver.direct import direct_bodies
from airflow_logio.driver.direct import flight as direct_flight
from airflow_logio.driver.direct.direct_bodies import MOST_BYTES, DirectBodies, KeptBodies, Peer
from airflow_logio.driver.direct.flight import BodyClient, BodyServer, Credentials, new_credentials
from airflow_logio.errors import NotPermitted
from airflow_logio.protocol.replay import MOST_HINTS
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port
from airflow_logio.store.port.unfenced_port import DirectAddress
from airflow_logio.systems.arrow import BYTES_OF_A_TABLE, as_read, digest_of, encode
from tests.support.own_calls import as_seen

OUT = Port("doubled", "out")


@pytest.fixture(autouse=True)
def _everything_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "airflow_logio")


@pytest.fixture(scope="module")
def credentials() -> Credentials:
    return new_credentials()


def address_of(credentials: Credentials, uri: str) -> DirectAddress:
    server, client = credentials.server.certificate.decode(), credentials.client
    return DirectAddress(1, uri, server, client.certificate.decode(), client.key.decode(), credentials.token)


class CountingServer(BodyServer):
    questions = 0

    def _answers(self, asked: bytes) -> Iterator[pa.RecordBatch]:
        self.questions += 1
        return super()._answers(asked)


class Sender:
    """A driver that has made some tables."""

    def __init__(self, credentials: Credentials, kept: KeptBodies | None = None) -> None:
        self.kept = kept or KeptBodies()
        self.server = CountingServer(self.kept.body, credentials, "127.0.0.1")
        self.address = address_of(credentials, self.server.uri)

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
    assert_empty(bodies)


def assert_empty(bodies: DirectBodies) -> None:
    assert not any(bodies._coming.values())
    assert not bodies._answers
    assert not bodies._wanted
    assert bodies._bytes == 0


def test_equal_events_need_one_question(sender: Sender) -> None:
    """Of two operators, too."""
    events = sender.made(*[numbers(0, 0)] * 60)
    more = [Event(Port("other", "out"), one.event_id, Kind.DATA, 0, None, b"", made_of=one.made_of) for one in events]
    peer = Peer("doubled", lambda: sender.address)
    bodies = DirectBodies({"doubled": peer, "other": peer}.get)
    for some in (events, more):
        bodies.expect(some)
    assert all(bodies.taken(event) == numbers(0, 0) for event in (*events, *more))
    assert sender.questions == 1
    assert_empty(bodies)


def test_one_that_nobody_expected_comes_with_those_that_somebody_did(sender: Sender) -> None:
    """It is the largest of them, and not the one that has to go."""
    tables = [numbers(0, 4_500_000), *(numbers(number, 100_000) for number in range(60))]
    sender.kept._most_bytes = 10**9
    large, *others = sender.made(*tables)
    bodies = sender.bodies()
    bodies.expect(others)
    assert bodies.taken(large) == tables[0]
    assert bodies.taken(others[0]) == tables[1]


def test_one_that_no_driver_keeps_is_not_asked_for(sender: Sender) -> None:
    (event,) = sender.made(numbers(0))
    assert event.made_of is not None
    bodies = sender.bodies()
    for size, questions in ((MOST_BYTES + 1, 0), (MOST_BYTES, 1)):
        large = structs.replace(event, made_of=structs.replace(event.made_of, size=size))
        bodies.expect([large])
        assert (bodies.taken(large) is not None) == bool(questions)
        assert sender.questions == questions
    assert_empty(bodies)


def test_hints_that_have_led_nowhere_are_forgotten(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    events = sender.made(*(numbers(10 * number) for number in range(200)))
    monkeypatch.setattr(direct_bodies, "MOST_KEPT", 10_000)
    bodies = sender.bodies()
    bodies.expect(events)
    for event in events[::64]:  # each comes with the others, which are not asked for
        assert bodies.taken(event) is not None
    assert len(bodies._wanted) <= len(bodies._answers) + len(bodies._coming["doubled"]) < 100


def test_no_more_than_some_bytes_come_at_once(sender: Sender) -> None:
    events = sender.made(*(numbers(number, 500_000) for number in range(8)))  # 4 MB each
    bodies = sender.bodies()
    bodies.expect(events)
    for event in events:
        assert bodies.taken(event) is not None
    assert sender.questions == 4


def test_what_the_sender_has_forgotten_is_asked_for_once(sender: Sender) -> None:
    kept = KeptBodies(most_bytes=3 * BYTES_OF_A_TABLE)
    forgetful = Sender(new_credentials(), kept)
    events = forgetful.made(numbers(0), numbers(10), numbers(20), numbers(30))  # 80 bytes each
    bodies = forgetful.bodies()
    bodies.expect(events)
    assert [bodies.taken(event) is not None for event in events] == [False, False, True, True]
    assert forgetful.questions == 1
    assert_empty(bodies)
    forgetful.server.shutdown()


def test_a_body_that_is_too_large_for_the_memory_is_not_kept() -> None:
    kept = KeptBodies(most_bytes=BYTES_OF_A_TABLE + 1_000)
    kept.put(b"small", numbers(0))
    kept.put(b"large", numbers(0, 1_000))
    assert kept.body(b"large") is None
    assert kept.body(b"small") is not None, "it empties nothing"


def test_memory_counts_what_small_tables_and_slices_take() -> None:
    kept = KeptBodies(most_bytes=20 * BYTES_OF_A_TABLE)
    for number in range(100):
        kept.put(b"%d" % number, numbers(number, 1))
    assert len(kept._kept) == 18
    whole = numbers(0, 10**6)
    kept.put(b"slice", whole.slice(5, 10))
    assert isinstance(kept._kept[b"slice"][0], bytes), "it keeps the whole table alive"


@pytest.mark.parametrize("records", [10, 1_000])
def test_what_a_small_table_shows_of_numpy_is_not_kept_alive(records: int) -> None:
    """Arrow does not know how large that is."""

    class Base(np.ndarray[Any, Any]):
        """It can be referred to weakly."""

    base = np.arange(10**6).view(Base)
    alive = weakref.ref(base)
    kept = KeptBodies()
    kept.put(b"view", pa.table({"a": pa.array(np.asarray(base[:records]))}))
    del base
    gc.collect()
    assert alive() is None
    assert kept.body(b"view") == encode(pa.table({"a": pa.array(range(records))}))


def test_memory_counts_what_is_kept_encoded() -> None:
    most = 10**6 + 2 * BYTES_OF_A_TABLE
    kept = KeptBodies(most_bytes=most)
    table = pa.table({"a": pa.array([7] * 100_000, pa.int64())})
    kept.put(b"same", table)
    kept.put(b"same", table)
    assert kept._bytes == table.nbytes + BYTES_OF_A_TABLE
    body = kept.body(b"same")
    assert body is not None
    assert kept._bytes == len(body) + BYTES_OF_A_TABLE < table.nbytes / 10
    assert kept.body(b"same") is body
    kept.put(b"other", numbers(0, 125_000))
    assert kept._bytes == 10**6 + BYTES_OF_A_TABLE
    assert kept.body(b"same") is None, "who came first goes first"


def test_bodies_are_wanted_until_all_receivers_have_them() -> None:
    kept = KeptBodies()
    assert not kept.are_wanted()
    kept.put(b"a", numbers(0), receivers=2)
    kept.body(b"a")
    kept.body(b"never heard of")
    assert kept.are_wanted()
    asking = threading.Timer(0.05, kept.body, (b"a",))
    asking.start()
    began = time.monotonic()
    kept.wait_until_asked(60)
    assert time.monotonic() - began < 30
    assert not kept.are_wanted()
    assert kept.body(b"a") is not None, "one that was restarted asks again"
    small = KeptBodies(most_bytes=BYTES_OF_A_TABLE + 1_000)
    for name in (b"a", b"b"):
        small.put(name, numbers(0))
    small.body(b"b")
    assert not small.are_wanted(), "the other one has gone"


# --- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["", "another", "ä"])
def test_without_its_token_a_driver_tells_nothing(sender: Sender, token: str) -> None:
    (event,) = sender.made(numbers(0))
    assert event.made_of is not None
    asking = BodyClient(replace(sender.address, token=token))
    with pytest.raises((flight.FlightUnauthenticatedError, flight.FlightUnavailableError, flight.FlightInternalError)):
        list(asking.ask([event.made_of.digest], 100))
    assert sender.questions == 0


@pytest.mark.parametrize("shows", ["nothing", "a certificate of its own"])
def test_who_has_no_certificate_is_not_even_heard(sender: Sender, shows: str) -> None:
    (event,) = sender.made(numbers(0))
    assert event.made_of is not None
    chain = (
        {} if shows == "nothing" else dict(zip(("cert_chain", "private_key"), new_credentials().client, strict=True))
    )
    certificate = sender.address.certificate.encode()
    asking = flight.FlightClient(
        sender.address.location, tls_root_certs=certificate, override_hostname="logio-driver", **chain
    )
    options = flight.FlightCallOptions(10, headers=[(b"authorization", f"Bearer {sender.address.token}".encode())])
    with pytest.raises(flight.FlightUnavailableError):
        asking.do_get(flight.Ticket(event.made_of.digest * 10**6), options).read_all()
    assert sender.questions == 0


def test_a_ticket_has_an_end(sender: Sender) -> None:
    (event,) = sender.made(numbers(0))
    assert event.made_of is not None
    assert len(list(BodyClient(sender.address).ask([event.made_of.digest] * 1_000, 100))) == 64


def test_nobody_else_can_pretend_to_be_the_driver(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    """Another server has taken its port, and knows the token."""
    (event,) = sender.made(numbers(0))
    other = new_credentials().server.certificate.decode()
    bodies = sender.bodies(lambda: replace(sender.address, certificate=other))
    assert bodies.taken(event) is None
    assert sender.questions == 0
    assert "do not come directly at grpc+tls://127.0.0.1:" in caplog.text
    assert "does not have the certificate that the log has of it (another program has its port" in caplog.text
    assert sender.address.token not in caplog.text


def test_a_proxy_of_the_environment_is_not_asked(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there for what is read from outside."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (event,) = sender.made(numbers(0))
    assert sender.bodies().taken(event) == numbers(0)


def test_what_is_no_body_counts_for_nothing(sender: Sender, caplog: pytest.LogCaptureFixture) -> None:
    (event,) = sender.made(numbers(0))
    assert event.made_of is not None
    sender.kept._kept[event.made_of.digest] = b"no stream", 9
    bodies = sender.bodies()
    assert bodies.taken(event) is None
    assert "no body: the body of event 1 of doubled.out" in caplog.text
    assert bodies.count == 0


# --- who does not answer ----------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch.setattr(direct_bodies, "time", as_seen(time, monotonic=lambda: self.now))


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
    assert [round(one - 100) for one in asked] == [0, 1, 3, 7, 15, 31, 63, 127]
    messages = [record.getMessage() for record in caplog.records]
    (said,) = [message for message in messages if "directly" in message]
    assert "records of group doubled do not come directly at grpc+tls://127.0.0.1:" in said
    assert "no one answers there (the driver has ended, or a firewall is in between)" in said


def test_one_that_the_log_does_not_know_is_said_after_a_minute(
    sender: Sender, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    (event,) = sender.made(numbers(0))
    bodies = sender.bodies(lambda: None)
    for _ in range(200):
        assert bodies.taken(event) is None
        assert ("the log has no address of its driver" in caplog.text) == (clock.now >= 163.0), (
            "the question after 60 s"
        )
        clock.now += 1.0
    assert len([record for record in caplog.records if "no address" in record.getMessage()]) == 1


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
    assert not caplog.records, "it is being started"


def test_one_that_takes_connections_and_says_nothing_costs_a_tenth_of_the_time(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(direct_flight, "PATIENCE_SECONDS", 0.3)
    (event,) = sender.made(numbers(0))
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = replace(sender.address, location=f"grpc+tls://127.0.0.1:{deaf.getsockname()[1]}")
        peer = Peer("doubled", lambda: address)
        bodies = DirectBodies({"doubled": peer}.get)
        began = time.monotonic()
        assert bodies.taken(event) is None
        took = time.monotonic() - began
        assert bodies.taken(event) is None
        assert peer._rests_until - time.monotonic() > 5 * took
    assert "nothing is lost" in caplog.text


@pytest.mark.parametrize(
    "error", [NotPermitted("permission denied for table logio_address"), ImportError("no module named pyarrow._flight")]
)
def test_whatever_is_wrong_costs_time_only(sender: Sender, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    (event,) = sender.made(numbers(0))

    def address() -> DirectAddress:
        raise error

    assert sender.bodies(address).taken(event) is None
    assert str(error) in caplog.text


def test_what_came_before_an_error_counts(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    events = sender.made(numbers(0), numbers(10), numbers(20))
    answers = CountingServer._answers

    def breaks(self: CountingServer, asked: bytes) -> Iterator[pa.RecordBatch]:
        yield from islice(answers(self, asked), 2)
        raise OSError("the disk of the sender is on fire")

    monkeypatch.setattr(CountingServer, "_answers", breaks)
    bodies = sender.bodies()
    bodies.expect(events)
    assert [bodies.taken(event) is not None for event in events] == [True, True, False]


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
    for number in range(1, MOST_HINTS + 5):
        made_of = MadeOf("in", 0, number.to_bytes(16, "big"))
        bodies.expect([Event(OUT, number, Kind.DATA, 1, None, b"", made_of=made_of)])
    assert len(bodies._coming["doubled"]) == MOST_HINTS
