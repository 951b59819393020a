"""Lanes: events of an ordered operator in turn, nothing that is not due, a bounded share of memory; and the bound itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.driver.channel import EVENTS_PER_ROUND, InTurn, Lane, More, OnePort, lanes_of
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.recovery import LoggedEvent, PortOrder
from airflow_logio.protocol.values import Kind, Port
from tests.support.logics import EachEvent, end, fed, operator

AT_ONCE = 3


@dataclass
class Log:
    """What is in the log of each port; `end` puts the end of stream there."""

    sent: dict[Port, list[LoggedEvent]] = field(default_factory=dict)
    fetched: list[tuple[str, int]] = field(default_factory=list)
    taken: list[tuple[str, int]] = field(default_factory=list)

    def send(self, port: str, *, ends: bool = False) -> None:
        receiver = Port("op", port)
        events = self.sent.setdefault(receiver, [])
        number = len(events) + 1
        events.append(LoggedEvent(receiver, end(number) if ends else fed(number, number)))

    def fetch(self, receiver: Port, after: int) -> Sequence[LoggedEvent]:
        self.fetched.append((receiver.name, after))
        return self.sent.get(receiver, [])[after : after + AT_ONCE]

    def hand_over(self, receiver: Port, logged: Sequence[LoggedEvent], _more: More) -> Iterator[LoggedEvent]:
        for one in logged:
            self.taken.append((receiver.name, one.event.event_id))
            yield one

    def pull(self, lane: Lane) -> bool:
        return lane.pull(self.fetch, self.hand_over)


def test_a_port_alone_is_read_from_its_mark_to_its_end() -> None:
    log, lane = Log(), OnePort(Port("op", "in"), mark=1)
    for _ in range(5):
        log.send("in")
    assert log.pull(lane) and log.pull(lane)
    assert not log.pull(lane)
    assert log.taken == [("in", number) for number in (2, 3, 4, 5)]
    assert not lane.has_ended()
    log.send("in", ends=True)
    assert log.pull(lane)
    assert lane.has_ended()


def test_what_comes_while_a_round_lasts_belongs_to_it_up_to_the_size_of_a_round() -> None:
    """For who has room for more before the first one is handed over; an outage of the log ends nothing."""
    log, lane = Log(), OnePort(Port("op", "in"), mark=0)
    log.send("in")
    outages = [True]

    def fetch(receiver: Port, after: int) -> Sequence[LoggedEvent]:
        if after == 4 and outages:
            outages.clear()
            raise LogUnavailable("away")
        return log.fetch(receiver, after)

    def asking(receiver: Port, logged: Sequence[LoggedEvent], more: More) -> Iterator[LoggedEvent]:
        waiting = list(logged)
        while len(waiting) < EVENTS_PER_ROUND:
            for _ in range(AT_ONCE):
                log.send("in")
            waiting += more(waiting[-1])
        assert not more(waiting[-1])
        yield from log.hand_over(receiver, waiting, more)

    assert lane.pull(fetch, asking)
    taken = [number for _, number in log.taken]
    assert taken == list(range(1, len(taken) + 1)) and EVENTS_PER_ROUND <= len(taken) < EVENTS_PER_ROUND + AT_ONCE
    assert not outages


def test_events_that_are_not_due_are_neither_handed_over_nor_fetched() -> None:
    log, lane = Log(), InTurn("op", PortOrder("aab"), {}, set())
    for _ in range(100):
        log.send("a")
    assert log.pull(lane)
    assert log.taken == [("a", 1), ("a", 2)]
    assert not log.pull(lane), "the turn is b's"
    assert [port for port, _ in log.fetched] == ["a", "b", "b"], "while it waits for b it asks for b alone"
    log.send("b")
    assert log.pull(lane)
    assert log.taken == [("a", 1), ("a", 2), ("b", 1), ("a", 3), ("a", 4)]


def test_what_a_lane_wants_is_what_it_fetches_first() -> None:
    log = Log()
    for _ in range(2):
        log.send("a")
    for lane in (OnePort(Port("op", "a"), mark=0), InTurn("op", PortOrder("ab"), {}, set())):
        for _ in range(3):
            log.fetched.clear()
            wanted = lane.wanted()
            log.pull(lane)
            assert wanted is not None and log.fetched[0] == (wanted[0].name, wanted[1])
    log.send("b")
    assert lane.wanted() == (Port("op", "b"), 0)
    assert log.pull(lane)
    assert log.taken[-2:] == [("b", 1), ("a", 2)]
    waits = InTurn("op", PortOrder("ab"), {}, set())
    with pytest.raises(LogUnavailable):
        waits.pull(log.fetch, _refuse)
    assert waits.wanted() is None, "it has what is due"
    assert InTurn("op", PortOrder("a"), {"a": 2}, {"a"}).wanted() is None


def _refuse(_receiver: Port, _logged: Sequence[LoggedEvent], _more: More) -> Iterator[LoggedEvent]:
    raise LogUnavailable("the payload store does not answer")


def test_turns_of_one_event_each_are_still_fetched_in_batches() -> None:
    log, lane = Log(), InTurn("op", PortOrder("ab"), {}, set())
    for _ in range(AT_ONCE * 2):
        log.send("a")
        log.send("b")
    while log.pull(lane):
        pass
    assert log.taken == [(port, number) for number in range(1, AT_ONCE * 2 + 1) for port in "ab"]
    assert len(log.fetched) <= 6


def test_one_round_leaves_room_for_other_lanes() -> None:
    log, lane = Log(), InTurn("op", PortOrder("a"), {}, set())
    for _ in range(EVENTS_PER_ROUND + 1):
        log.send("a")
    assert log.pull(lane)
    assert len(log.taken) == EVENTS_PER_ROUND


def test_it_goes_on_where_recovery_left_the_operator() -> None:
    log, lane = Log(), InTurn("op", PortOrder("abb"), {"a": 2, "b": 2}, set())
    for _ in range(9):
        log.send("a")
        log.send("b")
    assert log.pull(lane)
    assert log.taken[:4] == [("b", 3), ("b", 4), ("a", 3), ("b", 5)]
    ended = InTurn("op", PortOrder("abb"), {"a": 2, "b": 2}, {"b"})
    log.taken.clear()
    assert log.pull(ended)
    assert log.taken[:3] == [("a", 3), ("a", 4), ("a", 5)], "a port that has ended is passed over"
    assert InTurn("op", PortOrder("ab"), {"a": 2, "b": 2}, {"a", "b"}).has_ended()


@pytest.mark.parametrize("lane", [OnePort(Port("op", "a"), mark=0), InTurn("op", PortOrder("aab"), {}, set())])
def test_an_event_that_could_not_be_handed_over_is_the_next_one(lane: Lane) -> None:
    """Its payload may be away, for example: the channel pulls again."""
    log = Log()
    for port in "aaab":
        log.send(port)

    def refuse_the_second(receiver: Port, logged: Sequence[LoggedEvent], more: More) -> Iterator[LoggedEvent]:
        for one in logged:
            if one.event.event_id == 2:
                raise LogUnavailable("the payload store does not answer")
            yield from log.hand_over(receiver, [one], more)

    for _ in range(2):
        with pytest.raises(LogUnavailable):
            lane.pull(log.fetch, refuse_the_second)
    assert log.pull(lane)
    assert [number for port, number in log.taken if port == "a"] == [1, 2, 3]


@settings(deadline=None)
@given(
    pattern=st.text("ab", min_size=1, max_size=5).map(lambda text: text + "ab"),
    arrivals=st.lists(st.sampled_from("ab"), max_size=40),
    asks=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_however_events_arrive_they_are_used_in_turn(pattern: str, arrivals: list[str], asks: list[bool]) -> None:
    log, lane = Log(), InTurn("op", PortOrder(pattern), {}, set())
    for port, ask in zip(arrivals, asks, strict=False):
        log.send(port)
        if ask:
            log.pull(lane)
    for port in "ab":
        log.send(port, ends=True)
    while log.pull(lane):
        pass
    assert lane.has_ended()
    assert log.taken == in_turn(pattern, {port: arrivals.count(port) + 1 for port in "ab"})


def in_turn(pattern: str, sent: dict[str, int]) -> list[tuple[str, int]]:
    """The order that the words say: round and round the pattern, passing over a port whose end has been used."""
    used = dict.fromkeys(sent, 0)
    taken = []
    while any(used[port] < sent[port] for port in sent):
        for port in pattern:
            if used[port] < sent[port]:
                used[port] += 1
                taken.append((port, used[port]))
    return taken


def test_the_lanes_of_a_group() -> None:
    ordered = operator("op", EachEvent(), inputs=("a", "b"), port_order=("a", "b"))
    free = operator("free", EachEvent(), inputs=("x", "y"))
    group = GroupProtocol([ordered, free], {Port("op", "out"): [Port("free", "x")]})
    group.resume()
    group.deliver(Port("op", "a"), end(1))
    lanes = lanes_of(group)
    assert [type(lane) for lane in lanes] == [InTurn, OnePort]
    log = Log()
    log.send("b")
    assert log.pull(lanes[0])
    assert log.taken == [("b", 1)]
    assert fed(1).kind is Kind.DATA and not any(lane.has_ended() for lane in lanes)


@pytest.mark.parametrize("port", ["a", "b"])
def test_an_ordered_operator_whose_ports_have_all_ended_has_no_lane(port: str) -> None:
    group = GroupProtocol([operator("op", EachEvent(), inputs=(port,), port_order=(port,))], {})
    group.resume()
    group.deliver(Port("op", port), end(1))
    assert lanes_of(group) == []
