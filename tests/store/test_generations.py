"""A run gives way to a fresh one of the same key; and a run begins alone, where that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio.errors import EpochVoid, Fenced, IncompatibleRun, OtherRunUnfinished, ProtocolViolation, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.run_records import ConcurrentRuns, Run
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import Injected, Pause, around_commit, before_change, before_statement, inject
from tests.support.logs import SOMEBODY, contents, log_rows, replace_driver, sent, spec, start_driver
from tests.support.racing import race

STANDS_SECONDS = 0.1


def rows_of(store: LogStore) -> dict[str, list[Any]]:
    """Everything, with the states of the runs."""
    states = [(run.uid, run.state, run.ended_at, run.spec.key) for run in store.list_runs()]
    return contents(store) | {"states": states}


def superseded(store: LogStore, *groups: str) -> Run:
    """A run that was given up before anything of it was launched."""
    run = store.start_run(spec(*groups))
    assert store.supersede(run.run_id)
    return run


@pytest.mark.parametrize("given_up", [False, True])
def test_a_run_keeps_its_partition_in_all_generations(log_store: LogStore, given_up: bool) -> None:
    first = log_store.start_run(replace(spec("a"), partition="2026-03-01"))
    if given_up:
        assert log_store.supersede(first.run_id)
    before = rows_of(log_store)
    with pytest.raises(IncompatibleRun, match=r"is for 2026-03-01, and now is asked for 2026-03-02.*a name of its own"):
        log_store.start_run(replace(spec("a"), partition="2026-03-02"))
    assert rows_of(log_store) == before
    again = log_store.start_run(replace(spec("a"), partition="2026-03-01"))
    assert (again.uid == first.uid, again.partition) == (not given_up, "2026-03-01")


def test_a_next_generation_may_gain_a_partition_or_lose_it(log_store: LogStore) -> None:
    for partition in (None, "2026-03-01", None):
        run = log_store.start_run(replace(spec("a"), partition=partition))
        assert run.partition == partition
        assert log_store.supersede(run.run_id)


def test_a_superseded_run_gives_way_to_the_next_generation(log_store: LogStore) -> None:
    first = superseded(log_store, "a", "b")
    second = log_store.start_run(spec("a", "b"))
    assert second.uid != first.uid
    assert (first.spec.key.generation, second.spec.key.generation) == (1, 2)
    assert (second.state, {group.state for group in log_store.groups(second.run_id)}) == (
        RunState.RUNNING,
        {GroupState.NEW},
    )
    assert log_store.start_run(spec("a", "b")) == second, "to start again finds it"
    assert log_store.find_run("run-1") == second, "the newest of that name"
    assert [run.uid for run, _ in log_store.unfinished()] == [second.uid]
    assert log_store.supersede(second.run_id)
    assert log_store.start_run(spec("a", "b")).spec.key.generation == 3


def test_a_fresh_run_is_younger_than_the_one_before_it_whatever_the_clock_says(log_store: LogStore) -> None:
    """Tables and folders tell by these times which run has replaced what another one has written."""
    runs = [superseded(log_store, "a") for _ in range(3)]
    assert runs[0].created_at < runs[1].created_at < runs[2].created_at, "in one tick of the clock, too"


def test_the_clock_of_the_log_goes_back_before_a_fresh_run(sql_store: SqlLogStore) -> None:
    first = superseded(sql_store, "a")
    ahead = first.created_at + 3600
    with sql_store.engine.begin() as connection:
        connection.execute(sa.update(schema.run).values(created_at=ahead))
    second = sql_store.start_run(spec("a"))
    assert ahead < second.created_at < ahead + 1
    assert sql_store.supersede(second.run_id)
    assert sql_store.start_run(spec("a")).created_at > second.created_at
    other = replace(spec("a"), key=replace(spec("a").key, dag_run_id="another"))
    assert sql_store.start_run(other).created_at < ahead, "of no other run"


def test_the_earlier_generation_keeps_its_rows_and_its_end(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit([sent(1)])
    log_store.halted(driver.ref)
    before = log_rows(log_store)
    assert [one.run.state for one in log_store.sight([driver.run.uid])] == [RunState.RUNNING]
    assert log_store.supersede(driver.run.run_id, because="a late file")
    found = log_store.find_run(driver.run.uid)
    assert (found.state, found.spec, found.because) == (RunState.SUPERSEDED, driver.run.spec, "a late file")
    assert found.ended_at is not None
    fresh = log_store.start_run(spec())
    assert not log_store.supersede(found.run_id, because="a second time"), "asked again, it changes nothing"
    assert log_store.find_run(driver.run.uid) == replace(found, superseded_by=fresh.uid)
    (looked,) = log_store.sight([driver.run.uid])
    assert looked.run == replace(found, superseded_by=fresh.uid), "a process that has seen it before sees that, too"
    assert log_rows(log_store) == before


def test_a_finished_run_gives_way_and_keeps_its_end(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    driver.session.commit([fx.FinishGroup()])
    assert log_store.finish_run(driver.run.run_id)
    ended_at = log_store.find_run(driver.run.uid).ended_at
    assert log_store.supersede(driver.run.run_id)
    assert log_store.find_run(driver.run.uid).ended_at == ended_at
    assert log_store.group(driver.run.run_id, "g").state is GroupState.FINISHED
    assert log_store.start_run(spec()).spec.key.generation == 2


def test_it_is_refused_while_a_group_is_alive_and_changes_nothing(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b", "c"))
    start_driver(log_store, group="a", run=run)
    log_store.claim(run.run_id, "b", expected=0, reason="test")
    before = rows_of(log_store)
    with pytest.raises(ProtocolViolation, match=re.escape("a is running, b is claimed; `logio stop")):
        log_store.supersede(run.run_id)
    assert rows_of(log_store) == before


def test_the_driver_of_a_dead_group_commits_nothing_more(log_store: LogStore) -> None:
    """It may not be dead: a dead group's driver passes the fence until a process replaces or stops it."""
    driver = start_driver(log_store)
    driver.session.commit([sent(1)])
    assert log_store.declare_dead(driver.ref, "test")
    assert log_store.supersede(driver.run.run_id)
    before = rows_of(log_store)
    with pytest.raises((EpochVoid, Fenced)):
        driver.session.commit([sent(2), fx.FinishGroup()])
    with pytest.raises(Fenced, match="commits nothing more"):
        driver.session.open(raise_epoch=True)
    assert rows_of(log_store) == before


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("state", [GroupState.NEW, GroupState.DEAD, GroupState.PARKED, GroupState.HALTED])
def test_nothing_of_it_is_launched_again(log_store: LogStore, state: GroupState, *, by_user: bool) -> None:
    run, incarnation = log_store.start_run(spec("g")), 0
    if state is not GroupState.NEW:
        ref, incarnation = start_driver(log_store, run=run).ref, 1
        end: dict[GroupState, Callable[[], bool]] = {
            GroupState.DEAD: lambda: log_store.declare_dead(ref, "test"),
            GroupState.PARKED: lambda: log_store.park(ref, "test"),
            GroupState.HALTED: lambda: log_store.halted(ref),
        }
        assert end[state]()
    assert log_store.supersede(run.run_id)
    before = rows_of(log_store)
    with pytest.raises(ProtocolViolation, match="given up for a fresh run: it does not resume"):
        log_store.claim(run.run_id, "g", expected=incarnation, reason="test", by_user=by_user)
    with pytest.raises(ProtocolViolation, match="given up for a fresh run"):
        log_store.finish_run(run.run_id)
    with pytest.raises(ProtocolViolation, match="given up for a fresh run"):
        log_store.retry_quarantined(run.run_id)
    assert rows_of(log_store) == before


