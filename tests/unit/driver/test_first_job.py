"""Mode ``executors`` after a start: the first job is small, and no job waits for a warm-up while one is due."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_logio.driver import spark_session
from airflow_logio.driver.spark_jobs.generation import FRAME_BOUNDS, extent, frame_extent
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.launch.driver_config import needs_spark
from airflow_logio.protocol.job_queue import JobBounds, JobQueue
from airflow_logio.spark.dataset_parts import DatasetPart
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.task_files import MAX_PARTITIONS
from pipelines.sales import sales


class Operator:
    """As much of an operator's protocol as `JobQueue` asks: what is triggered, with its records."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.triggered = {
            inset_id: SimpleNamespace(held=[pa.table({"n": range(size)})]) for inset_id, size in sizes.items()
        }

    def next_triggered(self) -> list[str]:
        return list(self.triggered)

    def inputs_ended(self) -> bool:
        return True


def test_the_first_job_is_small_and_the_next_takes_what_has_waited() -> None:
    first = JobBounds().first_records
    operator = Operator({f"{number}": first // 4 for number in range(20)})
    protocol: Any = SimpleNamespace(operators={"op": operator})
    queue = JobQueue(protocol, ["op"], extent)
    jobs = []
    for _ in range(2):
        queue.note("op", 0.0)
        assert queue.is_due("op", 0.0)
        jobs.append(queue.take("op", 0.0))
        for inset_id in jobs[-1]:
            del operator.triggered[inset_id]
    assert [len(job) for job in jobs] == [4, 16]
    assert [*jobs[0], *jobs[1]] == [f"{number}" for number in range(20)], "in the order triggered"


def test_enough_waits_until_a_job_takes_it() -> None:
    bounds = JobBounds(most_records=100, first_records=100, waiting_bytes=2**40)
    operators = {name: Operator({f"{name}{number}": 50 for number in range(3)}) for name in ("one", "other")}
    protocol: Any = SimpleNamespace(operators=operators)
    queue = JobQueue(protocol, operators, extent, bounds)
    for name in operators:
        queue.note(name, 0.0)
        queue.note(name, 0.0)
    assert not queue.is_full(), "150 each, and what was noted twice counts once"
    operators["one"].triggered["more"] = SimpleNamespace(held=[pa.table({"n": range(50)})])
    queue.note("one", 0.0)
    assert queue.is_full()
    for inset_id in queue.take("one", 0.0):
        del operators["one"].triggered[inset_id]
    assert not queue.is_full() and queue.is_due("one", 0.0)
    assert len(queue.take("one", 0.0)) == 2 and queue.due_at("one", 0.0) is None
    in_bytes = JobQueue(protocol, ["other"], extent, JobBounds(waiting_bytes=3 * 50 * 8))
    assert not in_bytes.is_full()
    in_bytes.note("other", 0.0)
    assert in_bytes.is_full()


def test_a_job_over_datasets_is_bounded_in_input_sets_and_in_bytes() -> None:
    """After the first one; what was not counted since a recovery counts as small."""

    def part(size: int) -> DatasetPart:
        return DatasetPart(cast(Dataset, None), size)

    small = {f"{number}": [part(1), part(0)] for number in range(600)}
    large = {f"large {number}": {"a": [part(2**30)], "b": [part(2**30)]} for number in range(3)}
    operator = Operator({})
    operator.triggered = {inset_id: SimpleNamespace(held=held) for inset_id, held in (small | large).items()}
    protocol: Any = SimpleNamespace(operators={"op": operator})
    queue = JobQueue(protocol, ["op"], frame_extent, FRAME_BOUNDS)
    jobs = []
    while operator.triggered:
        queue.note("op", 0.0)
        jobs.append(queue.take("op", 0.0))
        for inset_id in jobs[-1]:
            del operator.triggered[inset_id]
    assert [len(job) for job in jobs] == [16, 256, 256, 73, 2], "the last are 2 GiB each"
    assert max(map(len, jobs)) <= MAX_PARTITIONS, "a task may have to write a file for each"


class Builder:
    def appName(self, name: str) -> Builder:
        return self

    def getOrCreate(self) -> str:
        return "session"


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Sessions that were warmed up; pyspark is replaced by something without a JVM."""
    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkConf=lambda: None))
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace(SparkSession=SimpleNamespace(builder=Builder())))
    seen: list[Any] = []
    monkeypatch.setattr(spark_session, "warm_up", seen.append)
    return seen


def test_a_session_that_nobody_waits_for_is_warmed(warmed: list[Any]) -> None:
    sessions = SparkSessions()
    sessions.begin()
    assert sessions._thread is not None
    sessions._thread.join()
    assert warmed == ["session"] and sessions.is_ready()


def test_a_session_that_is_waited_for_is_handed_over_at_once(warmed: list[Any]) -> None:
    sessions = SparkSessions()
    assert sessions.get() == "session"
    assert warmed == [] and sessions.is_ready()


def test_a_session_that_cannot_be_made_is_an_error_for_everybody(
    warmed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise RuntimeError("no Java gateway")

    monkeypatch.setitem(sys.modules, "pyspark", SimpleNamespace(SparkConf=refuse))
    sessions = SparkSessions()
    sessions.begin()
    for ask in (sessions.get, sessions.raise_if_failed):
        with pytest.raises(RuntimeError, match="no Java gateway"):
            ask()
    assert not sessions.is_ready()


def test_a_group_needs_spark_if_one_of_its_operators_runs_in_jobs() -> None:
    assert [group for group in sales.groups if needs_spark(sales, group)] == ["hourly"]


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"),
    [
        (1, "8g", 1),
        (2, "8g", 1),
        (8, "8g", 4),
        (400, "8g", 8),
        (400, "512m", 2),
        (400, "512", 2),
        (400, "1048576k", 4),
        (400, "1073741824b", 4),
        (400, None, 4),
        (400, "128m", 1),
        (400, "much", 1),
    ],
)
def test_events_side_by_side_are_bounded_by_cores_and_by_the_drivers_memory(
    cores: int, memory: str | None, jobs: int
) -> None:
    conf = SimpleNamespace(get=lambda name, default: default if memory is None else memory)
    session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=cores), conf=conf)
    assert spark_session.jobs_for(session) == jobs


@pytest.mark.parametrize(
    ("most", "cores", "jobs"), [("100", "4", 8), ("3", "2", 3), ("3", None, 1), (None, "1", 8), ("1", "1", 1)]
)
def test_with_dynamic_allocation_those_executors_count_that_work_would_start(
    most: str | None, cores: str | None, jobs: int
) -> None:
    """Spark starts executors for tasks that wait: with a job for each that is there, there would never be more."""
    said = {
        "spark.driver.memory": "8g",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": most,
        "spark.executor.cores": cores,
        "spark.master": "yarn",
    }
    conf = SimpleNamespace(get=lambda name, default: default if said.get(name) is None else said[name])
    session = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2), conf=conf)
    assert spark_session.jobs_for(session) == jobs
    said["spark.master"] = "local[2]"
    assert spark_session.jobs_for(session) == 1, "Spark ignores it there"
