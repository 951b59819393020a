"""What a person lets one run of a partition do: it reaches the next run of that partition, and no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

import pytest

from airflow_logio.errors import ConfigurationError, IncompatibleRun, ProtocolViolation
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.states import RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Allowed, RunSpec
from airflow_logio.store.records.start_records import Attempt, Decision
from airflow_logio.store.sql.store import SqlLogStore
from tests.conftest import QUICK
from tests.store.conftest import OpenStore
from tests.support.faults import Injected, Pause, around_commit, before_statement, inject
from tests.support.logs import SOMEBODY, spec

STANDS_SECONDS = 0.1

MAY = frozenset({Allowed.TAKE_OVER})
NOTHING = frozenset[Allowed]()
OWNS = (WriterShape("save", "TableWriter", ("wh", "t"), Together.BY_PARTITION, Repeats.REPLACED),)


def of_day(name: str = "run-1", day: str = "2026-03-01", allowed: frozenset[Allowed] = NOTHING) -> RunSpec:
    one = spec("a", dag_run=name)
    return replace(one, partition=day, writers=OWNS, allowed=allowed)


def test_a_run_keeps_what_it_was_allowed_for_each_who_reads_it(log_store: LogStore) -> None:
    run = log_store.start_run(of_day(allowed=MAY))
    claim = log_store.claim(run.run_id, "a", expected=0, reason="test")
    assert log_store.declare_dead(log_store.register(claim, SOMEBODY), "test")
    log_store.claim(run.run_id, "a", expected=1, reason="recovery")
    assert log_store.find_run(run.uid).spec.allowed == log_store.start_run(of_day()).spec.allowed == MAY
    assert log_store.start_run(of_day(day="2026-03-01", allowed=MAY)).uid == run.uid, "the same command resumes it"


def test_a_run_that_is_there_is_allowed_no_more(log_store: LogStore) -> None:
    run = log_store.start_run(of_day())
    with pytest.raises(IncompatibleRun, match=rf"begun without --take-over.*`logio again {run.uid[:8]} --take-over`"):
        log_store.start_run(of_day(allowed=MAY))
    assert log_store.find_run(run.uid) == run


def test_what_is_said_at_giving_up_reaches_the_next_run_only(log_store: LogStore) -> None:
    first = log_store.start_run(of_day())
    assert log_store.supersede(first.run_id, allowed=MAY)
    assert log_store.find_run(first.uid).next_allowed == MAY
    other_day = log_store.start_run(of_day("run-2", "2026-03-02"))
    second = log_store.start_run(of_day())
    assert (other_day.spec.allowed, second.spec.allowed, log_store.find_run(first.uid).next_allowed) == (
        NOTHING,
        MAY,
        NOTHING,
    )
    assert log_store.supersede(second.run_id)
    third = log_store.start_run(of_day())
    assert third.spec.allowed == NOTHING, "no word, no leave: also of a run that had it"


def test_it_reaches_the_next_run_of_the_partition_whatever_begins_it(log_store: LogStore) -> None:
    """A DAG run that was made anew under another name, or `logio run` for a run of Airflow."""
    first = log_store.start_run(of_day("scheduled"))
    assert log_store.supersede(first.run_id, allowed=MAY)
    assert log_store.start_run(of_day("backfill")).spec.allowed == MAY
    fresh = log_store.start_run(of_day("scheduled"))
    assert (fresh.spec.key.generation, fresh.spec.allowed) == (2, NOTHING), "it is spent"


def test_it_may_be_said_later_until_the_next_run_begins(log_store: LogStore) -> None:
    first = log_store.start_run(of_day())
    assert log_store.supersede(first.run_id, because="late rows")
    assert not log_store.supersede(first.run_id, allowed=MAY)
    assert not log_store.supersede(first.run_id), "another word takes nothing back"
    found = log_store.find_run(first.uid)
    assert (found.next_allowed, found.because) == (MAY, "late rows")
    second = log_store.start_run(of_day())
    assert second.spec.allowed == MAY
    with pytest.raises(ProtocolViolation, match=rf"uid {second.uid[:8]}.*`logio again {second.uid[:8]} --take-over`"):
        log_store.supersede(first.run_id, allowed=MAY)
    assert log_store.find_run(second.uid).state is RunState.RUNNING


def test_a_run_that_owns_no_day_can_be_allowed_nothing(log_store: LogStore) -> None:
    whole = log_store.start_run(spec("a", dag_run="whole"))
    appends = replace(OWNS[0], together=Together.ALWAYS)
    added = log_store.start_run(replace(of_day("added"), writers=(appends,)))
    for run, why in ((whole, "is for no partition"), (added, r"no writer .* has by=")):
        with pytest.raises(ConfigurationError, match=rf"--take-over is for runs that own a day.*{why}"):
            log_store.supersede(run.run_id, allowed=MAY)
        assert log_store.find_run(run.uid) == run


def test_a_clear_in_airflow_begins_the_run_that_may(log_store: LogStore) -> None:
    first = log_store.start_attempt(of_day(), Attempt(1, 1, 0, 10.0)).run
    assert log_store.supersede(first.run_id, allowed=MAY)
    cleared = log_store.start_attempt(of_day(), Attempt(2, 2, 1, 10.0))
    assert (cleared.decision, cleared.run.spec.allowed) == (Decision.AGAIN, MAY)
    retried = log_store.start_attempt(of_day(), Attempt(3, 2, 1, 10.0))
    assert retried.run == cleared.run
    assert log_store.supersede(cleared.run.run_id)
    again = log_store.start_attempt(of_day(), Attempt(4, 4, 2, 10.0))
    assert (again.decision, again.run.spec.allowed) == (Decision.AGAIN, NOTHING), "a clear alone lets nothing"


def test_a_lost_answer_changes_nothing(sql_store: SqlLogStore) -> None:
    """The word, and the start, come again from who has had no answer: of nothing, and of what is done."""
    first = sql_store.start_run(of_day())
    for found, where in ((NOTHING, "before"), (MAY, "after")):
        with around_commit(sql_store, **{where: inject}), pytest.raises(Injected):
            sql_store.supersede(first.run_id, allowed=MAY)
        assert sql_store.find_run(first.uid).next_allowed == found
    assert not sql_store.supersede(first.run_id, allowed=MAY)
    for left, where in ((MAY, "before"), (NOTHING, "after")):
        with around_commit(sql_store, **{where: inject}), pytest.raises(Injected):
            sql_store.start_run(of_day())
        assert sql_store.find_run(first.uid).next_allowed == left
    assert sql_store.start_run(of_day()).spec.allowed == MAY
    assert len(sql_store.list_runs()) == 2


@pytest.mark.parametrize("was_given_up", [False, True])
def test_a_start_comes_before_the_word_or_has_it(open_another: OpenStore, was_given_up: bool) -> None:
    """The word stands still before each of its statements, while the next run begins."""
    store, rival = open_another(), open_another(application="logio rival")
    number, reached, orders = 0, True, set[bool]()
    while reached:
        number += 1
        described = of_day(f"run {number}", f"2026-01-{number:02}")
        first = store.start_run(described)
        if was_given_up:
            assert store.supersede(first.run_id)
        pause = Pause()
        with ThreadPoolExecutor(2) as pool, before_statement(store, number, pause):
            saying = pool.submit(store.supersede, first.run_id, allowed=MAY)
            reached = pause.is_reached_before(saying)
            coming = pool.submit(QUICK.call, "the rival", lambda described=described: rival.start_run(described))
            wait([coming], 30 if number == 1 else STANDS_SECONDS)  # before the first one, nothing is locked
            pause.release()
            refused, came = saying.exception(90), coming.result(90)
        next_one = store.start_run(described)
        if refused is None:
            assert next_one.spec.allowed == MAY and came.uid in (first.uid, next_one.uid)
        else:
            assert isinstance(refused, ProtocolViolation) and was_given_up
            assert (came.uid, came.spec.allowed) == (next_one.uid, NOTHING)
        orders.add(refused is None)
    assert number > 5 and (orders == {True, False} if was_given_up else orders == {True})
