"""Algorithms 2, 3 and 9 step by step: what each step wants in the log."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import decode_state
from airflow_logio.protocol.effects import Acknowledge, MarkDone
from airflow_logio.protocol.logic import Emit, OperatorSpec, Read
from airflow_logio.protocol.values import Kind, Port, Status
from tests.support.logics import (
    CountWindow,
    CountWindowWithState,
    EachEvent,
    Group,
    Reading,
    Spans,
    TwoCounts,
    Writing,
    end,
    fed,
    of,
    operator,
    produced,
)

UNDONE, DONE = Status.UNDONE, Status.DONE
IN, OUT = Port("op", "in"), Port("op", "out")
SINK = Port("sink", "in")
TO_SINK = {OUT: [SINK]}


def acknowledged(effects: fx.Effects) -> dict[int, tuple[tuple[str, Status], ...]]:
    return {effect.event_id: effect.assignments for effect in of(Acknowledge, effects)}


def stored(effects: fx.Effects, name: str) -> Any:
    (effect,) = [effect for effect in of(fx.StoreState, effects) if effect.operator == name]
    return decode_state(name, effect.data)


# --- Algorithm 2 ------------------------------------------------------------------------------------------------------


def test_an_event_is_assigned_and_the_state_goes_with_it() -> None:
    group = Group([operator("op", CountWindow(3))], TO_SINK)
    effects = group.step(fed(1, 5), fed(2, 6))
    assert acknowledged(effects) == {1: (("000000", UNDONE),), 2: (("000000", UNDONE),)}
    assert of(MarkDone, effects) == []
    assert produced(effects) == []
    state = stored(effects, "op")
    assert (state.state, state.context.marks) == ({"seen": 2}, {"in": 2})


def test_an_obsolete_event_is_discarded_without_a_trace() -> None:
    group = Group([operator("op", CountWindow(3))], TO_SINK)
    group.step(fed(1, 5), fed(2, 6))
    assert not group.protocol.deliver(IN, fed(2, 6))
    assert not group.protocol.deliver(IN, fed(1, 5))
    assert group.protocol.close_step() == []


def test_a_gap_is_refused() -> None:
    group = Group([operator("op", CountWindow(3))], TO_SINK)
    group.step(fed(1, 5))
    with pytest.raises(ProtocolViolation, match="received event 3, but the next one is 2"):
        group.protocol.deliver(IN, fed(3, 7))


def test_an_event_that_spans_windows_is_part_of_each() -> None:
    group = Group([operator("op", Spans())], TO_SINK)
    effects = group.step(fed(1, 8, 12))
    assert acknowledged(effects) == {1: (("000000", DONE), ("000001", UNDONE))}
    assert produced(effects) == [("op.out", 1, [8])]


def test_an_event_of_no_input_set_is_done_at_once() -> None:
    group = Group([operator("op", EachEvent())], TO_SINK)
    effects = group.step(fed(1, -1))
    assert acknowledged(effects) == {1: ()}
    assert stored(effects, "op").context.marks == {"in": 1}


def test_an_assignment_to_a_closed_input_set_is_refused() -> None:
    group = Group([operator("op", Spans())], TO_SINK)
    group.step(fed(1, 8), fed(2, 25))
    with pytest.raises(ProtocolViolation, match=r"op\.in event 3 .*'000000', which is closed"):
        group.step(fed(3, 9))


def test_an_assignment_to_an_input_set_that_was_never_there_but_is_below_the_mark_is_refused() -> None:
    group = Group([operator("op", Spans())], TO_SINK)
    group.step(fed(1, 25), fed(2, 35))
    with pytest.raises(ProtocolViolation, match="'000001', which is closed"):
        group.step(fed(3, 19))


def test_an_assignment_to_a_triggered_input_set_is_refused() -> None:
    group = Group([operator("op", Spans(), asynchronous=True)], TO_SINK)
    group.step(fed(1, 8), fed(2, 25))
    with pytest.raises(ProtocolViolation, match="'000000', which is triggered"):
        group.step(fed(3, 9))


def test_two_input_ports_have_marks_of_their_own() -> None:
    group = Group([operator("op", CountWindow(3), inputs=("left", "right"))], TO_SINK)
    left, right = Port("op", "left"), Port("op", "right")
    group.protocol.deliver(left, fed(1, 1))
    group.protocol.deliver(right, fed(1, 2))
    group.protocol.deliver(left, fed(2, 3))
    effects = group.protocol.close_step()
    assert stored(effects, "op").context.marks == {"left": 2, "right": 1}
    assert produced(effects) == [("op.out", 1, [1, 2, 3])]


# --- Algorithm 3 ------------------------------------------------------------------------------------------------------


def test_rows_of_this_step_are_born_done_and_earlier_ones_are_marked() -> None:
    group = Group([operator("op", CountWindow(3))], TO_SINK)
    group.step(fed(1, 5), fed(2, 6))
    effects = group.step(fed(3, 7))
    assert acknowledged(effects) == {3: (("000000", DONE),)}
    assert of(MarkDone, effects) == [MarkDone("op", "000000", 2)]
    assert produced(effects) == [("op.out", 1, [5, 6, 7])]
    (logged,) = of(fx.LogEvent, effects)
    assert logged.deliveries == (fx.Delivery(SINK),)
    assert stored(effects, "op").context.next_event == {"out": 2}


def test_one_step_may_hold_several_output_sets() -> None:
    group = Group([operator("op", CountWindow(2))], TO_SINK)
    effects = group.step(*[fed(n, n) for n in range(1, 6)])
    assert [payload for _, _, payload in produced(effects)] == [[1, 2], [3, 4]]
    assert acknowledged(effects)[5] == (("000002", UNDONE),)
    assert of(MarkDone, effects) == []


def test_two_functions_over_the_same_events() -> None:
    group = Group([operator("op", TwoCounts())], TO_SINK)
    effects = group.step(fed(1, 1), fed(2, 2))
    assert acknowledged(effects) == {
        1: (("a000000", DONE), ("b000000", UNDONE)),
        2: (("a000000", DONE), ("b000000", UNDONE)),
    }
    effects = group.step(fed(3, 3))
    assert of(MarkDone, effects) == [MarkDone("op", "b000000", 2)]
    assert stored(effects, "op").context.closed.exceptions == {"a000000", "b000000"}


def test_a_state_event_keeps_the_state_of_the_trigger() -> None:
    """The trigger commits first, the generation comes a step later and sees the earlier state."""
    spec = operator("op", CountWindowWithState(2), reads_state=True, asynchronous=True)
    group = Group([spec], TO_SINK)
    effects = group.step(fed(1, 1), fed(2, 2), fed(3, 3))
    (state_event,) = of(fx.LogStateEvent, effects)
    assert (state_event.inset_id, state_event.status) == ("000000", UNDONE)
    assert decode_state("op", state_event.data).state == {"seen": 2}
    context = stored(effects, "op").context
    assert (context.triggered, context.state_events, context.next_state) == (["000000"], {"000000": 1}, 2)
    outputs = list(group.protocol.operators["op"].generate("000000"))
    group.protocol.generated("op", [("000000", outputs)])
    effects = group.protocol.close_step()
    assert produced(effects) == [("op.out", 1, [1, 2, 2])]
    assert of(MarkDone, effects) == [MarkDone("op", "000000", 3)], "two events and the state event"
    assert stored(effects, "op").context.state_events == {}


@pytest.mark.parametrize("in_scope", [True, False])
def test_a_state_event_that_is_done_in_its_step_is_kept_for_lineage_only(in_scope: bool) -> None:
    scope: dict[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})} if in_scope else {}
    group = Group([operator("op", CountWindowWithState(2), reads_state=True, **scope)], TO_SINK)
    effects = group.step(fed(1, 1), fed(2, 2))
    assert [effect.status for effect in of(fx.LogStateEvent, effects)] == ([DONE] if in_scope else [])
    assert of(MarkDone, effects) == []
    assert produced(effects) == [("op.out", 1, [1, 2, 2])]


def test_a_job_gets_input_sets_once_and_ends_as_a_step_of_its_own() -> None:
    group = Group([operator("op", CountWindow(2), asynchronous=True)], TO_SINK)
    effects = group.step(*[fed(n, n) for n in range(1, 5)])
    assert produced(effects) == []
    assert stored(effects, "op").context.triggered == ["000000", "000001"]
    protocol = group.protocol.operators["op"]
    assert group.protocol.start_job("op", protocol.next_triggered()) == [("000000", [1, 2]), ("000001", [3, 4])]
    assert protocol.next_triggered() == []
    group.step(fed(5, 5))
    group.protocol.generated("op", [("000000", [Emit("out", "first", 1)]), ("000001", [])])
    effects = group.protocol.close_step()
    assert produced(effects) == [("op.out", 1, "first")]
    assert of(MarkDone, effects) == [MarkDone("op", "000000", 2), MarkDone("op", "000001", 2)]
    state = stored(effects, "op")
    assert (state.context.triggered, state.state) == ([], {"seen": 5}), "the state of the end, not of the start"


def test_what_was_not_triggered_cannot_be_generated() -> None:
    group = Group([operator("op", CountWindow(2), asynchronous=True)], TO_SINK)
    group.step(fed(1, 1))
    with pytest.raises(ProtocolViolation, match="'000000', which was not triggered"):
        group.protocol.generated("op", [("000000", [])])


def test_a_port_that_does_not_exist_is_refused() -> None:
    group = Group([operator("op", CountWindow(2), asynchronous=True)], TO_SINK)
    group.step(fed(1, 1), fed(2, 2))
    with pytest.raises(ProtocolViolation, match="port 'elsewhere'"):
        group.protocol.generated("op", [("000000", [Emit("elsewhere", [], 0)])])


def test_an_output_nobody_receives_is_not_logged() -> None:
    effects = Group([operator("op", CountWindow(1))]).step(fed(1, 1))
    assert of(fx.LogEvent, effects) == []
    assert stored(effects, "op").context.next_event == {"out": 2}, "but it was made"


# --- fusion (design D4) -----------------------------------------------------------------------------------------------


def chain(first: Any, second: Any, **settings: Any) -> Group:
    specs = [operator("op", first), operator("next", second, **settings)]
    return Group(specs, {OUT: [Port("next", "in")], Port("next", "out"): [SINK]})


def test_an_event_that_a_fused_operator_has_used_needs_no_row() -> None:
    effects = chain(EachEvent(), EachEvent()).step(fed(1, 1), fed(2, 2))
    assert produced(effects) == [("next.out", 1, [1]), ("next.out", 2, [2])]


def test_an_event_that_a_fused_operator_holds_gets_its_rows() -> None:
    group = chain(EachEvent(), CountWindow(2))
    effects = group.step(fed(1, 1))
    (logged,) = of(fx.LogEvent, effects)
    assert logged.event.sender == OUT
    assert logged.deliveries == (fx.Delivery(Port("next", "in"), (("000000", UNDONE),), fused=True),)
    effects = group.step(fed(2, 2))
    assert produced(effects) == [("next.out", 1, [1, 2])], "the second event was used in its own step"
    assert of(MarkDone, effects) == [MarkDone("next", "000000", 1)]


def test_a_fused_event_that_is_partly_held_gets_all_its_rows() -> None:
    effects = chain(EachEvent(), TwoCounts()).step(fed(1, 1), fed(2, 2))
    assert [logged.deliveries[0].assignments for logged in of(fx.LogEvent, effects)[:2]] == [
        (("a000000", DONE), ("b000000", UNDONE)),
        (("a000000", DONE), ("b000000", UNDONE)),
    ]


def test_a_port_with_a_fused_and_a_remote_receiver() -> None:
    specs = [operator("op", EachEvent()), operator("next", EachEvent())]
    group = Group(specs, {OUT: [Port("next", "in"), SINK]})
    (logged,) = of(fx.LogEvent, group.step(fed(1, 1)))
    assert logged.deliveries == (fx.Delivery(SINK),)


def test_every_operator_that_a_step_has_changed_stores_its_state() -> None:
    effects = chain(EachEvent(), CountWindow(2)).step(fed(1, 1))
    assert [effect.operator for effect in of(fx.StoreState, effects)] == ["op", "next"]


# --- lineage (Section 3.1) --------------------------------------------------------------------------------------------


def test_lineage_rows_name_output_event_and_input_set() -> None:
    scope: dict[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})}
    effects = Group([operator("op", CountWindow(2), **scope)], TO_SINK).step(*[fed(n, n) for n in range(1, 6)])
    assert of(fx.RecordLineage, effects) == [
        fx.RecordLineage(OUT, 1, "000000"),
        fx.RecordLineage(OUT, 2, "000001"),
    ]


@pytest.mark.parametrize(("inside", "outside"), [((), ("out",)), (("in",), ())])
def test_no_lineage_unless_input_and_output_are_in_scope(inside: tuple[str, ...], outside: tuple[str, ...]) -> None:
    spec = operator("op", CountWindow(2), lineage_in=frozenset(inside), lineage_out=frozenset(outside))
    assert of(fx.RecordLineage, Group([spec], TO_SINK).step(fed(1, 1), fed(2, 2))) == []


def test_lineage_asks_whether_the_input_set_holds_an_event_of_a_port_in_scope() -> None:
    scope: dict[str, Any] = {"lineage_in": frozenset({"left"}), "lineage_out": frozenset({"out"})}
    group = Group([operator("op", CountWindow(2), inputs=("left", "right"), **scope)], TO_SINK)
    left, right = Port("op", "left"), Port("op", "right")
    for port, event_id in ((right, 1), (right, 2), (right, 3), (left, 1)):
        group.protocol.deliver(port, fed(event_id, event_id))
    assert of(fx.RecordLineage, group.protocol.close_step()) == [fx.RecordLineage(OUT, 2, "000001")]


def test_fused_events_in_scope_are_logged_for_the_lineage_join() -> None:
    scope: dict[str, Any] = {"lineage_in": frozenset({"in"}), "lineage_out": frozenset({"out"})}
    specs = [operator("op", EachEvent(), **scope), operator("next", EachEvent(), **scope)]
    group = Group(specs, {OUT: [Port("next", "in")]})
    effects = group.step(fed(1, 7))
    first, second = of(fx.LogEvent, effects)
    assert first.deliveries == (fx.Delivery(Port("next", "in"), (("in:1", DONE),), fused=True, kept=True),)
    assert second.deliveries == (), "the target of a scope is logged also without a receiver"
    assert len(of(fx.RecordLineage, effects)) == 2


@pytest.mark.parametrize("in_scope", [True, False])
def test_a_read_is_logged_where_lineage_asks_for_it(in_scope: bool) -> None:
    scope: dict[str, Any] = {"lineage_out": frozenset({"out"})} if in_scope else {}
    effects = Group([operator("op", Reading(), **scope)], TO_SINK).step(fed(1, 1))
    reads = of(fx.LogRead, effects)
    assert [(read.action_id, read.inset_ids) for read in reads] == ([(1, ("in:1",))] if in_scope else [])
    assert len(of(fx.RecordLineage, effects)) == int(in_scope), "the read is the origin here"


def test_a_job_logs_one_read_action_with_a_row_per_input_set() -> None:
    spec = operator("op", CountWindow(1), asynchronous=True, lineage_out=frozenset({"out"}))
    group = Group([spec], TO_SINK)
    group.step(fed(1, 1), fed(2, 2))
    results = [(inset, [Emit("out", inset, 1)]) for inset in ("000000", "000001")]
    group.protocol.generated("op", results, [Read("wh", {"table": "products"}, [1], 1)])
    (read,) = of(fx.LogRead, group.protocol.close_step())
    assert (read.action_id, read.inset_ids) == (1, ("000000", "000001"))


# --- write actions ----------------------------------------------------------------------------------------------------


def test_opening_writes_are_logged_once_per_run() -> None:
    group = Group([operator("op", Writing())], TO_SINK)
    (opening,) = of(fx.LogWrite, group.resume())
    assert (opening.connection, opening.number, opening.header) == ("wh", 1, {"clear": True})
    effects = group.step(fed(1, 5))
    assert [write.number for write in of(fx.LogWrite, effects)] == [2]
    again = Group([operator("op", Writing())], TO_SINK)
    again.protocol.operators["op"].restore(of(fx.StoreState, effects)[0].data)
    assert of(fx.LogWrite, again.resume()) == []


def test_done_writes_are_marked_and_counted() -> None:
    group = Group([operator("op", Writing())], TO_SINK)
    group.protocol.writes_done("op", "wh", 3, 5, records=12)
    assert group.protocol.close_step() == [
        fx.WritesDone("op", "wh", 3, 5),
        fx.CountEvents(Port("op", "wh"), "write", 3, 12),
    ]


# --- end of stream ----------------------------------------------------------------------------------------------------


def test_the_end_flushes_and_is_passed_on() -> None:
    group = Group([operator("op", CountWindow(2))], TO_SINK)
    group.step(fed(1, 1), fed(2, 2), fed(3, 3))
    effects = group.step(end(4))
    kinds = [(effect.event.event_id, effect.event.kind) for effect in of(fx.LogEvent, effects)]
    assert kinds == [(2, Kind.DATA), (3, Kind.END)]
    assert stored(effects, "op").context.finished
    assert group.protocol.is_finished()
    assert acknowledged(effects) == {4: ()}


def test_the_end_waits_for_every_port_and_for_every_job() -> None:
    spec = operator("op", CountWindow(2), inputs=("left", "right"), asynchronous=True)
    group = Group([spec], TO_SINK)
    group.protocol.deliver(Port("op", "left"), fed(1, 1))
    group.protocol.deliver(Port("op", "left"), end(2))
    assert not stored(group.protocol.close_step(), "op").context.finished
    group.protocol.deliver(Port("op", "right"), end(1))
    effects = group.protocol.close_step()
    assert stored(effects, "op").context.triggered == ["000000"], "flushed, and not generated yet"
    assert not group.protocol.is_finished()
    group.protocol.generated("op", [("000000", [Emit("out", "rest", 1)])])
    assert [event.event.kind for event in of(fx.LogEvent, group.protocol.close_step())] == [Kind.DATA, Kind.END]
    assert group.protocol.is_finished()


def test_the_end_runs_through_a_fused_chain() -> None:
    group = chain(CountWindow(2), CountWindow(2))
    effects = group.step(fed(1, 1), end(2))
    assert produced(effects) == [("next.out", 1, [1]), ("next.out", 2, None)]
    assert group.protocol.is_finished()
    assert group.protocol.close_step() == []


def test_an_operator_without_outputs_ends_too() -> None:
    spec = operator("op", CountWindow(2))
    group = Group([spec], {})
    group.step(end(1))
    assert group.protocol.is_finished()
    group.protocol.finish()
    assert group.protocol.close_step() == [fx.FinishGroup()]


# --- sources (Algorithm 1 for replayable read actions) ----------------------------------------------------------------


def source_group() -> Group:
    return Group([OperatorSpec("op", (), ("out",), None)], TO_SINK)


def test_a_source_logs_its_action_once_its_offset_with_each_event_and_its_end() -> None:
    group = source_group()
    group.protocol.begin_source("op", {"path": "p"})
    group.protocol.begin_source("op", {"path": "other"})
    effects = group.protocol.close_step()
    assert of(fx.StartReadAction, effects) == [fx.StartReadAction("op", "source", 1, {"path": "p"})]
    group.protocol.emit("op", [Emit("out", [1, 2], 2)], offset=2)
    effects = group.protocol.close_step()
    assert produced(effects) == [("op.out", 1, [1, 2])]
    assert stored(effects, "op").state["offset"] == 2
    group.protocol.end_source("op")
    effects = group.protocol.close_step()
    assert of(fx.CompleteReadAction, effects) == [fx.CompleteReadAction("op", "source", 1)]
    assert [event.event.kind for event in of(fx.LogEvent, effects)] == [Kind.END]
    assert group.protocol.is_finished()


def test_a_source_resumes_at_the_offset_of_its_last_event() -> None:
    group = source_group()
    group.protocol.begin_source("op", {"path": "p"})
    group.protocol.emit("op", [Emit("out", [1], 1)], offset=7)
    (state,) = of(fx.StoreState, group.protocol.close_step())
    group = source_group()
    group.protocol.operators["op"].restore(state.data)
    group.resume()
    source = group.protocol.source("op")
    assert (source.offset, source.action) == (7, {"path": "p"})
    group.protocol.emit("op", [Emit("out", [2], 1)], offset=8)
    assert produced(group.protocol.close_step()) == [("op.out", 2, [2])]
    with pytest.raises(ProtocolViolation, match="went back from offset 8 to 3"):
        group.protocol.emit("op", [], offset=3)


def test_only_a_source_is_a_source() -> None:
    with pytest.raises(ProtocolViolation, match="'op' is not a source"):
        Group([operator("op", EachEvent())]).protocol.begin_source("op", {})


# --- Algorithm 9 ------------------------------------------------------------------------------------------------------


def rebuilt(old: Group, effects: fx.Effects, *events: tuple[int, str, int]) -> Group:
    """A group with the states of `effects`; then (event_id, Input Set, value) are reloaded."""
    group = Group(old.specs, old.receivers)
    protocol = group.protocol.operators["op"]
    (state,) = of(fx.StoreState, effects)
    protocol.restore(state.data)
    for state_event in of(fx.LogStateEvent, effects):
        protocol.restore_snapshot(state_event.inset_id, state_event.data)
    for event_id, inset_id, value in events:
        protocol.reload("in", fed(event_id, value), inset_id)
    return group


def test_reloading_triggers_nothing_and_what_was_triggered_is_generated_first() -> None:
    """Hole H2: a count condition that is evaluated while events are reloaded would see 1 of 2 events."""
    group = Group([operator("op", TwoCounts(), asynchronous=True)], TO_SINK)
    effects = group.step(fed(1, 1), fed(2, 2), fed(3, 3))
    assert stored(effects, "op").context.triggered == ["a000000", "b000000"]
    rows = [(n, f"{name}000000", n) for n in (1, 2) for name in "ab"]
    again = rebuilt(group, effects, *rows, (3, "a000001", 3), (3, "b000000", 3))
    resumed = again.resume()
    protocol = again.protocol.operators["op"]
    assert protocol.next_triggered() == ["a000000", "b000000"]
    assert {inset: protocol.triggered[inset].held for inset in protocol.triggered} == {
        "a000000": [1, 2],
        "b000000": [1, 2, 3],
    }
    assert of(MarkDone, resumed) == []
    again.protocol.generated("op", [("a000000", []), ("b000000", [])])
    done = of(MarkDone, again.protocol.close_step())
    assert done == [MarkDone("op", "a000000", 2), MarkDone("op", "b000000", 3)]


def test_a_rebuilt_generation_sees_the_state_of_the_trigger() -> None:
    spec = operator("op", CountWindowWithState(2), reads_state=True, asynchronous=True)
    group = Group([spec], TO_SINK)
    effects = group.step(fed(1, 1), fed(2, 2), fed(3, 3))
    again = rebuilt(group, effects, (1, "000000", 1), (2, "000000", 2), (3, "000001", 3))
    again.resume()
    (emitted,) = again.protocol.operators["op"].generate("000000")
    assert isinstance(emitted, Emit)
    assert emitted.payload == [1, 2, 2]
    again.protocol.generated("op", [("000000", [emitted])])
    assert of(MarkDone, again.protocol.close_step()) == [MarkDone("op", "000000", 3)]


def test_conditions_are_evaluated_after_everything_is_loaded() -> None:
    """Level-triggered: a trigger that did not commit happens again."""
    group = Group([operator("op", CountWindow(2))], TO_SINK)
    effects = group.step(fed(1, 1))
    again = rebuilt(group, effects, (1, "000000", 1))
    assert produced(again.resume()) == []
    assert produced(again.step(fed(2, 2))) == [("op.out", 1, [1, 2])]


def test_closed_input_sets_stay_closed_after_a_rebuild() -> None:
    group = Group([operator("op", Spans())], TO_SINK)
    effects = group.step(fed(1, 8), fed(2, 25))
    again = rebuilt(group, effects, (2, "000002", 25))
    again.resume()
    with pytest.raises(ProtocolViolation, match="closed"):
        again.step(fed(3, 9))
