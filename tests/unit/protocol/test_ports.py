"""A declared order over input ports: whose turn it is, in normal processing and when events are reloaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Acknowledge
from airflow_logio.protocol.recovery import LoggedEvent, PortOrder, reload_order
from airflow_logio.protocol.values import Port
from tests.support.logics import CountWindow, EachEvent, Group, InSequence, end, fed, of, operator, produced

A, B, OUT = Port("op", "a"), Port("op", "b"), Port("op", "out")
SINK = Port("sink", "in")

patterns = st.lists(st.sampled_from("abc"), min_size=1, max_size=6)


def turns(pattern: Sequence[str], length: int) -> list[tuple[str, int]]:
    """(port, event_id) of the first events in order, by going round and round."""
    used = dict.fromkeys(pattern, 0)
    sequence = []
    for step in range(length):
        port = pattern[step % len(pattern)]
        used[port] += 1
        sequence.append((port, used[port]))
    return sequence


@given(patterns)
def test_places_are_in_the_order_of_the_turns(pattern: list[str]) -> None:
    order = PortOrder(pattern)
    sequence = turns(pattern, 3 * len(pattern))
    places = [order.place(port, event_id) for port, event_id in sequence]
    assert places == sorted(places)
    assert len(set(places)) == len(places)


@given(patterns)
def test_the_next_port_follows_from_the_marks_alone(pattern: list[str]) -> None:
    order = PortOrder(pattern)
    marks: dict[str, int] = {}
    for port, event_id in turns(pattern, 3 * len(pattern)):
        assert order.next_port(marks, ()) == port
        marks[port] = event_id
    assert order.next_port(marks, set(pattern)) is None


def test_a_port_that_has_ended_is_passed_over() -> None:
    order = PortOrder("aabc")
    assert order.next_port({"a": 1}, {"a"}) == "b"
    assert order.next_port({"a": 1, "b": 5}, {"a"}) == "c"
    assert order.next_port({"a": 1, "b": 5, "c": 5}, {"a"}) == "b"


def rows(**ids: Sequence[int]) -> list[LoggedEvent]:
    return [
        LoggedEvent(Port("op", port), fed(event_id, event_id), "X") for port, some in ids.items() for event_id in some
    ]


def reloaded(acknowledged: Sequence[LoggedEvent], orders: Mapping[str, PortOrder]) -> list[tuple[str, int]]:
    return [(row.receiver.name, row.event.event_id) for row in reload_order(acknowledged, orders)]


@given(patterns, st.data())
def test_events_are_reloaded_in_the_declared_order_however_many_are_done_already(
    pattern: list[str], data: st.DataObject
) -> None:
    sequence = turns(pattern, 4 * len(pattern))
    undone = data.draw(st.lists(st.sampled_from(sequence), unique=True))
    by_port = {port: sorted(event_id for p, event_id in undone if p == port) for port in set(pattern)}
    wanted = [pair for pair in sequence if pair in undone]
    assert reloaded(rows(**by_port), {"op": PortOrder(pattern)}) == wanted


def test_without_an_order_ports_take_turns() -> None:
    """Algorithm 9 Step 2: round robin."""
    assert reloaded(rows(a=[2, 5, 6], b=[1]), {}) == [("a", 2), ("b", 1), ("a", 5), ("a", 6)]


def test_rows_of_one_event_stay_together_and_operators_apart() -> None:
    more = [LoggedEvent(A, fed(2, 2), inset_id) for inset_id in ("X", "Y")]
    other = [LoggedEvent(Port("other", "in"), fed(1, 1), "Z")]
    ordered = reload_order([*more, *rows(b=[1]), *other], {"op": PortOrder("ab")})
    assert [(str(row.receiver), row.event.event_id, row.inset_id) for row in ordered] == [
        ("op.b", 1, "X"),
        ("op.a", 2, "X"),
        ("op.a", 2, "Y"),
        ("other.in", 1, "Z"),
    ]


# --- in the operator --------------------------------------------------------------------------------------------------


def in_order() -> Group:
    spec = operator("op", InSequence(3), inputs=("a", "b"), port_order=("a", "b", "b"))
    return Group([spec], {OUT: [SINK]})


def test_an_event_out_of_turn_is_refused() -> None:
    group = in_order()
    group.step(fed(1, 1), receiver=A)
    with pytest.raises(ProtocolViolation, match="event 2 of port 'a' came when port 'b' was due"):
        group.step(fed(2, 2), receiver=A)


def test_an_obsolete_event_is_discarded_whoever_is_due() -> None:
    group = in_order()
    group.step(fed(1, 1), receiver=A)
    assert not group.protocol.deliver(A, fed(1, 1))


def test_events_used_in_turn_and_ends_passed_over() -> None:
    group = in_order()
    group.step(fed(1, 1), receiver=A)
    assert group.protocol.operators["op"].next_port() == "b"
    group.step(fed(1, 2), receiver=B)
    assert produced(group.step(fed(2, 3), receiver=B)) == [("op.out", 1, [["a", 1], ["b", 2], ["b", 3]])]
    group.step(end(2), receiver=A)
    group.step(fed(3, 4), receiver=B)
    assert group.protocol.operators["op"].next_port() == "b", "a has ended"
    effects = group.step(fed(4, 5), fed(5, 6), end(6), receiver=B)
    assert [row[1:] for row in produced(effects)] == [(2, [["b", 4], ["b", 5], ["b", 6]]), (3, None)]
    assert group.protocol.operators["op"].next_port() is None


def test_an_operator_without_an_order_has_no_next_port() -> None:
    group = Group([operator("op", CountWindow(3), inputs=("a", "b"))])
    assert group.protocol.operators["op"].next_port() is None


def test_the_chain_is_cut_before_an_ordered_operator() -> None:
    """Its events are pulled from the log when it is their turn, also from a sender of the same group."""
    first = operator("op", EachEvent(), inputs=("a",))
    second = operator("next", InSequence(9), inputs=("x", "y"), port_order=("y", "x"))
    group = Group([first, second], {OUT: [Port("next", "x")], Port("next", "out"): [SINK]})
    assert group.protocol.inputs_from_log() == [A, Port("next", "x"), Port("next", "y")]
    effects = group.step(fed(1, 7), receiver=A)
    (logged,) = of(fx.LogEvent, effects)
    assert logged.deliveries == (fx.Delivery(Port("next", "x")),)
    assert not [effect for effect in of(Acknowledge, effects) if effect.receiver.operator == "next"]
    group.step(fed(1, 8), receiver=Port("next", "y"))
    assert of(Acknowledge, group.step(logged.event, receiver=Port("next", "x")))
