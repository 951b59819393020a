"""Several generative functions per operator, Output Sets of any shape, and Input Sets that are set aside."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_logio.errors import OperatorFailed, ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, decode_state
from airflow_logio.protocol.effects import Acknowledge, LogStateEvent, MarkDone, SetAside
from airflow_logio.protocol.values import Port, Status
from tests.support.logics import (
    AnyShape,
    CountWindowWithState,
    Failing,
    Group,
    TwoFunctions,
    end,
    fed,
    of,
    operator,
    produced,
)

A, B = Port("op", "a"), Port("op", "b")
IN, OUT, SINK = Port("op", "in"), Port("op", "out"), Port("sink", "in")
UNDONE, DONE, ASIDE = Status.UNDONE, Status.DONE, Status.ASIDE


def context_of(effects: fx.Effects) -> Context:
    (state,) = of(fx.StoreState, effects)
    return decode_state("op", state.data).context


def two_functions(**settings: Any) -> Group:
    """Function a uses two events, function b three; each has an output port."""
    return Group([operator("op", TwoFunctions(), outputs=("a", "b"), **settings)], {A: [SINK], B: [Port("sink", "b")]})


def test_an_event_is_part_of_an_input_set_of_each_function() -> None:
    effects = two_functions().step(fed(1, 1), fed(2, 2))
    assignments = {effect.event_id: dict(effect.assignments) for effect in of(Acknowledge, effects)}
    assert assignments[1] == {"a000000": DONE, "b000000": UNDONE}
    assert produced(effects) == [("op.a", 1, [1, 2])]


def test_each_function_closes_its_input_sets_in_its_own_order() -> None:
    group = two_functions()
    effects = group.step(*(fed(n, n) for n in range(1, 7)))
    assert context_of(effects).closed.low == {"a": 2, "b": 1}
    assert not context_of(effects).closed.exceptions, "a mark each, however many Input Sets have been used"
    assert produced(effects) == [
        ("op.a", 1, [1, 2]),
        ("op.b", 1, [1, 2, 3]),
        ("op.a", 2, [3, 4]),
        ("op.a", 3, [5, 6]),
        ("op.b", 2, [4, 5, 6]),
    ]


def test_the_mark_of_one_function_closes_nothing_of_another() -> None:
    group = two_functions()
    group.step(*(fed(n, n) for n in range(1, 5)))
    closed = group.protocol.operators["op"].context.closed
    assert closed.holds("a000001", "a", 1)
    assert not closed.holds("b000001", "b", 1)
    assert closed.holds("b000000", "b", 0)


def test_output_sets_of_any_number_of_events_on_any_ports() -> None:
    spec = operator("op", AnyShape(2), outputs=("even", "odd"), lineage_in={"in"}, lineage_out={"odd"})
    group = Group([spec], {Port("op", "even"): [SINK], Port("op", "odd"): []})
    effects = group.step(fed(1, 7, 2, 5, 11), fed(2, 8))
    assert produced(effects) == [
        ("op.even", 1, [2, 2]),
        ("op.odd", 1, [5]),
        ("op.odd", 2, [7, 7, 7]),
        ("op.even", 2, []),
        ("op.odd", 3, [11, 11, 11]),
    ]
    lineage = [(str(effect.sender), effect.event_id) for effect in of(fx.RecordLineage, effects)]
    assert lineage == [("op.odd", 1), ("op.odd", 2), ("op.odd", 3)], "of the port in OUT alone"


def test_an_empty_output_set_is_done_all_the_same() -> None:
    group = Group([operator("op", AnyShape(2), outputs=("even", "odd"))])
    group.step(fed(1, 3))
    effects = group.step(fed(2, 6))
    assert produced(effects) == []
    assert of(MarkDone, effects) == [MarkDone("op", "000000", 1)]


# --- quarantine -------------------------------------------------------------------------------------------------------


def failing(**settings: Any) -> Group:
    """Input Sets of two events whose sum is a multiple of eight raise."""
    spec = operator("op", Failing(2), quarantines=True, **settings)
    return Group([spec], {OUT: [SINK]})


ERROR = "port 'in', events 1 to 2: Input Set '000000' cannot be generated"


def test_an_input_set_is_set_aside_with_its_error_and_the_next_one_goes_on() -> None:
    group = failing()
    group.step(fed(1, 3))
    effects = group.step(fed(2, 5), fed(3, 1), fed(4, 1))
    assert of(SetAside, effects) == [SetAside("op", "000000", 1, ERROR)]
    assert {e.event_id: e.assignments for e in of(Acknowledge, effects)}[2] == (("000000", ASIDE),)
    assert produced(effects) == [("op.out", 1, [1, 1])]
    assert context_of(effects).aside == ["000000"]
    assert context_of(effects).triggered == []


def test_a_state_event_is_set_aside_with_its_input_set() -> None:
    class Raising(CountWindowWithState):
        def generate(self, inset_id: str, held: Any, state: Any) -> Any:
            raise OperatorFailed("no")

    group = Group([operator("op", Raising(2), quarantines=True, reads_state=True)], {OUT: [SINK]})
    effects = group.step(fed(1, 3), fed(2, 5))
    assert [effect.status for effect in of(LogStateEvent, effects)] == [ASIDE]
    assert context_of(effects).state_events == {"000000": 1}, "a retry sees the state of the trigger"


def test_no_event_joins_what_was_set_aside() -> None:
    group = failing()
    group.step(fed(1, 3), fed(2, 5))
    protocol = group.protocol.operators["op"]
    protocol.state["seen"] = 0
    with pytest.raises(ProtocolViolation, match="event 3 was assigned to Input Set '000000', which is triggered"):
        group.step(fed(3, 1))


def test_a_stream_with_quarantine_ends() -> None:
    group = failing()
    effects = group.step(fed(1, 3), fed(2, 5), end(3))
    assert produced(effects) == [("op.out", 1, None)]
    assert group.protocol.is_finished()


def test_a_job_says_which_input_sets_raised() -> None:
    group = failing(asynchronous=True)
    group.step(fed(1, 3), fed(2, 5), fed(3, 1), fed(4, 1))
    group.protocol.start_job("op", ["000000", "000001"])
    group.protocol.set_aside("op", "000000", ERROR)
    group.protocol.generated("op", [("000001", [])])
    effects = group.protocol.close_step()
    assert of(SetAside, effects) == [SetAside("op", "000000", 2, ERROR)]
    assert of(MarkDone, effects) == [MarkDone("op", "000001", 2)]
    with pytest.raises(KeyError):
        group.protocol.operators["op"].generate("000000")


def test_an_operator_that_does_not_quarantine_fails() -> None:
    group = Group([operator("op", Failing(2))], {OUT: [SINK]})
    with pytest.raises(OperatorFailed, match="'000000' cannot be generated"):
        group.step(fed(1, 3), fed(2, 5))
