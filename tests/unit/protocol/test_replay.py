"""Bodies that are made again: of the Input Set alone, through any number of operators, and only if they are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.effects import LogEvent
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit, Output
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.replay import MADE_BYTES, Offers, Replay
from airflow_logio.protocol.values import Event, Kind, MadeOf, Port
from tests.simulator.plain_operators import SCOPE, CountWindow, PlainLogic, operator, source

READ = Port("read", "out")


class Pairs(PlainLogic):
    """Per event: what came, on one port, and its length, on the other, and what came again."""

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Emit("out", held, len(held)), Emit("size", [len(held)], 1), Emit("out", held[::-1], len(held)))


class Log:
    """What an Input Set of an operator is made of, and how often that was asked."""

    def __init__(self, sets: Mapping[tuple[str, str], Sequence[Event]]) -> None:
        self.sets = sets
        self.asked: list[tuple[str, ...]] = []

    def input_sets(self, name: str, inset_ids: Sequence[str], _bytes: int) -> Mapping[str, Sequence[LoggedEvent]]:
        self.asked.append((name, *inset_ids))
        receiver = Port(name, "in")
        return {
            inset_id: [LoggedEvent(receiver, event, inset_id) for event in self.sets[name, inset_id]]
            for inset_id in inset_ids
            if (name, inset_id) in self.sets
        }


def replay(
    log: Log, logics: Mapping[str, PlainLogic], offers: Offers | None = None, size: Callable[[Any], int] = len
) -> Replay:
    return Replay(logics.__getitem__, log.input_sets, loaded, digest, size, offers)


class Offered(Offers):
    """The same for every event."""

    def __init__(self, payload: Any) -> None:
        self._payload = payload
        self.expected: list[int] = []

    def expect(self, events: Iterable[Event]) -> None:
        self.expected += [event.event_id for event in events]

    def taken(self, event: Event) -> Any | None:
        return self._payload


def loaded(event: Event) -> Event:
    assert event.made_of is None
    return Event(event.sender, event.event_id, event.kind, event.records, list(event.body or b""))


def digest(payload: Any) -> bytes:
    return repr(payload).encode()


def logged(event_id: int, values: list[int]) -> Event:
    return Event(READ, event_id, Kind.DATA, len(values), None, bytes(values))


def made(sender: str, event_id: int, inset_id: str, place: int, payload: list[int]) -> Event:
    name, port = sender.split(".")
    return Event(
        Port(name, port), event_id, Kind.DATA, len(payload), None, b"", made_of=MadeOf(inset_id, place, digest(payload))
    )


def test_what_is_in_the_log_comes_from_there() -> None:
    log = Log({})
    assert replay(log, {}).unpacked(logged(1, [1, 2])).payload == [1, 2]
    assert not log.asked


def test_places_are_those_of_a_port_and_one_output_set_is_made_once() -> None:
    log = Log({("pairs", "in1"): [logged(1, [1, 2, 3])]})
    again = replay(log, {"pairs": Pairs()})
    for sender, place, payload in (("pairs.out", 0, [1, 2, 3]), ("pairs.size", 0, [3]), ("pairs.out", 1, [3, 2, 1])):
        assert again.unpacked(made(sender, 7, "in1", place, payload)).payload == payload
    assert log.asked == [("pairs", "in1")]


def test_a_chain_is_followed_to_what_is_in_the_log() -> None:
    log = Log(
        {
            ("window", "0"): [made("pairs.out", 1, "in1", 0, [1, 2]), made("pairs.out", 2, "in1", 1, [2, 1])],
            ("pairs", "in1"): [logged(1, [1, 2])],
            ("last", "in1"): [made("window.out", 1, "0", 0, [0, 1, 2, 2, 1])],
        }
    )
    again = replay(log, {"pairs": Pairs(), "window": CountWindow(2), "last": PlainLogic()})
    event = made("last.out", 1, "in1", 0, [0, 1, 2, 2, 1])
    assert again.unpacked(event).payload == [0, 1, 2, 2, 1]
    assert log.asked == [("last", "in1"), ("window", "0"), ("pairs", "in1")], "each once"


def test_what_is_expected_is_read_together_and_what_it_is_made_of_too() -> None:
    numbers = range(1, 100)
    log = Log(
        {("pairs", f"in{n}"): [logged(n, [n])] for n in numbers}
        | {("last", f"in{n}"): [made("pairs.out", n, f"in{n}", 0, [n])] for n in numbers}
    )
    events = [made("last.out", n, f"in{n}", 0, [n]) for n in numbers]
    again = replay(log, {"pairs": Pairs(), "last": PlainLogic()})
    again.expect(events)
    assert [again.unpacked(event).payload for event in events] == [[n] for n in numbers]
    assert [(name, len(asked)) for name, *asked in log.asked] == [
        ("last", 64),
        ("pairs", 64),
        ("last", 35),
        ("pairs", 35),
    ]


class Counted(Pairs):
    """Counts how often it generates."""

    def __init__(self) -> None:
        self.calls = 0

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        self.calls += 1
        return super().generate(inset_id, held, state)


def several_insets() -> tuple[Log, list[Event]]:
    """What five events are made of, by an operator that gets each of four replayed events in each of its Input Sets."""
    four = range(1, 5)
    replayed = [made("pairs.out", n, f"in{n}", 0, [n]) for n in four]
    log = Log({("pairs", f"in{n}"): [logged(n, [n])] for n in four} | {("last", f"k{n}"): replayed for n in range(5)})
    values = [1, 2, 3, 4]
    return log, [made("last.out", n + 1, f"k{n}", 0, values) for n in range(5)]


class Joined(PlainLogic):
    def accumulate(self, held: Any | None, part: Any) -> Any:
        return [*(held or []), *part]

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        return (Emit("out", held, len(held)),)


def test_an_event_that_several_input_sets_use_is_made_once() -> None:
    log, events = several_insets()
    pairs = Counted()
    again = replay(log, {"pairs": pairs, "last": Joined()})
    again.expect(events)
    assert [again.unpacked(event).payload for event in events] == [[1, 2, 3, 4]] * 5
    assert pairs.calls == 4
    assert [asked[0] for asked in log.asked] == ["last", "pairs"]


def test_hints_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were given first are read when they are wanted."""
    monkeypatch.setattr("airflow_logio.protocol.replay.MOST_HINTS", 10)
    again = replay(Log({}), {})
    again.expect([made("pairs.out", number, f"in{number}", 0, [number]) for number in range(1, 31)])
    assert list(again._coming["pairs"]) == [f"in{number}" for number in range(21, 31)]


