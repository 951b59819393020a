"""Steps 5 and 6 of Algorithm 3 swapped: an Output Set is logged, its writes are done, then it is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import decode_state
from airflow_logio.protocol.effects import Delivery, LogEvent, Release, WritesDone
from airflow_logio.protocol.logic import Emit, Output, Write
from airflow_logio.protocol.values import Kind, Port
from tests.support.logics import EachEvent, Group, Writing, end, fed, of, operator

IN, OUT = Port("op", "in"), Port("op", "out")
SINK, OTHER = Port("sink", "in"), Port("other", "in")


class TwoConnections(EachEvent):
    """Values of one digit go to ``x``, of two to ``y``, of three to both, negative ones to none; one event each."""

    def assign(self, port: str, event: Any, state: dict[str, Any]) -> Mapping[str, Any]:
        return {str(event.event_id): list(event.payload)}

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        (value,) = held
        digits = len(str(value)) if value >= 0 else 0
        if digits in (1, 3):
            yield Write("x", {}, held, 1)
        if digits in (2, 3):
            yield Write("y", {}, held, 1)
        for _ in range(digits or 1):
            yield Emit("out", held, 1)


def group_of(logic: EachEvent, *receivers: Port) -> Group:
    group = Group([operator("op", logic, sends_after_writes=True)], {OUT: list(receivers or (SINK,))})
    group.resume()
    return group


def held(effects: fx.Effects) -> list[tuple[int, bool]]:
    return [(effect.event.event_id, effect.held) for effect in of(LogEvent, effects)]


def done(group: Group, connection: str, first: int, last: int) -> list[Release]:
    """The external system has applied these actions; what is sent for that."""
    group.protocol.writes_done("op", connection, first, last, records=last - first + 1)
    effects = group.protocol.close_step()
    assert of(WritesDone, effects) == [WritesDone("op", connection, first, last)]
    assert of(fx.StoreState, effects), "the outbox changes with the release, in one transaction"
    return of(Release, effects)


def test_an_event_is_held_until_its_write_action_is_done() -> None:
    group = group_of(Writing())
    assert held(group.step(fed(1, 5))) == [(1, True)]
    assert done(group, "wh", 1, 1) == [], "that was the opening action"
    assert done(group, "wh", 2, 2) == [Release(OUT, 1, 1, rows=1)]


def test_a_group_of_actions_releases_output_sets_in_order() -> None:
    group = group_of(Writing())
    group.step(fed(1, 5), fed(2, 6), fed(3, 7))
    assert done(group, "wh", 1, 3) == [Release(OUT, 1, 1, 1), Release(OUT, 2, 2, 1)]
    assert done(group, "wh", 4, 4) == [Release(OUT, 3, 3, 1)]


def test_rows_are_counted_per_receiver() -> None:
    group = group_of(Writing(), SINK, OTHER)
    effects = group.step(fed(1, 5))
    assert of(LogEvent, effects)[0].deliveries == (Delivery(SINK), Delivery(OTHER))
    assert done(group, "wh", 1, 2) == [Release(OUT, 1, 1, rows=2)]


def test_an_output_set_without_writes_waits_for_those_before_it_only() -> None:
    group = group_of(TwoConnections())
    assert held(group.step(fed(1, -1))) == [(1, False)], "no write is before it"
    assert held(group.step(fed(2, 5), fed(3, -1))) == [(2, True), (3, True)]
    assert done(group, "x", 1, 1) == [Release(OUT, 2, 2, 1), Release(OUT, 3, 3, 1)]
    assert held(group.step(fed(4, -1))) == [(4, False)]


def test_an_output_set_with_writes_on_two_connections_waits_for_both() -> None:
    group = group_of(TwoConnections())
    group.step(fed(1, 100), fed(2, 10), fed(3, 1))
    assert done(group, "y", 1, 2) == []
    assert done(group, "x", 1, 1) == [Release(OUT, 1, 3, 3), Release(OUT, 4, 5, 2)]
    assert done(group, "x", 2, 2) == [Release(OUT, 6, 6, 1)]


def test_the_end_of_the_stream_waits_too_and_the_group_is_not_finished_before() -> None:
    group = group_of(Writing())
    effects = group.step(fed(1, 5), end(2))
    assert [(effect.event.kind, effect.held) for effect in of(LogEvent, effects)] == [
        (Kind.DATA, True),
        (Kind.END, True),
    ]
    assert not group.protocol.is_finished()
    assert done(group, "wh", 1, 2) == [Release(OUT, 1, 1, 1), Release(OUT, 2, 2, 1)]
    assert group.protocol.is_finished()


def test_the_end_is_sent_at_once_if_nothing_waits() -> None:
    group = group_of(TwoConnections())
    assert held(group.step(end(1))) == [(1, False)]


def test_what_waits_survives_in_the_stored_context() -> None:
    group = group_of(TwoConnections())
    (state,) = of(fx.StoreState, group.step(fed(1, 100), fed(2, -1)))
    outbox = decode_state("op", state.data).context.outbox
    assert [(one.writes, one.events) for one in outbox] == [({"x": 1, "y": 1}, {"out": (1, 3)}), ({}, {"out": (4, 4)})]
    again = Group(group.specs, group.receivers)
    again.protocol.operators["op"].restore(state.data)
    again.resume()
    assert done(again, "y", 1, 1) == []
    assert done(again, "x", 1, 1) == [Release(OUT, 1, 3, 3), Release(OUT, 4, 4, 1)]


def test_a_receiver_of_the_same_group_gets_it_from_the_log() -> None:
    """From hand to hand it would come before the write."""
    specs = [operator("op", Writing(), sends_after_writes=True), operator("next", EachEvent())]
    group = Group(specs, {OUT: [Port("next", "in")], Port("next", "out"): [SINK]})
    group.resume()
    effects = group.step(fed(1, 5))
    assert [effect.deliveries for effect in of(LogEvent, effects)] == [(Delivery(Port("next", "in")),)]
    assert group.protocol.inputs_from_log() == [IN, Port("next", "in")]


def test_an_operator_that_does_not_ask_for_it_sends_at_once() -> None:
    group = Group([operator("op", Writing())], {OUT: [SINK]})
    group.resume()
    assert held(group.step(fed(1, 5))) == [(1, False)]
    group.protocol.writes_done("op", "wh", 1, 2, 1)
    assert of(Release, group.protocol.close_step()) == []
