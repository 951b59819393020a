"""Whether what a writer was sent is all that there is: asked once all inputs have ended, answered as the epoch sees it.

The run is ``web`` → ``clean`` → two slots of ``cut`` → ``save``, with ``beside`` behind ``clean``. All of it has ended
but ``save``, which would now replace a day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from airflow_logio import databases
from airflow_logio.errors import EpochVoid, Fenced, LogUnavailable
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.context import Context, decode_state, encode_state
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.port.session_port import GroupSession, Short
from airflow_logio.store.records.run_records import OperatorShape, ReplicatedShape, Upstream
from airflow_logio.store.rules.row_forms import encode_header
from airflow_logio.store.sql import engines
from airflow_logio.store.sql.store import SqlLogStore
from tests.store.conftest import OpenStore
from tests.support.faults import (
    Injected,
    Pause,
    acknowledgement_lost,
    around_commit,
    before_statement,
    inject,
    lose_connection,
    place,
)
from tests.support.logs import UNDONE, Driver, contents, spec
from tests.support.replicated import launch
from tests.support.statements import counted_statements

SHAPES = {
    "web": OperatorShape("in", {}, ("out",)),
    "clean": OperatorShape("work", {"in": "web.out"}, ("out",)),
    "dispatch(cut)": OperatorShape("work", {"in": "clean.out"}, ("slot0", "slot1")),
    "cut[0]": OperatorShape("cut", {"in": "dispatch(cut).slot0"}, ("out",)),
    "cut[1]": OperatorShape("cut", {"in": "dispatch(cut).slot1"}, ("out",)),
    "merge(cut)": OperatorShape("last", {"slot0": "cut[0].out", "slot1": "cut[1].out"}, ("out",)),
    "save": OperatorShape("last", {"in": "merge(cut).out"}),
    "other": OperatorShape("elsewhere", {}, ("out",)),
    "beside": OperatorShape("side", {"in": "clean.out", "more": "other.out"}),
}
"""In topological order."""
REPLICAS = ("cut.1", "cut.2")
UPSTREAM = Upstream(("web", "clean", "dispatch(cut)", "cut[0]", "cut[1]", "merge(cut)", "save"), ("in",))
NOT_WHOLE = "day 2026-03-01 is not replaced"


class Day:
    """A run of which all has ended but ``save``; `aside` are Input Sets that were set aside on the way, and
    `drains` groups that were told to end early."""

    def __init__(
        self, store: LogStore, *aside: tuple[str, str], drains: Sequence[str] = (), dag_run: str = "run-1"
    ) -> None:
        self.store = store
        described = spec(
            "in", "work", *REPLICAS, "last", "elsewhere", "side", dag_run=dag_run, budget=RecoveryBudget(9)
        )
        slots = {"cut": ReplicatedShape(REPLICAS, 2, 2)}
        self.run = store.start_run(replace(described, operators=SHAPES, replicated=slots))
        self.drivers = {name: launch(store, self.run, name) for name in self.run.spec.groups}
        for group in drains:
            self.drivers[group].session.commit([fx.DrainGroup()])
        for operator in SHAPES:
            self._end(operator, [inset for name, inset in aside if name == operator])
        for name, driver in self.drivers.items():
            if name != "last":
                driver.session.commit([fx.FinishGroup()])

    @property
    def session(self) -> GroupSession:
        return self.drivers["last"].session

    def driver_of(self, operator: str) -> Driver:
        return self.drivers[{"cut[0]": "cut.1", "cut[1]": "cut.2"}.get(operator, SHAPES[operator].group)]

    def _end(self, operator: str, aside: Sequence[str]) -> None:
        """It sets these Input Sets aside, receives the end of each input, and ends; the writer is yet to be closed."""
        shape, outside, inbox = SHAPES[operator], Port(f"to {operator}", "out"), Port(operator, "outside")
        effects: list[Any] = []
        for number, inset in enumerate(aside, start=1):
            event = Event(outside, number, records=1, body=b"x")
            effects.append(fx.LogEvent(event, (fx.Delivery(inbox),)))
            effects.append(fx.Acknowledge(outside, inbox, number, ((inset, UNDONE),)))
            effects.append(fx.SetAside(operator, inset, 1, "ValueError: no"))
        ended, following = set(shape.inputs), dict.fromkeys(shape.outputs, 2)
        context = Context(ended=ended, next_event=following, aside=list(aside), finished=operator != "save")
        effects.append(fx.StoreState(operator, encode_state(context, {})))
        self.driver_of(operator).session.commit(effects)

    def ended(self) -> Mapping[str, tuple[set[str], bool]]:
        """Operator → the inputs whose end it knows, and whether it has ended."""
        states = self.session.recover(list(SHAPES)).states
        found = {name: decode_state(name, states[name]).context for name in SHAPES}
        return {name: (context.ended, context.finished) for name, context in found.items()}

    def state(self) -> GroupState:
        return self.store.group(self.run.run_id, "last").state


def test_what_comes_before_an_operator() -> None:
    described = replace(spec("in", "work", *REPLICAS, "last", "elsewhere", "side"), operators=SHAPES)
    assert described.upstream("save") == UPSTREAM
    assert described.upstream("beside") == Upstream(("web", "clean", "other", "beside"), ("in", "elsewhere"))
    assert described.upstream("cut[1]").operators == ("web", "clean", "dispatch(cut)", "cut[1]")
    assert described.upstream("web") == Upstream(("web",), ("in",))
    with pytest.raises(KeyError):
        described.upstream("sieve")


def test_nothing_is_missing(log_store: LogStore) -> None:
    Day(log_store, ("clean", "another run's"), dag_run="another")
    day = Day(log_store, ("beside", "A"))
    found = day.session.why_short(UPSTREAM)
    assert not found and found == Short({}), "neither of another run, nor of what is no way to the writer"
    day.session.commit([])


def test_what_is_set_aside_on_the_way_is_counted_in_the_order_of_the_graph(log_store: LogStore) -> None:
    places = [name for name in UPSTREAM.operators if name != "web"]
    day = Day(log_store, *((name, "A") for name in reversed(places)), ("cut[1]", "B"), ("beside", "A"))
    found = day.session.why_short(UPSTREAM)
    assert found and list(found.aside.items()) == [(name, 1 + (name == "cut[1]")) for name in places]


def test_a_source_that_was_told_to_end_early_leaves_something_out(log_store: LogStore) -> None:
    """What was not read is not there: no retry brings it. It is known after the group has finished, and of a dead one."""
    day = Day(log_store, ("clean", "A"), drains=("in", "elsewhere"))
    assert log_store.group(day.run.run_id, "in").state is GroupState.FINISHED
    assert day.session.why_short(UPSTREAM) == Short({"clean": 1}, ("in",)), "it has no event of the other source"
    both = day.run.spec.upstream("beside")
    assert day.drivers["side"].session.why_short(both) == Short({"clean": 1}, ("in", "elsewhere"))
    log_store.retry_quarantined(day.run.run_id)
    day.session.open(raise_epoch=True)
    found = day.session.why_short(UPSTREAM)
    assert found and found == Short({}, ("in",))


def test_a_group_that_was_declared_dead_still_says_that_it_drains(log_store: LogStore) -> None:
    run = log_store.start_run(replace(spec("in", "work", *REPLICAS, "last", "elsewhere", "side"), operators=SHAPES))
    source, writer = launch(log_store, run, "in"), launch(log_store, run, "last")
    assert log_store.declare_dead(source.ref, "test")
    source.session.commit([fx.DrainGroup()])
    assert log_store.group(run.run_id, "in").state is GroupState.DEAD
    assert writer.session.why_short(UPSTREAM).drained == ("in",)


# --- a retry, and what else changes the answer ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operator", "group"),
    [("clean", None), ("clean", "work"), ("cut[0]", "cut"), ("merge(cut)", "last"), ("save", None)],
)
def test_a_retry_makes_question_commit_and_parking_void(log_store: LogStore, operator: str, group: str | None) -> None:
    """Whether it comes before the question, or between the question and what follows from the answer."""
    day = Day(log_store, (operator, "A"))
    assert day.session.why_short(UPSTREAM).aside == {operator: 1}
    log_store.retry_quarantined(day.run.run_id, group)
    rows = contents(log_store)
    _refused_three_times(day.session, EpochVoid)
    assert contents(log_store) == rows
    for name, (_, finished) in day.ended().items():
        behind = operator in day.run.spec.upstream(name).operators
        assert finished == (name != "save" and not behind), f"{name} has ended, and is not behind what is put back"
    if operator != "save":
        assert day.ended()["save"] == (set(), False), "its own end is taken back, too"
    day.session.open(raise_epoch=True)
    assert not day.session.why_short(UPSTREAM), (
        "nothing is set aside; the rows come first, since the ends are taken back"
    )


def _refused_three_times(session: GroupSession, error: type[Exception]) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: session.why_short(UPSTREAM),
        lambda: session.commit([]),
        lambda: session.park_short(NOT_WHOLE),
    ]
    for call in calls:
        with pytest.raises(error):
            call()


def test_what_is_no_way_to_the_writer_is_retried_beside_it(log_store: LogStore) -> None:
    day = Day(log_store, ("beside", "A"), ("clean", "A"))
    log_store.retry_quarantined(day.run.run_id, "side")
    assert day.session.why_short(UPSTREAM).aside == {"clean": 1}
    day.session.commit([])
    day.session.park_short(NOT_WHOLE)
    assert day.state() is GroupState.PARKED


def test_a_mended_body_makes_question_commit_and_parking_void(log_store: LogStore) -> None:
    day = Day(log_store, ("clean", "A"))
    before = _stored(day, Port("to clean", "out"), 1)
    header = encode_header(Kind.DATA, 1, b"mended", mended="by a test")
    log_store.replace_body(day.run.run_id, Port("to clean", "out"), 1, before, header, b"mended")
    _refused_three_times(day.session, EpochVoid)
    assert day.state() is GroupState.RUNNING


def _stored(day: Day, sender: Port, event_id: int) -> StoredBody:
    with day.store.lineage(day.run) as log:
        return dict(log.bodies(sender.operator, sender.name, [event_id]))[event_id]


def test_a_driver_that_was_replaced_is_fenced(log_store: LogStore) -> None:
    day = Day(log_store, ("clean", "A"))
    zombie = day.session
    assert log_store.declare_dead(day.drivers["last"].ref, "test")
    launch(log_store, day.run, "last")
    rows = contents(log_store)
    _refused_three_times(zombie, Fenced)
    assert contents(log_store) == rows
    assert day.state() is GroupState.RUNNING


def test_a_halt_makes_them_void(log_store: LogStore) -> None:
    day = Day(log_store, ("clean", "A"))
    assert log_store.halted(day.drivers["last"].ref)
    _refused_three_times(day.session, EpochVoid)
    assert day.state() is GroupState.HALTED


def test_nothing_of_a_run_that_is_not_there_any_more_is_asked_or_parked(log_store: LogStore) -> None:
    day = Day(log_store, ("clean", "A"))
    assert log_store.declare_dead(day.drivers["last"].ref, "test")
    assert log_store.supersede(day.run.run_id)
    _refused_three_times(day.session, EpochVoid)
    while log_store.remove_run(day.run.run_id, 100).more:
        pass
    for call in (day.session.check, lambda: day.session.why_short(UPSTREAM), lambda: day.session.park_short(NOT_WHOLE)):
        with pytest.raises(Fenced, match="is not in the log any more"):
            call()


# --- parking ----------------------------------------------------------------------------------------------------------


def test_the_group_is_parked_with_the_cause_until_a_person_retries(log_store: LogStore) -> None:
    day = Day(log_store, ("clean", "A"))
    day.session.park_short(NOT_WHOLE)
    status = log_store.group(day.run.run_id, "last")
    assert (status.state, status.error) == (GroupState.PARKED, NOT_WHOLE)
    retried = log_store.retry_quarantined(day.run.run_id)
    assert retried.to_launch == ("cut.1", "cut.2", "last", "side", "work")
    successor = launch(log_store, day.run, "last")
    assert not successor.session.why_short(UPSTREAM)
    _refused_three_times(day.session, Fenced)


def test_dying_in_the_parking_leaves_nothing_and_after_it_all(sql_store: SqlLogStore) -> None:
    day = Day(sql_store, ("clean", "A"))
    rows = contents(sql_store)
    with around_commit(sql_store, before=inject), pytest.raises(Injected):
        day.session.park_short(NOT_WHOLE)
    assert contents(sql_store) == rows
    with around_commit(sql_store, after=inject), pytest.raises(Injected):
        day.session.park_short(NOT_WHOLE)
    assert day.state() is GroupState.PARKED


def test_a_log_that_is_away_is_waited_for(sql_store: SqlLogStore) -> None:
    day = Day(sql_store, ("clean", "A"))
    with before_statement(sql_store, 1, lose_connection):
        assert day.session.why_short(UPSTREAM).aside == {"clean": 1}
    with around_commit(sql_store, after=acknowledgement_lost):
        day.session.park_short(NOT_WHOLE)
    assert day.state() is GroupState.PARKED


def test_the_question_is_one_statement(sql_store: SqlLogStore) -> None:
    """So it is one snapshot, whatever the isolation; and it asks for no more than there is, however many slots."""
    day = Day(sql_store, ("clean", "A"))
    with counted_statements(sql_store.engine) as seen:
        day.session.why_short(UPSTREAM)
    assert len([one for one in seen if one.startswith("SELECT")]) == 1, seen
    many = Upstream((*UPSTREAM.operators, *(f"sieve[{slot}]" for slot in range(40_000))), ("in",))
    assert day.session.why_short(many).aside == {"clean": 1}


def test_the_parking_stands_still_anywhere_while_a_retry_comes(
    open_another: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either the retry finds the group parked, and has it launched, or the parking finds its epoch void."""
    monkeypatch.setattr(engines, "LOCK_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.02)
    store, person = open_another(application="logio parking"), open_another(application="logio person")
    index, void = 0, 0
    while True:
        day = Day(store, ("clean", "A"), dag_run=f"run {index}")
        pause = Pause()
        where, standing = place(store, index, pause)
        with ThreadPoolExecutor(1) as pool, standing:
            parking = pool.submit(day.session.park_short, NOT_WHOLE)
            reached = pause.is_reached_before(parking)
            to_launch = _retried(person, day) if reached else None
            pause.release()
            failure = parking.exception(90)
        if not reached:
            break
        if to_launch is None:  # the parking held the fence, or the whole file
            to_launch = _retried(person, day)
        assert to_launch is not None, where
        if "last" in to_launch:
            assert failure is None and day.state() is GroupState.PARKED, where
        else:
            assert isinstance(failure, EpochVoid) and day.state() is GroupState.RUNNING, where
            void += 1
        index += 1
    assert index >= 8 and void > 0


def _retried(store: SqlLogStore, day: Day) -> tuple[str, ...] | None:
    try:
        return store.retry_quarantined(day.run.run_id).to_launch
    except LogUnavailable:
        return None
