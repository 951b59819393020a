"""Whether anybody looks for failed groups: said in time, and not too often."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from airflow_logio.errors import LogUnavailable
from airflow_logio.status.condition import LEFT_SECONDS as LEFT_ALONE_SECONDS
from airflow_logio.status.condition import MISSING_SECONDS
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.status_records import SupervisorRecord
from airflow_logio.supervision.presence import ASK_SECONDS, LEFT_SECONDS, WARN_SECONDS, SupervisionWatch, missing
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import spec


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(clock: Clock) -> MemoryLogStore:
    return MemoryLogStore(clock)


def started(store: MemoryLogStore, supervision: Supervision) -> Run:
    return store.start_run(replace(spec(), supervision=supervision))


def test_a_run_of_a_terminal_misses_nobody_but_its_process(store: MemoryLogStore) -> None:
    run = started(store, Supervision.PROCESS)
    mine = SupervisorRecord("process 12 on host", None, run.uid, LEFT_ALONE_SECONDS - 1)
    assert missing(run, mine) is None
    said = missing(run, replace(mine, age_seconds=LEFT_ALONE_SECONDS + 3))
    assert said is not None and "process 12 on host did so 33 s ago, and not since" in said
    assert f"`logio retry {run.uid[:8]}`" in said
    assert missing(replace(run, created_at=time.time()), None) is None, "it has just begun"


@pytest.mark.parametrize(
    ("supervision", "words"), [(Supervision.TASK, "supervising task"), (Supervision.DAG, "recovery DAG is paused")]
)
def test_what_is_missing_is_named(store: MemoryLogStore, supervision: Supervision, words: str) -> None:
    run = started(store, supervision)
    assert missing(run, SupervisorRecord("x", None, None, MISSING_SECONDS - 1)) is None
    late = missing(run, SupervisorRecord("DAG logio_recovery", None, None, MISSING_SECONDS + 5))
    assert late is not None and words in late and "DAG logio_recovery did so 65 s ago" in late
    never = missing(run, None)
    assert never is not None and "none ever has" in never


def test_it_is_said_now_and_then(store: MemoryLogStore, clock: Clock) -> None:
    watch = SupervisionWatch(store.supervisors, started(store, Supervision.TASK), clock)
    assert watch.warning() is None, "a run that has just begun is given time"
    clock.now += ASK_SECONDS
    assert watch.warning() is not None
    clock.now += ASK_SECONDS
    assert watch.warning() is None, "it was said a moment ago"
    clock.now += WARN_SECONDS
    assert watch.warning() is not None
    store.note_supervisor("a task")
    clock.now += WARN_SECONDS / 4
    assert watch.warning() is None


def test_a_dead_group_is_left_to_its_own_task_only_for_long_and_only_under_a_task(
    store: MemoryLogStore, clock: Clock
) -> None:
    watches = {
        kind: SupervisionWatch(store.supervisors, started(store, kind), clock)
        for kind in (Supervision.TASK, Supervision.DAG)
    }
    watch = watches[Supervision.TASK]
    clock.now += ASK_SECONDS
    watch.warning()
    assert not watch.is_left(dead=True)
    clock.now += LEFT_SECONDS
    assert watch.is_left(dead=True)
    assert not watch.is_left(dead=False), "a process has recovered it"
    assert not watch.is_left(dead=True), "this is another death"
    store.note_supervisor("a task")
    clock.now += max(LEFT_SECONDS, ASK_SECONDS)
    watch.warning()
    assert not watch.is_left(dead=True), "a supervisor looks again"


def test_under_a_recovery_dag_it_is_never_left(store: MemoryLogStore, clock: Clock) -> None:
    watch = SupervisionWatch(store.supervisors, started(store, Supervision.DAG), clock)
    clock.now += ASK_SECONDS
    assert watch.warning() is not None
    clock.now += 10 * LEFT_SECONDS
    assert not watch.is_left(dead=True)


def test_a_log_that_is_away_says_nothing(store: MemoryLogStore, clock: Clock) -> None:
    def away() -> list[SupervisorRecord]:
        raise LogUnavailable("away")

    watch = SupervisionWatch(away, started(store, Supervision.TASK), clock)
    clock.now += ASK_SECONDS
    assert watch.warning() is None
    assert not watch.is_left(dead=True)
