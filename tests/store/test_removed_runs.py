"""Runs that are old enough are found; of those that were removed the log knows which they were, and what may follow them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest
import sqlalchemy as sa

from airflow_logio.errors import IncompatibleRun, ProtocolViolation, RunRemoved, UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, Run, RunSpec
from airflow_logio.store.records.start_records import Attempt, Decision
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import Pause, before_statement
from tests.support.logs import assigned, sent, spec, start_driver
from tests.support.racing import race

DAY = "2026-03-01"
STANDS_SECONDS = 0.1
REPLACED = WriterShape("save", "TableWriter of table 'top'", ("w", "top"), Together.BY_PARTITION, Repeats.REPLACED)
ADDED = replace(REPLACED, writer="late", repeats=Repeats.ADDED)


def of(
    name: str,
    partition: str | None = DAY,
    *,
    keep: float | None = None,
    writers: Sequence[WriterShape] = (REPLACED,),
    pipeline: str = "clicks",
) -> RunSpec:
    plain = spec(dag_run=name)
    key = replace(plain.key, pipeline=pipeline)
    return replace(plain, key=key, partition=partition, keep_seconds=keep, writers=tuple(writers))


def finished(store: LogStore, described: RunSpec) -> Run:
    run = store.start_run(described)
    driver = start_driver(store, run=run)
    driver.session.commit([fx.FinishGroup()])
    driver.session.close()
    assert store.finish_run(run.run_id)
    return store.find_run(run.uid)


def remove(store: LogStore, run: Run, reason: str = "by keep_runs='90d'") -> None:
    while store.remove_run(run.run_id, 100, reason=reason).more:
        pass


# --- which runs are old enough ----------------------------------------------------------------------------------------


def test_what_has_ended_is_removed_and_what_waits_for_a_person_stays(log_store: LogStore) -> None:
    done = finished(log_store, of("done", keep=0.0))
    given_up = log_store.start_run(of("given up", "2026-03-02", keep=0.0))
    log_store.supersede(given_up.run_id)
    for name in ("unfinished", "parked", "halted", "aside"):
        run = log_store.start_run(of(name, None, keep=0.0))
        driver = start_driver(log_store, run=run)
        if name == "parked":
            log_store.park(driver.ref, "a test")
        if name == "halted":
            log_store.halted(driver.ref)
        if name == "aside":
            aside = fx.SetAside("receiver", "A", 1, "a test")
            driver.session.commit([sent(1), assigned(1, "A"), aside, fx.FinishGroup()])
            assert log_store.finish_run(run.run_id)
            assert log_store.find_run(run.uid).state is RunState.QUARANTINED
        driver.session.close()
    assert {run.uid for run in log_store.expired("clicks", 10)} == {done.uid, given_up.uid}
    assert [run.uid for run in log_store.expired("clicks", 1)] == [done.uid]
    assert log_store.expired("other", 10) == []
    log_store.start_run(of("the youngest says so", None, keep=3600.0))
    assert log_store.expired("clicks", 10) == []
    log_store.start_run(of("or nothing", None))
    assert log_store.expired("clicks", 10) == []
    assert log_store.take_turns(0.0) == {}


def test_a_word_on_the_next_run_keeps_the_one_it_was_said_of(log_store: LogStore) -> None:
    run = finished(log_store, of("a", keep=0.0))
    log_store.supersede(run.run_id, allowed=[Allowed.TAKE_OVER])
    assert log_store.expired("clicks", 10) == []
    with pytest.raises(
        ProtocolViolation, match=r"lets the next run of 2026-03-01 have --take-over, and that has not begun"
    ):
        remove(log_store, run)  # by a process that listed it before
    assert log_store.removable(0.0) == []
    assert [one.uid for one in log_store.removable(0.0, unfinished=True)] == [run.uid]
    assert log_store.start_run(of("b", keep=0.0)).spec.allowed == {Allowed.TAKE_OVER}
    assert [one.uid for one in log_store.expired("clicks", 10)] == [run.uid]


def test_a_person_may_remove_a_run_with_its_word_on_the_next_one(log_store: LogStore) -> None:
    run = finished(log_store, of("a"))
    log_store.supersede(run.run_id, allowed=[Allowed.TAKE_OVER])
    while log_store.remove_run(run.run_id, 100, unfinished=True).more:
        pass
    assert log_store.start_run(of("b")).spec.allowed == frozenset()


def test_a_word_is_refused_or_outlives_the_removal(open_another: OpenStore) -> None:
    """The word stands still before each of its statements, while the run is removed by itself."""
    store, rival = open_another(), open_another(application="logio rival")
    number, reached, orders = 0, True, set[bool]()
    while reached:
        number += 1
        run = finished(store, of(f"run {number}", f"2026-01-{number:02}", keep=0.0))
        assert store.supersede(run.run_id)
        pause = Pause()
        with ThreadPoolExecutor(2) as pool, before_statement(store, number, pause):
            saying = pool.submit(store.supersede, run.run_id, allowed=[Allowed.TAKE_OVER])
            reached = pause.is_reached_before(saying)
            removing = pool.submit(QUICK.call, "the rival", lambda run=run: remove(rival, run))
            wait([removing], 30 if number == 1 else STANDS_SECONDS)  # before the first one, nothing is locked
            pause.release()
            refused, stays = saying.exception(30), removing.exception(30)
        assert isinstance(refused, UnknownRun) if stays is None else isinstance(stays, ProtocolViolation), (
            refused,
            stays,
        )
        allowed = store.start_run(of(f"next {number}", f"2026-01-{number:02}")).spec.allowed
        assert allowed == (frozenset() if stays is None else {Allowed.TAKE_OVER})
        orders.add(stays is None)
    assert number > 5 and orders == {True, False}


def test_an_interrupted_removal_comes_first(log_store: LogStore) -> None:
    runs = [finished(log_store, of(name, keep=0.0)) for name in ("a", "b", "c")]
    log_store.remove_run(runs[1].run_id, 1)
    assert [run.uid for run in log_store.expired("clicks", 10)] == [runs[1].uid, runs[0].uid, runs[2].uid]


def test_one_process_has_the_turn(log_store: LogStore) -> None:
    log_store.start_run(of("a", keep=60.0))
    log_store.start_run(of("a", keep=90.0, pipeline="other"))
    log_store.start_run(of("a", pipeline="never"))
    assert log_store.take_turns(600.0, pipeline="clicks") == {"clicks": 60.0}
    found = race(*[lambda: log_store.take_turns(600.0)] * 4)
    assert sorted(found, key=repr) == [{"other": 90.0}, {}, {}, {}]
    assert log_store.take_turns(0.0) == {"clicks": 60.0, "other": 90.0}


# --- what the log knows of them ---------------------------------------------------------------------------------------


def test_who_asks_for_it_is_told_when_and_why_it_went(log_store: LogStore) -> None:
    run = finished(log_store, of("nightly"))
    log_store.start_run(of("the row of the last one stays on SQLite", None, pipeline="other"))
    log_store.remove_run(run.run_id, 1, reason="by keep_runs='90d'")
    half = log_store.removed_run(run.uid)
    assert half is not None, "from the first batch on"
    remove(log_store, run, "by another one")
    assert log_store.removed_run(run.uid[:9]) == log_store.removed_run("nightly") == half, "the first reason stays"
    assert (half.key, half.partition, half.ordinal) == (run.spec.key, DAY, run.ordinal)
    assert (half.state, half.created_at, half.ended_at) == (RunState.FINISHED, run.created_at, run.ended_at)
    told = rf"run nightly of clicks, uid {run.uid[:8]}, of partition {DAY}, was removed from the log on 20[\d :-]+ UTC, by k"
    for name in (run.uid, run.uid[:8], "nightly", f"clicks@{DAY}"):
        with pytest.raises(RunRemoved, match=told):
            log_store.find_run(name)
    with pytest.raises(UnknownRun, match="no run 'never'"):
        log_store.find_run("never")
    again = log_store.start_run(of("nightly"))
    assert log_store.find_run("nightly") == again, "what is there is found first"
    assert (again.ordinal, again.spec.key.generation) == (2, 2)


def test_they_are_listed_by_what_is_asked_for(log_store: LogStore) -> None:
    runs = [finished(log_store, of(f"of {day}", f"2026-03-0{day}")) for day in (1, 2, 3)]
    other = finished(log_store, of("of 1", pipeline="other"))
    for run in (*runs, other):
        remove(log_store, run)

    def uids(**where: object) -> list[str]:
        return [one.uid for one in log_store.removed_runs(**where)]  # type: ignore[arg-type]

    first, second, third = (run.uid for run in runs)
    assert uids(pipeline="clicks") == [third, second, first]
    assert uids(pipeline="clicks", limit=2, oldest_first=True) == [first, second]
    assert uids(pipeline="clicks", partitions=("2026-03-02", "2026-03-03")) == [third, second]
    assert uids(pipeline="clicks", ordinals=(2, 2)) == [second]
    assert sorted(uids(dag_run_id="of 1")) == sorted([first, other.uid])


def test_up_to_which_run_all_are_removed(log_store: LogStore) -> None:
    assert log_store.removed_up_to("clicks") == 0
    runs = [finished(log_store, of(f"of {day}", f"2026-03-0{day}")) for day in (1, 2, 3)]
    finished(log_store, of("a", pipeline="other"))
    assert log_store.removed_up_to("clicks") == 0
    remove(log_store, runs[1])
    assert log_store.removed_up_to("clicks") == 0
    log_store.remove_run(runs[0].run_id, 1)
    assert log_store.removed_up_to("clicks") == 2, "one that is being removed does nothing any more"
    remove(log_store, runs[2])
    assert log_store.removed_up_to("clicks") == 3
    assert log_store.start_run(of("next")).ordinal == 4
    assert log_store.removed_up_to("clicks") == 3


# --- what begins in their place ---------------------------------------------------------------------------------------


def test_a_day_whose_run_was_removed_is_computed_again(log_store: LogStore) -> None:
    run = finished(log_store, of("nightly"))
    remove(log_store, run)
    made = log_store.start_attempt(of("nightly"), Attempt(2, 2, 1, 200.0))
    assert (made.decision, made.run.ordinal, made.run.spec.key.generation) == (Decision.AGAIN, 2, 2)
    assert made.run.created_at > run.created_at


def test_rows_that_would_be_there_twice_are_appended_at_a_persons_word_only(log_store: LogStore) -> None:
    """A clear of last quarter's DAG run, or the same command again: the log no longer knows that it had finished."""
    described = of("nightly", writers=(REPLACED, ADDED))
    run = finished(log_store, described)
    remove(log_store, run)
    refused = rf"by keep_runs='90d'.*what late .TableWriter of table 'top'. has written.*`logio again {run.uid[:8]}`"
    with pytest.raises(ProtocolViolation, match=refused):
        log_store.start_attempt(described, Attempt(2, 2, 1, 200.0))
    with pytest.raises(ProtocolViolation, match=refused):
        log_store.start_run(described)
    assert log_store.list_runs(state=RunState.RUNNING) == []
    assert log_store.give_up_removed(run.uid)
    assert not log_store.give_up_removed(run.uid)
    assert log_store.start_run(described).spec.key.generation == 2


