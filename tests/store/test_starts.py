"""Attempts of a task that starts runs of partitions: a clear means *again*, and what belongs to one clear decides once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import IncompatibleRun, OtherRunUnfinished, ProtocolViolation
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import ConcurrentRuns, Run, RunSpec
from airflow_logio.store.records.start_records import Attempt, Decision, Start
from airflow_logio.store.rules.start_rules import CLEARED, code_differs
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.store.conftest import OpenStore
from tests.support.faults import Injected, around_commit, before_change, before_statement, inject
from tests.support.logs import Driver, assigned, sent, spec, start_driver
from tests.support.racing import race

OLD, NEW = "digest-1", "digest-2"
AGAIN, BEGUN, RESUMED = Decision.AGAIN, Decision.BEGUN, Decision.RESUMED


def shape(repeats: Repeats) -> WriterShape:
    return WriterShape("save", "TableWriter of table 'top'", ("w", "top"), Together.BY_PARTITION, repeats)


REPLACED, ADDED = shape(Repeats.REPLACED), replace(shape(Repeats.ADDED), writer="late")


def day(
    *groups: str, code: str = OLD, graph: str = "graph-1", writers: tuple[WriterShape, ...] | None = (REPLACED,)
) -> RunSpec:
    return replace(spec(*groups, graph=graph), partition="2026-03-01", code_digest=code, writers=writers)


def attempt(number: int, first: int | None = None, *, clear: int = 0, began: float | None = 100.0) -> Attempt:
    return Attempt(number, number if first is None else first, clear, began)


FIRST, SECOND = attempt(1), attempt(2, clear=1, began=200.0)


def begin(store: LogStore, described: RunSpec | None = None) -> Run:
    made = store.start_attempt(described or day(), FIRST)
    assert (made.decision, made.is_new, made.replaced) == (BEGUN, True, None)
    return made.run


def finished(store: LogStore, described: RunSpec | None = None) -> Run:
    run = begin(store, described)
    for group in run.spec.groups:
        start_driver(store, group=group, run=run).session.commit([fx.FinishGroup()])
    return run


def quarantine(driver: Driver) -> None:
    """An Input Set of its operator `receiver`."""
    driver.session.commit([sent(1), assigned(1, "one"), fx.SetAside("receiver", "one", 1, "cannot use 13")])


# --- what a new clear finds -------------------------------------------------------------------------------------------


def test_a_clear_of_what_has_finished_begins_the_next_generation(log_store: LogStore) -> None:
    """Before it was marked finished, and after: what is left of its groups counts."""
    for marked in (False, True):
        described = replace(day(), key=replace(day().key, dag_run_id=f"marked {marked}"))
        first = finished(log_store, described)
        assert not marked or log_store.finish_run(first.run_id)
        made = log_store.start_attempt(replace(described, code_digest=NEW), SECOND)
        assert (made.decision, made.is_new, made.replaced) == (AGAIN, True, first.uid)
        assert (made.run.spec.key.generation, made.run.spec.code_digest, made.run.partition) == (2, NEW, "2026-03-01")
        assert made.run.ordinal > first.ordinal
        old = log_store.find_run(first.uid)
        assert (old.state, old.superseded_by, old.because) == (RunState.SUPERSEDED, made.run.uid, CLEARED)
        assert old.spec.code_digest == OLD, "what was replaced stays, with its code"


def test_what_finished_with_quarantine_is_computed_again(log_store: LogStore) -> None:
    driver = start_driver(log_store, run=begin(log_store))
    quarantine(driver)
    driver.session.commit([fx.FinishGroup()])
    assert log_store.start_attempt(day(), SECOND).decision is AGAIN


@pytest.mark.parametrize("writers", [(REPLACED, ADDED), None])
def test_rows_that_would_be_there_twice_are_refused_and_a_person_may_say_again(
    log_store: LogStore, writers: tuple[WriterShape, ...] | None
) -> None:
    described = day(writers=writers)
    run = finished(log_store, described)
    for number in (2, 3):
        with pytest.raises(
            ProtocolViolation, match=rf"{'late' if writers else 'what it writes'}.*logio again {run.uid[:8]}"
        ):
            log_store.start_attempt(described, attempt(number, 2))
    assert log_store.find_run(run.uid).state is RunState.RUNNING
    assert log_store.supersede(run.run_id, because="rows were removed")
    made = log_store.start_attempt(described, attempt(4, 2))
    assert (made.decision, made.replaced) == (AGAIN, run.uid)
    assert log_store.find_run(run.uid).because == "rows were removed"


def parked(driver: Driver) -> None:
    driver.store.park(driver.ref, "a row of another day")


def parked_with_quarantine(driver: Driver) -> None:
    quarantine(driver)
    parked(driver)


def dead_with_quarantine(driver: Driver) -> None:
    quarantine(driver)
    assert driver.store.declare_dead(driver.ref, "test")


def dead(driver: Driver) -> None:
    assert driver.store.declare_dead(driver.ref, "test")


@pytest.mark.parametrize(
    ("become", "code", "writers", "decision"),
    [
        (parked, NEW, REPLACED, AGAIN),
        (parked_with_quarantine, NEW, REPLACED, AGAIN),
        (dead_with_quarantine, NEW, REPLACED, AGAIN),
        (parked, OLD, REPLACED, RESUMED),
        (parked, NEW, ADDED, RESUMED),
        (dead, NEW, REPLACED, RESUMED),
        (quarantine, NEW, REPLACED, RESUMED),  # alive
    ],
)
def test_with_work_left(
    log_store: LogStore, become: Callable[[Driver], None], code: str, writers: WriterShape, decision: Decision
) -> None:
    described = day("g", "h", writers=(writers,))
    run = begin(log_store, described)
    become(start_driver(log_store, run=run))
    made = log_store.start_attempt(replace(described, code_digest=code), SECOND)
    assert (made.decision, made.is_new) == (decision, True)
    assert (made.run.uid == run.uid) == (decision is RESUMED)
    said = code_differs(made.run, {made.run.spec.code_digest}, code)
    if decision is RESUMED and code == NEW:
        assert said is not None and OLD in said and NEW in said and f"logio again {run.uid[:8]}" in said
    else:
        assert said is None


def test_a_group_alive_beside_a_parked_one_is_not_taken_away(log_store: LogStore) -> None:
    run = begin(log_store, day("g", "h"))
    parked(start_driver(log_store, run=run))
    start_driver(log_store, group="h", run=run)
    assert log_store.start_attempt(day("g", "h", code=NEW), SECOND).run.uid == run.uid


def test_another_graph_is_begun_if_nothing_is_alive_and_else_refused(log_store: LogStore) -> None:
    other = day("g", "new", graph="graph-2", code=NEW)
    run = begin(log_store, day("g"))
    driver = start_driver(log_store, run=run)
    for _ in range(2):
        with pytest.raises(IncompatibleRun, match="graph-1, now graph-2"):
            log_store.start_attempt(other, SECOND)
    dead(driver)
    made = log_store.start_attempt(other, SECOND)
    assert (made.decision, made.run.spec.groups) == (AGAIN, ("g", "new"))


def test_code_that_a_person_gave_all_groups_is_no_other(log_store: LogStore) -> None:
    run = begin(log_store)
    parked(start_driver(log_store, run=run))
    log_store.take_code(run.run_id, "g", NEW, "code-2", by="test")
    assert log_store.start_attempt(day(code=NEW), SECOND).decision is RESUMED


def test_what_could_not_begin_replaces_nothing(log_store: LogStore) -> None:
    run = finished(log_store)
    other = replace(day(), key=replace(day().key, dag_run_id="another"))
    log_store.start_run(other)
    with pytest.raises(OtherRunUnfinished, match="another"):
        log_store.start_attempt(day(), SECOND, concurrent=ConcurrentRuns.DERIVED)
    assert log_store.find_run(run.uid).state is RunState.RUNNING


def test_another_partition_is_refused_and_gives_nothing_up(log_store: LogStore) -> None:
    """A name of a DAG run that was used again, for another day: also of a run that is unfinished, and for a retry."""
    unfinished = begin(log_store, replace(day(), key=replace(day().key, dag_run_id="unfinished")))
    for run in (unfinished, finished(log_store)):
        other = replace(day(), key=run.spec.key, partition="2026-03-02")
        for asking in (FIRST, SECOND):
            with pytest.raises(IncompatibleRun, match="is for 2026-03-01, and now is asked for 2026-03-02"):
                log_store.start_attempt(other, asking)
        assert log_store.find_run(run.uid).state is RunState.RUNNING


def test_a_run_that_is_being_removed_is_none(log_store: LogStore) -> None:
    run = finished(log_store)
    log_store.remove_run(run.run_id, 10)
    made = log_store.start_attempt(day(), FIRST)
    assert (made.decision, made.run.uid != run.uid) == (AGAIN, True), "nothing of it leads an attempt to it"


# --- one clear decides once -------------------------------------------------------------------------------------------


def again(store: LogStore, number: int, first: int, **rest: Any) -> Start:
    return store.start_attempt(day(code=NEW), attempt(number, first, **rest))


def test_a_retry_reads_what_was_decided(log_store: LogStore) -> None:
    """Also if the run has finished meanwhile, and with tasks of others cleared in between."""
    first = finished(log_store)
    second = again(log_store, 2, 2, clear=1, began=200.0).run
    start_driver(log_store, run=second).session.commit([fx.FinishGroup()])
    made = again(log_store, 3, 2, clear=2, began=300.0)
    assert (made.run.uid, made.decision, made.is_new, made.replaced) == (second.uid, AGAIN, False, first.uid)
    assert again(log_store, 2, 2, clear=1, began=200.0).run.uid == second.uid, "a second worker"
    assert again(log_store, 1, 1).run.uid == second.uid, "a delayed one of before the clear"
    assert again(log_store, 4, 4, clear=3, began=400.0).decision is AGAIN, "the next clear"


def test_attempt_1_died_before_it_decided(log_store: LogStore) -> None:
    first = finished(log_store)
    made = again(log_store, 5, 3, clear=1, began=200.0)
    assert (made.decision, made.replaced) == (AGAIN, first.uid)
    assert not again(log_store, 6, 3, clear=1, began=200.0).is_new


def test_a_dag_run_deleted_and_made_again_under_its_name_decides_anew(log_store: LogStore) -> None:
    first = finished(log_store)
    second = again(log_store, 2, 2, clear=1, began=200.0).run
    start_driver(log_store, run=second).session.commit([fx.FinishGroup()])
    made = again(log_store, 1, 1, clear=0, began=300.0)
    assert (made.decision, made.is_new, made.replaced) == (AGAIN, True, second.uid)
    assert first.uid != made.run.uid
    assert not again(log_store, 2, 1, clear=0, began=300.0).is_new, "its own retry"
    assert again(log_store, 1, 1, clear=0, began=200.0).run.uid == made.run.uid, "a worker of the deleted one"


def test_a_run_given_up_by_a_person_is_followed_by_any_attempt(log_store: LogStore) -> None:
    first = begin(log_store)
    assert log_store.supersede(first.run_id, because="late file")
    made = again(log_store, 1, 1)
    assert (made.decision, made.is_new, made.replaced) == (AGAIN, True, first.uid)
    assert (again(log_store, 1, 1).run.uid, again(log_store, 1, 1).is_new) == (made.run.uid, False)


def failing(store: LogStore, number: int) -> AbstractContextManager[Any]:
    if isinstance(store, MemoryLogStore):
        return before_change(store, number, inject)
    assert isinstance(store, SqlLogStore)
    return before_statement(store, number, inject)


def test_dying_anywhere_leaves_what_the_next_attempt_completes(log_store: LogStore) -> None:
    """Before it decides, between giving up and beginning, and after: one run follows, and is found by all."""
    number, died, found_given_up = 0, True, 0
    while died:
        number += 1
        described = replace(day(), key=replace(day().key, dag_run_id=f"{number}"))
        old = finished(log_store, described)
        try:
            with failing(log_store, number):
                log_store.start_attempt(described, attempt(2, clear=1))
            died = False
        except Injected:
            found_given_up += log_store.find_run(old.uid).state is RunState.SUPERSEDED
        made = log_store.start_attempt(described, attempt(3, 2, clear=1))
        assert (made.replaced, made.run.spec.key.generation, made.is_new) == (old.uid, 2, died), number
        assert not log_store.start_attempt(described, attempt(4, 2, clear=1)).is_new
        assert log_store.find_run(old.uid).superseded_by == made.run.uid
    assert number > 3
    assert isinstance(log_store, MemoryLogStore) or found_given_up > 1


def test_two_workers_at_once_begin_one_run(log_store: LogStore) -> None:
    for number in range(4):
        described = replace(day(), key=replace(day().key, dag_run_id=f"{number}"))
        old = finished(log_store, described)
        made = race(*[lambda described=described: log_store.start_attempt(described, SECOND)] * 4)
        assert all(isinstance(one, Start) for one in made), made
        assert len({one.run.uid for one in made if isinstance(one, Start)}) == 1
        assert sum(one.is_new for one in made if isinstance(one, Start)) == 1
        assert {one.replaced for one in made if isinstance(one, Start)} == {old.uid}


def test_a_run_resumed_between_decision_and_giving_up_is_left_alone(
    sql_store: SqlLogStore, open_another: OpenStore
) -> None:
    """The decision is made again under the locks by which a claim comes before or after."""
    run = begin(sql_store)
    parked(start_driver(sql_store, run=run))
    person = open_another()

    def resume(_: object) -> None:
        person.claim(run.run_id, "g", expected=1, reason="logio retry", by_user=True)

    with around_commit(sql_store, after=resume):
        made = sql_store.start_attempt(day(code=NEW), SECOND)
    assert (made.run.uid, made.decision) == (run.uid, RESUMED)


def test_a_stopped_worker_does_not_give_up_what_another_attempt_has_begun(
    sql_store: SqlLogStore, open_another: OpenStore
) -> None:
    """It stands between its two transactions, and wakes when the partition has been computed again and is done."""
    old = finished(sql_store)
    other, seen = open_another(), list[Start]()

    def overtaken(_: object) -> None:
        seen.append(other.start_attempt(day(), attempt(3, 2, clear=1, began=200.0)))
        start_driver(other, run=seen[0].run).session.commit([fx.FinishGroup()])

    with around_commit(sql_store, after=overtaken):
        made = sql_store.start_attempt(day(), SECOND)
    assert (made.run.uid, made.is_new, made.replaced) == (seen[0].run.uid, False, old.uid)
    assert sql_store.find_run(made.run.uid).state is RunState.RUNNING


def test_decisions_go_with_their_run(sql_store: SqlLogStore) -> None:
    run = finished(sql_store)
    while sql_store.remove_run(run.run_id, 100).more:
        pass
    with sql_store.engine.connect() as connection:
        assert connection.execute(sa.select(schema.start)).all() == []


def test_a_person_raises_the_order_with_again(log_store: LogStore) -> None:
    run = begin(log_store)
    assert log_store.supersede(run.run_id, because="a restored log", above=45)
    assert log_store.start_attempt(day(), SECOND).run.ordinal == 46
