"""The stored context: ids, marks, closed Input Sets, and what comes back of it."""

from __future__ import annotations

import pytest

from airflow_logio.errors import LogInconsistent, ProtocolViolation
from airflow_logio.protocol.context import ClosedInputSets, Context, HeldOutput, decode_state, encode_state
from airflow_logio.protocol.values import Event, Port


def test_the_filter_is_less_than_or_equal() -> None:
    context = Context(marks={"in": 3})
    assert [context.is_obsolete("in", n) for n in (1, 2, 3, 4)] == [True, True, True, False]
    assert not context.is_obsolete("other", 1)


@pytest.mark.parametrize(("port", "event_id"), [("in", 5), ("other", 2)])
def test_a_gap_is_refused(port: str, event_id: int) -> None:
    context = Context(marks={"in": 3})
    with pytest.raises(ProtocolViolation, match=f"received event {event_id}, but the next one is {event_id - 1}"):
        context.is_obsolete(port, event_id)
    assert context == Context(marks={"in": 3})


def test_ids_count_from_one_each_by_itself() -> None:
    context = Context()
    assert [context.allocate_event("a"), context.allocate_event("a"), context.allocate_event("b")] == [1, 2, 1]
    assert [context.allocate_write("wh"), context.allocate_write("wh"), context.allocate_write("other")] == [1, 2, 1]
    assert [context.allocate_state(), context.allocate_state()] == [1, 2]
    assert [context.allocate_action(), context.allocate_action()] == [1, 2]


def test_closed_in_an_order() -> None:
    closed = ClosedInputSets()
    assert not closed.holds("a", "", 0)
    closed.add("a", "", 5)
    closed.add("b", "", 3)
    assert [closed.holds("x", "", order) for order in (3, 4, 5, 6)] == [True, True, True, False]
    assert closed.exceptions == set(), "an order needs one number, however many Input Sets there were"


def test_closed_without_an_order() -> None:
    closed = ClosedInputSets()
    closed.add("a", "", None)
    assert closed.holds("a", "", None)
    assert not closed.holds("b", "", None)


def test_a_state_comes_back_whole() -> None:
    context = Context(
        marks={"in": 3},
        ended={"in"},
        next_event={"out": 7},
        next_write={"wh": 2},
        next_state=4,
        next_action=5,
        triggered=["B", "A"],
        state_events={"B": 3},
        closed=ClosedInputSets({"": "k", "f": 3}, {"x", "y"}),
        written={"wh": 1},
        outbox=[HeldOutput({"wh": 2}, {"out": (5, 6)})],
        aside=["C"],
        opened=True,
        finished=True,
    )
    state = {"seen": 1, "names": ["a"], "deep": {"x": None}, "bytes": b"\0"}
    stored = decode_state("op", encode_state(context, state))
    assert (stored.context, stored.state) == (context, state)


def test_the_same_state_has_the_same_bytes() -> None:
    names = [f"n{n}" for n in range(50)]
    one = Context(closed=ClosedInputSets({}, set(names)), marks={"a": 1, "b": 2})
    two = Context(closed=ClosedInputSets({}, set(reversed(names))), marks={"b": 2, "a": 1})
    assert encode_state(one, {"x": 1, "y": 2}) == encode_state(two, {"y": 2, "x": 1})


def test_a_stored_state_does_not_change_with_the_living_one() -> None:
    context, state = Context(), {"seen": [1]}
    data = encode_state(context, state)
    context.marks["in"] = 9
    state["seen"].append(2)
    assert decode_state("op", data).state == {"seen": [1]}
    assert decode_state("op", data).context == Context()


@pytest.mark.parametrize("data", [b"", b"garbage", b"\x80", encode_state(Context(), {})[:-1], b"\x80\x04N."])
def test_what_is_no_state_is_refused_and_named(data: bytes) -> None:
    with pytest.raises(LogInconsistent, match="operator 'totals'"):
        decode_state("totals", data)


def test_event_ids_begin_at_one() -> None:
    with pytest.raises(ValueError, match=r"event id of a\.out must be at least 1, got 0"):
        Event(Port("a", "out"), 0)
