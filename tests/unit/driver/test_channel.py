"""The channel: one question to the log for all ports, those that got nothing first next time, bounded shares of memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from airflow_logio.driver import channel as channels
from airflow_logio.driver.channel import Channel, InTurn, Lane, OnePort
from airflow_logio.driver.mailbox import Bound, Mailbox
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.recovery import PortOrder
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port.session_port import Fetched
from airflow_logio.systems.arrow import encode
from airflow_logio.systems.payloads.bodies import Bodies
from airflow_logio.testing.memory_log import MemoryLogStore
from airflow_logio.testing.memory_log.session import MemoryGroupSession
from tests.support.logs import Driver, start_driver
from tests.support.waiting import eventually

BODY = encode(pa.table({"n": [1]}))


def slot(number: int) -> Port:
    return Port(f"work[{number}]", "in")


def for_slot(event_id: int, number: int, kind: Kind = Kind.DATA) -> fx.LogEvent:
    event = Event(Port("feed", f"slot{number}"), event_id, kind, 1, None, BODY if kind is Kind.DATA else b"")
    return fx.LogEvent(event, (fx.Delivery(slot(number)),))


def in_turn(event_id: int, port: str) -> fx.LogEvent:
    event = Event(Port("feed", port), event_id, Kind.DATA, 1, None, BODY)
    return fx.LogEvent(event, (fx.Delivery(Port("op", port)),))


class Asked(MemoryGroupSession):
    """The log, with what it was asked; raises the errors of `outages` first."""

    def __init__(self, driver: Driver) -> None:
        assert isinstance(driver.store, MemoryLogStore)
        super().__init__(driver.store.tables, driver.ref)
        self.open()
        self.questions: list[Mapping[Port, int]] = []
        self.outages: list[Exception] = []

    def fetch_all(self, cursors: Mapping[Port, int], *, max_events: int, max_bytes: int) -> Fetched:
        self.questions.append(dict(cursors))
        if self.outages:
            raise self.outages.pop()
        return super().fetch_all(cursors, max_events=max_events, max_bytes=max_bytes)


class OutOfReach(Bodies):
    """A payload store that does not answer, once for each event of `missing`."""

    def __init__(self, missing: set[tuple[str, int]]) -> None:
        super().__init__(None)
        self._missing = missing

    def expect(self, events: Iterable[Event]) -> None:
        """Every body is looked for when it is asked for."""

    def unpacked(self, event: Event) -> Event:
        if (event.sender.name, event.event_id) in self._missing:
            self._missing.remove((event.sender.name, event.event_id))
            raise LogUnavailable("the payload store does not answer")
        return super().unpacked(event)


@dataclass
class Feed:
    """A log that others write to, and a group that reads from it."""

    driver: Driver = field(default_factory=lambda: start_driver(MemoryLogStore()))
    mailbox: Mailbox = field(default_factory=lambda: Mailbox(Bound()))
    missing: set[tuple[str, int]] = field(default_factory=set)
    failed: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = Asked(self.driver)

    def send(self, *events: fx.LogEvent) -> None:
        self.driver.session.commit([*events])

    def channel(self, lanes: Sequence[Lane]) -> Channel:
        return Channel(self.log, lanes, OutOfReach(self.missing), self.mailbox, self.failed.append)

    def take(self, many: int) -> list[tuple[str, int]]:
        """(sender port, event id) of what arrives."""
        taken: list[tuple[str, int]] = []
        while len(taken) < many:
            item = self.mailbox.get(10, inputs=True)
            assert item is not None, f"only {taken} came; {self.failed}"
            _, event = item
            taken.append((event.sender.name, event.event_id))
        return taken


@pytest.fixture
def opened() -> Iterator[Callable[[Feed, Sequence[Lane]], Channel]]:
    running: list[tuple[Feed, Channel]] = []

    def start(feed: Feed, lanes: Sequence[Lane]) -> Channel:
        running.append((feed, feed.channel(lanes)))
        running[-1][1].start()
        return running[-1][1]

    yield start
    for feed, channel in running:
        feed.mailbox.close()
        channel.stop().join()
        assert feed.failed == []


Start = Callable[[Feed, Sequence[Lane]], Channel]


def ports(many: int) -> list[Lane]:
    return [OnePort(slot(number), mark=0) for number in range(many)]


def test_a_round_asks_once_for_all_ports(opened: Start) -> None:
    feed = Feed()
    feed.send(*(for_slot(n, number) for number in (0, 5, 63) for n in (1, 2)))
    opened(feed, ports(64))
    assert sorted(feed.take(6)) == [(f"slot{number}", n) for number in (0, 5, 63) for n in (1, 2)]
    feed.send(for_slot(3, 5))
    assert feed.take(1) == [("slot5", 3)]
    assert feed.log.questions[0] == {slot(number): 0 for number in range(64)}
    assert {len(question) for question in feed.log.questions} == {64}
    eventually(lambda: feed.log.questions[-1][slot(5)] == 3, what="the cursor has moved")
    assert feed.log.questions[-1] == {slot(n): {0: 2, 5: 3, 63: 2}.get(n, 0) for n in range(64)}


def test_whoever_got_nothing_comes_first(opened: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events so large that one fills a round: they are taken in turn."""
    monkeypatch.setattr(channels, "FETCH_BYTES", 1)
    feed = Feed()
    feed.send(*(for_slot(n, number) for number in range(3) for n in range(1, 5)))
    opened(feed, ports(3))
    assert feed.take(12) == [(f"slot{number}", n) for n in range(1, 5) for number in range(3)]