def test_a_finished_run_of_no_partition_is_not_computed_again_because_it_is_old(log_store: LogStore) -> None:
    """As long as it was in the log, a clear did nothing. Now it would replace what later runs have written."""
    described = of("nightly", None)
    run = finished(log_store, described)
    log_store.start_run(of("a later one", None))
    remove(log_store, run)
    with pytest.raises(
        ProtocolViolation, match=f"had finished, and nothing of it is computed again.*again {run.uid[:8]}"
    ):
        log_store.start_run(described)
    assert log_store.give_up_removed(run.uid)
    assert log_store.start_run(described).spec.key.generation == 2


def test_what_was_given_up_before_it_was_removed_may_be_followed(log_store: LogStore) -> None:
    described = of("nightly", writers=(ADDED,))
    run = finished(log_store, described)
    log_store.supersede(run.run_id)
    remove(log_store, run)
    assert log_store.start_run(described).spec.key.generation == 2


def test_a_name_keeps_its_partition(log_store: LogStore) -> None:
    remove(log_store, finished(log_store, of("nightly")))
    with pytest.raises(IncompatibleRun, match=f"of partition {DAY}, was removed.*now its name is asked for 2026-03-02"):
        log_store.start_run(of("nightly", "2026-03-02"))


def test_a_state_that_a_later_version_has_written_counts_as_finished(sql_store: SqlLogStore) -> None:
    described = of("nightly", writers=(ADDED,))
    remove(sql_store, run := finished(sql_store, described))
    with sql_store.engine.begin() as connection:
        connection.execute(sa.update(schema.removed_run).values(state="archived"))
    with pytest.raises(ProtocolViolation, match=run.uid[:8]):
        sql_store.start_run(described)