def test_what_is_kept_of_it_is_bounded_and_what_has_gone_is_made_again() -> None:
    log, events = several_insets()
    pairs = Counted()
    again = replay(log, {"pairs": pairs, "last": Joined()}, size=lambda _: MADE_BYTES // 3)
    assert [again.unpacked(event).payload for event in events] == [[1, 2, 3, 4]] * 5
    assert pairs.calls == 20
    assert again._made_bytes == sum(size for _, size in again._made.values()) <= MADE_BYTES
    assert not any(again._coming.values()), "no hint outlives what it was for"


def test_what_was_expected_and_is_gone_by_now_does_no_harm() -> None:
    log = Log({("pairs", "in2"): [logged(2, [2])]})
    again = replay(log, {"pairs": Pairs()})
    event = made("pairs.out", 2, "in2", 0, [2])
    again.expect([made("pairs.out", 1, "in1", 0, [1]), event])
    assert again.unpacked(event).payload == [2]


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (made("pairs.out", 9, "in1", 0, [1]), "other contents"),
        (made("pairs.out", 9, "in1", 2, [1, 2]), "2 events on this port"),
        (made("pairs.gone", 9, "in1", 0, [1, 2]), "0 events on this port"),
    ],
)
def test_another_result_is_refused_and_says_of_what(event: Event, says: str) -> None:
    log = Log({("pairs", "in1"): [logged(1, [1, 2])]})
    with pytest.raises(OperatorFailed, match=rf"'pairs': event 9 of {event.sender}.*'in1'.*{says}") as refused:
        replay(log, {"pairs": Pairs()}).unpacked(event)
    assert refused.value.at is not None
    assert (refused.value.at.operator, refused.value.at.inset_id) == ("pairs", "in1")


def test_what_is_offered_counts_only_if_it_is_the_same() -> None:
    log = Log({("pairs", "in1"): [logged(1, [1, 2])]})
    event = made("pairs.out", 1, "in1", 0, [1, 2])
    assert replay(log, {}, Offered([1, 2])).unpacked(event).payload == [1, 2]
    assert not log.asked
    assert replay(log, {"pairs": Pairs()}, Offered([2, 1])).unpacked(event).payload == [1, 2]
    assert log.asked


def test_what_is_offered_is_expected_and_not_read_together_with_what_is_not() -> None:
    log = Log({("pairs", name): [logged(1, [1, 2])] for name in ("in1", "in2")})
    offers = Offered([1, 2])
    events = [made("pairs.out", number, f"in{number}", 0, [1, 2]) for number in (1, 2)]
    unpacking = replay(log, {"pairs": Pairs()}, offers)
    unpacking.expect([logged(7, [1, 2]), *events])
    assert offers.expected == [1, 2], "the body of the other one is in the log"
    assert unpacking.unpacked(events[0]).payload == [1, 2]
    offers._payload = None  # the sender has ended
    assert unpacking.unpacked(events[1]).payload == [1, 2]
    assert log.asked == [("pairs", "in2")]


def test_what_was_read_ahead_is_forgotten_when_it_comes_directly() -> None:
    log = Log({("pairs", f"in{number}"): [logged(1, [1, 2])] for number in range(1, 9)})
    offers = Offered(None)
    events = [made("pairs.out", number, f"in{number}", 0, [1, 2]) for number in range(1, 9)]
    unpacking = replay(log, {"pairs": Pairs()}, offers)
    unpacking.expect(events)
    assert unpacking.unpacked(events[0]).payload == [1, 2]
    assert len(unpacking._read["pairs"]) == 7
    offers._payload = [1, 2]
    for event in events[1:]:
        assert unpacking.unpacked(event).payload == [1, 2]
    assert not unpacking._read["pairs"]
    assert len(log.asked) == 1


def test_a_generation_says_where_its_events_come_from_and_does_not_see_the_state() -> None:
    """The state that the window counts in is not the one that its generation gets."""
    into = Port("window", "in")
    group = GroupProtocol([operator("window", CountWindow(2), replay=True, **SCOPE)], {Port("window", "out"): ()})
    for event_id in (1, 2):
        group.deliver(into, Event(READ, event_id, Kind.DATA, 1, [event_id]))
    (event,) = [effect.event for effect in group.close_step() if isinstance(effect, LogEvent)]
    assert event.made_of == MadeOf("0", 0)
    assert event.payload == [0, 1, 2]


def test_events_of_other_operators_do_not_say_what_they_are_made_of() -> None:
    group = GroupProtocol([source("read", in_scope=True)], {READ: ()})
    group.begin_source("read", {})
    group.emit("read", [Emit("out", [1], 1)], 1)
    assert [effect.event.made_of for effect in group.close_step() if isinstance(effect, LogEvent)] == [None]