def test_a_full_mailbox_ends_the_questions(opened: Start) -> None:
    feed = Feed(mailbox=Mailbox(Bound(events=2)))
    feed.send(*(for_slot(n, number) for number in range(3) for n in range(1, 201)))
    opened(feed, ports(3))
    eventually(lambda: feed.mailbox.waiting()[0] == 2, what="the mailbox is full")
    feed.take(3 * channels.FETCH_EVENTS - 3)
    assert len(feed.log.questions) == 1, "what it brought is taken first"
    assert len(feed.take(600 - 3 * channels.FETCH_EVENTS + 3)) > 0
    assert len(feed.log.questions) >= 4


def test_a_port_that_has_ended_is_asked_for_no_more(opened: Start) -> None:
    feed = Feed()
    feed.send(for_slot(1, 0, Kind.END), for_slot(1, 1))
    opened(feed, ports(2))
    assert sorted(feed.take(2)) == [("slot0", 1), ("slot1", 1)]
    eventually(lambda: feed.log.questions[-1] == {slot(1): 1}, what="one port is left")
    feed.send(for_slot(2, 1, Kind.END))
    assert feed.take(1) == [("slot1", 2)]


def test_ordered_ports_are_part_of_the_question(opened: Start) -> None:
    feed = Feed()
    ordered = InTurn("op", PortOrder("ab"), {}, set())
    feed.send(*(in_turn(n, port) for n in (1, 2, 3) for port in "ab"), for_slot(1, 0))
    opened(feed, [ordered, *ports(1)])
    taken = feed.take(7)
    assert [one for one in taken if one[0] != "slot0"] == [(port, n) for n in (1, 2, 3) for port in "ab"]
    assert feed.log.questions[:2] == [{Port("op", "a"): 0, slot(0): 0}, {Port("op", "b"): 0}]


def test_nothing_is_lost_or_repeated_when_the_log_is_away(opened: Start) -> None:
    feed = Feed(missing={("slot0", 2), ("slot1", 1)})
    feed.log.outages = [LogUnavailable("away"), LogUnavailable("away")]
    feed.send(*(for_slot(n, number) for number in range(3) for n in (1, 2, 3)))
    opened(feed, ports(3))
    taken = feed.take(9)
    assert sorted(taken) == [(f"slot{number}", n) for number in range(3) for n in (1, 2, 3)]
    assert all([n for name, n in taken if name == f"slot{number}"] == [1, 2, 3] for number in range(3))
    assert not feed.missing and not feed.log.outages


# --- how often the log is asked ---------------------------------------------------------------------------------------


def test_an_event_that_comes_alone_takes_one_look(opened: Start) -> None:
    """What comes later ends the wait: to look again at once would double what a slow stream costs."""
    feed = Feed()
    opened(feed, [OnePort(slot(0), 0)])
    eventually(lambda: len(feed.log.questions) >= 2)  # the first wait ends at once
    asked, began = len(feed.log.questions), time.monotonic()
    for number in range(1, 6):
        feed.send(for_slot(number, 0))
        assert feed.take(1) == [("slot0", number)]
    by_the_clock = (time.monotonic() - began) / channels.POLL_SECONDS
    assert len(feed.log.questions) - asked <= 5 + 1 + by_the_clock


@pytest.mark.parametrize("hears", [False, True])
def test_what_did_not_fit_is_asked_for_at_once(hears: bool, opened: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """No one announces it a second time. Who hears nothing looks again in any case."""
    monkeypatch.setattr(channels, "FETCH_EVENTS", 3)
    monkeypatch.setattr(Asked, "will_hear", lambda _self: hears)
    waiting = Waiting(monkeypatch)
    feed = Feed()
    feed.send(*(for_slot(number, 0) for number in range(1, 9)))
    opened(feed, [OnePort(slot(0), 0)])
    assert feed.take(8) == [("slot0", number) for number in range(1, 9)]
    assert waiting.began.wait(60)
    assert len(feed.log.questions) == (3 if hears else 4)
    waiting.may_end.set()


def test_a_round_that_ends_for_the_sake_of_others_is_followed_by_another(
    opened: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ports in turn, with more than fits into a round: what was fetched and is due does not wait for news."""
    waiting = Waiting(monkeypatch)
    feed = Feed()
    feed.send(*(in_turn(number, port) for port in "ab" for number in range(1, 41)))
    opened(feed, [InTurn("op", PortOrder("ab"), {}, set())])
    assert feed.take(80) == [(port, number) for number in range(1, 41) for port in "ab"]
    waiting.may_end.set()


def test_a_channel_that_has_taken_its_last_end_waits_for_nothing(
    opened: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(monkeypatch)
    feed = Feed()
    feed.send(for_slot(1, 0), for_slot(2, 0, Kind.END))
    opened(feed, [OnePort(slot(0), 0)])
    assert feed.take(2) == [("slot0", 1), ("slot0", 2)]
    eventually(lambda: not any(thread.name == "logio-channel" for thread in threading.enumerate()))
    assert not waiting.began.is_set()


class Waiting:
    """Nothing is ever announced, and no clock ends a wait."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

        def wait(_session: Asked, _timeout: float) -> None:
            self.began.set()
            self.may_end.wait(60)

        patch.setattr(Asked, "wait", wait)