def test_it_is_removed_like_a_run_that_has_ended(log_store: LogStore) -> None:
    run = superseded(log_store, "a")
    fresh = log_store.start_run(spec("a"))
    assert [found.uid for found in log_store.removable(0.0)] == [run.uid]
    assert log_store.removable(3600.0) == []
    while log_store.remove_run(run.run_id, 100).more:
        with pytest.raises(UnknownRun, match="being removed"):
            log_store.supersede(run.run_id)
    with pytest.raises(UnknownRun):
        log_store.supersede(run.run_id)
    assert log_store.start_run(spec("a")) == fresh


def test_the_next_generation_comes_after_the_newest_that_is_left(log_store: LogStore) -> None:
    first = superseded(log_store)
    second = superseded(log_store)
    assert second.spec.key.generation == 2
    while log_store.remove_run(first.run_id, 100).more:
        pass
    assert log_store.start_run(spec()).spec.key.generation == 3


def test_another_graph_begins_as_a_fresh_run(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a"))
    with pytest.raises(IncompatibleRun, match=f"start a fresh run .`logio fresh {run.uid[:8]}`"):
        log_store.start_run(spec("a", "new", graph="graph-2"))
    log_store.supersede(run.run_id)
    assert log_store.start_run(spec("a", "new", graph="graph-2")).spec.groups == ("a", "new")


def test_many_at_once_supersede_it_once_and_start_one_fresh_run(log_store: LogStore) -> None:
    run = log_store.start_run(spec("a", "b"))
    assert sorted(race(*[lambda: log_store.supersede(run.run_id)] * 4), key=repr) == [False, False, False, True]
    started = race(*[lambda: log_store.start_run(spec("a", "b"))] * 6)
    assert {one.uid for one in started if isinstance(one, Run)} == {log_store.find_run("run-1").uid}, started
    assert [found.spec.key.generation for found in log_store.list_runs()] == [2, 1]


def test_a_supersession_that_fails_anywhere_leaves_nothing(log_store: LogStore) -> None:
    driver = start_driver(log_store, group="a", run=log_store.start_run(spec("a", "b")))
    log_store.declare_dead(driver.ref, "test")
    before = rows_of(log_store)
    number, failed = 0, True
    while failed:
        number += 1
        try:
            with failing(log_store, number):
                log_store.supersede(driver.run.run_id)
            failed = False
        except Injected:
            assert rows_of(log_store) == before, f"failed at statement {number}"
    assert number > 3


def failing(store: LogStore, number: int) -> AbstractContextManager[Any]:
    """Fail at the n-th statement, or change in memory."""
    if isinstance(store, MemoryLogStore):
        return before_change(store, number, inject)
    assert isinstance(store, SqlLogStore)
    return before_statement(store, number, inject)


def test_dying_before_and_after_its_commit(sql_store: SqlLogStore) -> None:
    run = sql_store.start_run(spec("a"))
    before = rows_of(sql_store)
    with around_commit(sql_store, before=inject), pytest.raises(Injected):
        sql_store.supersede(run.run_id)
    assert rows_of(sql_store) == before
    with around_commit(sql_store, after=inject), pytest.raises(Injected):
        sql_store.supersede(run.run_id)
    assert sql_store.find_run(run.uid).state is RunState.SUPERSEDED
    assert not sql_store.supersede(run.run_id)


RIVALS: dict[str, Callable[[SqlLogStore, Run], Any]] = {
    "claim": lambda store, run: store.claim(run.run_id, "b", expected=0, reason="test", by_user=True),
    "finish": lambda store, run: store.finish_run(run.run_id),
    "retry": lambda store, run: store.retry_quarantined(run.run_id),
    "remove": lambda store, run: store.remove_run(run.run_id, 100, unfinished=True),
    "start": lambda store, run: store.start_run(spec("a", "b", dag_run=run.spec.key.dag_run_id)),
    "supersede": lambda store, run: store.supersede(run.run_id),
}


@pytest.mark.parametrize("name", RIVALS)
def test_wherever_it_stands_a_rival_comes_before_it_or_after(open_another: OpenStore, name: str) -> None:
    """The supersession stands still before each of its statements, while the rival comes."""
    store, rival = open_another(), open_another(application="logio rival")
    number, reached = 0, True
    while reached:
        number += 1
        run = store.start_run(spec("a", "b", dag_run=f"run {number}"))
        pause = Pause()
        with ThreadPoolExecutor(2) as pool, before_statement(store, number, pause):
            superseding = pool.submit(store.supersede, run.run_id)
            reached = pause.is_reached_before(superseding)
            coming = pool.submit(QUICK.call, "the rival", lambda run=run: RIVALS[name](rival, run))
            wait([coming], STANDS_SECONDS)
            pause.release()
            outcome = superseding.exception(90), coming.exception(90)
        _check(store, run, name, outcome, None if outcome[1] else coming.result())
    assert number > 5


def _check(store: SqlLogStore, run: Run, name: str, outcome: Any, came: Any) -> None:
    """Exactly one of both orders has happened."""
    superseding, rival = outcome
    if name == "claim":
        assert (superseding is None) != (rival is None), outcome
        assert isinstance(superseding or rival, ProtocolViolation), outcome
        assert (store.group(run.run_id, "b").state is GroupState.CLAIMED) == isinstance(came, Claim)
        assert (store.find_run(run.uid).state is RunState.SUPERSEDED) == (superseding is None)
        return
    allowed = {"finish": ProtocolViolation, "retry": ProtocolViolation}.get(name)
    assert rival is None or (allowed is not None and isinstance(rival, allowed)), outcome
    if name == "remove":  # a run that is given up, or that nothing of was launched: it goes
        assert superseding is None or isinstance(superseding, UnknownRun), outcome
        return
    assert superseding is None, outcome
    assert store.find_run(run.uid).state is RunState.SUPERSEDED
    if name == "start":
        assert came.uid == run.uid or came.spec.key.generation == run.spec.key.generation + 1


# --- alone ------------------------------------------------------------------------------------------------------------


def test_a_run_that_is_to_be_alone_waits_for_the_others_of_its_pipeline(log_store: LogStore) -> None:
    driver = start_driver(
        log_store, group="a", run=log_store.start_run(spec("a", "b"), concurrent=ConcurrentRuns.REFUSE)
    )
    again = log_store.start_run(spec("a", "b"), concurrent=ConcurrentRuns.REFUSE)
    assert again == driver.run, "to start it again is no second run"
    before = rows_of(log_store)
    with pytest.raises(OtherRunUnfinished, match=re.escape("run-1 of sales, uid") + r".*\(a is running, b is new\)"):
        log_store.start_run(spec(dag_run="run-2"), concurrent=ConcurrentRuns.REFUSE)
    assert rows_of(log_store) == before
    other = log_store.start_run(
        replace(spec(), key=replace(spec().key, pipeline="other")), concurrent=ConcurrentRuns.REFUSE
    )
    assert other.state is RunState.RUNNING
    driver.session.commit([fx.FinishGroup()])
    ref = log_store.register(log_store.claim(driver.run.run_id, "b", expected=0, reason="test"), SOMEBODY)
    log_store.park(ref, "an error")
    with pytest.raises(OtherRunUnfinished, match=re.escape("(b is parked)")):
        log_store.start_run(spec(dag_run="run-2"), concurrent=ConcurrentRuns.REFUSE)
    assert log_store.supersede(driver.run.run_id), "given up"
    assert log_store.start_run(spec(dag_run="run-2"), concurrent=ConcurrentRuns.REFUSE).state is RunState.RUNNING


def test_a_run_whose_groups_have_finished_is_in_nobodys_way(log_store: LogStore) -> None:
    start_driver(log_store).session.commit([fx.FinishGroup()])
    assert log_store.start_run(spec(dag_run="run-2"), concurrent=ConcurrentRuns.REFUSE).state is RunState.RUNNING


def test_of_many_that_are_to_be_alone_one_begins(log_store: LogStore) -> None:
    names = [f"run-{number}" for number in range(6)]
    started = race(
        *[lambda name=name: log_store.start_run(spec(dag_run=name), concurrent=ConcurrentRuns.REFUSE) for name in names]
    )
    assert sum(isinstance(one, Run) for one in started) == 1, started
    assert sum(isinstance(one, OtherRunUnfinished) for one in started) == 5
    assert len(log_store.list_runs()) == 1


def test_runs_that_are_isolated_go_on_side_by_side(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    other = start_driver(log_store, run=log_store.start_run(spec(dag_run="run-2")))
    replace_driver(driver)
    assert {run.uid for run, _ in log_store.unfinished()} == {driver.run.uid, other.run.uid}
