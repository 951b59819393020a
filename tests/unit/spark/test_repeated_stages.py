"""Stages that Spark computes twice, because what they had shuffled is lost: the evaluation is done again (ADR-199)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_logio import DatasetWriter
from airflow_logio.dataflow import stateless
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import LogUnavailable
from airflow_logio.spark import repeated_stages
from airflow_logio.spark.repeated_stages import Stage, computed_once, computed_twice
from tests.support.waiting import eventually
from tests.unit.spark.test_chains import Work

A, B, C = (frozenset({name}) for name in "abc")


def first(data: frozenset[str] | None = None) -> Stage:
    return Stage(0, data)


@pytest.mark.parametrize(
    ("jobs", "stages"),
    [
        ({}, {}),
        ({0: [0]}, {0: first(A)}),
        ({0: [0, 1, 2]}, {0: first(A), 1: first(B), 2: first(C)}),
        ({0: [0], 1: [1, 2], 2: [3, 4]}, {0: first(A), 1: first(), 2: first(B), 3: first(), 4: first(C)}),
        ({0: [0], 1: [1], 2: [2]}, {0: first(A), 1: first(A), 2: first(A)}),
        ({0: [0], 1: [0, 1]}, {0: first(A), 1: first(B)}),
    ],
    ids=["none", "narrow", "not adaptive", "adaptive", "a result in parts", "one stage of two jobs"],
)
def test_stages_that_each_ran_once_are_well(jobs: Mapping[int, Sequence[int]], stages: Mapping[int, Stage]) -> None:
    assert computed_twice(jobs, stages) == ""


@pytest.mark.parametrize(
    ("jobs", "stages", "says"),
    [
        (
            {0: [0], 1: [1, 2]},
            {0: first(A), 1: first(A), 2: first(B)},
            "stage 1 of job 1 has made records again",
        ),
        ({0: [0, 1]}, {0: first(A), 1: Stage(1, B)}, "stage 1 was attempted 2 times"),
        (
            {0: [0], 1: [1, 2]},
            {0: first(A), 1: None, 2: first(B)},
            r"not know stage 1 any more.*retainedStages",
        ),
    ],
    ids=["made again by the next job", "attempted twice", "forgotten"],
)
def test_what_ran_twice_or_may_have_is_said(
    jobs: Mapping[int, Sequence[int]], stages: Mapping[int, Stage | None], says: str
) -> None:
    assert re.search(says, computed_twice(jobs, stages))


def lose_all(session: Any) -> None:
    """As when all executors are lost: what was shuffled is nowhere any more."""
    tracker = session._jvm.org.apache.spark.SparkEnv.get().mapOutputTracker()
    for shuffle in list(tracker.shuffleStatuses().keys().mkString(",").split(",")):
        tracker.unregisterAllMapAndMergeOutput(int(shuffle))


def test_a_shuffle_that_is_made_again_by_the_next_job_is_found_and_nothing_else(spark: Any) -> None:
    shuffled = spark.range(0, 100, 1, 2).rdd.map(lambda row: (row.id % 3, row.id)).groupByKey(2)
    with computed_once(spark, lambda: None):
        assert shuffled.count() == 3
        assert shuffled.count() == 3, "a job reads what another one has shuffled"
        spark.range(0, 100, 1, 2).repartition(3).groupBy("id").count().orderBy("id").toArrow()
    with pytest.raises(LogUnavailable, match=r"stage \d+ of job \d+ has made records again .*could be mixed"):  # noqa: SIM117
        with computed_once(spark, lambda: None):
            lose_all(spark)
            again = spark.range(0, 100, 1, 2).rdd.map(lambda row: (row.id % 3, row.id)).groupByKey(2)
            again.count()
            lose_all(spark)
            again.count()


def test_an_error_in_the_block_is_that_error(spark: Any) -> None:
    with pytest.raises(ValueError, match="first"), computed_once(spark, lambda: None):
        raise ValueError("first")
    assert not spark.sparkContext.getJobTags()


def test_jobs_that_spark_starts_in_threads_of_its_own_are_seen(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of broadcasts, of subqueries, and those whose answer comes as Arrow."""
    seen: list[set[int]] = []
    look = repeated_stages.computed_twice

    def noted(jobs: Mapping[int, Sequence[int]], stages: Mapping[int, Stage | None]) -> str:
        seen.append(set(jobs))
        return look(jobs, stages)

    monkeypatch.setattr(repeated_stages, "computed_twice", noted)
    some = spark.range(0, 100, 1, 2)
    some.createOrReplaceTempView("some")
    before = job_without_tasks(spark, "test-before")
    with computed_once(spark, lambda: None):
        joined = some.join(some.groupBy("id").count().hint("broadcast"), "id")
        assert joined.where("id < (SELECT max(id) FROM some WHERE id > 7)").toArrow().num_rows == 99
    behind = job_without_tasks(spark, "test-behind")
    [jobs] = seen
    assert len(jobs) > 2
    assert jobs == set(range(before + 2, behind - 1)), "all but the two marks"


def job_without_tasks(session: Any, tag: str) -> int:
    """Its number."""
    context = session.sparkContext
    repeated_stages._mark(context, tag)
    eventually(lambda: repeated_stages._has_ended(context, tag), what="Spark tells of a job")
    [job] = context._jsc.sc().statusTracker().getJobIdsForTag(tag)
    return int(job)


def test_a_function_that_removes_the_tag_of_its_jobs_is_not_trusted(spark: Any) -> None:
    with pytest.raises(LogUnavailable, match="leave the tags of jobs alone"), computed_once(spark, lambda: None):
        spark.sparkContext.clearJobTags()
        spark.range(3).count()


def test_a_store_that_does_not_answer_or_has_lost_events_is_not_trusted(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = iter([0, 1])
    monkeypatch.setattr(repeated_stages, "_dropped", lambda _: next(dropped))
    with (
        pytest.raises(LogUnavailable, match=r"does not tell .*eventqueue\.capacity"),
        computed_once(spark, lambda: None),
    ):
        spark.range(3).count()


class Losing:
    """A function that has a shuffle of its first calls made twice."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.calls = 0

    def __call__(self, orders: Any) -> Any:
        self.calls += 1
        shuffled = orders.select("id").rdd.map(lambda row: (row.id % 3, row.id)).groupByKey(2)
        assert shuffled.count() == 3
        if self.calls <= self.times:
            lose_all(orders.sparkSession)
        assert shuffled.count() == 3
        return orders


def test_an_event_of_which_spark_has_computed_a_part_twice_is_evaluated_again_in_another_folder(
    tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_is_watched", True)
    work = Work(tmp_path, sessions)
    losing = Losing(2)
    work.pipeline.operator("losing", stateless(mode="dataframe", materialize_input=True)(losing.__call__), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), "losing.out")
    assert work.run("losing", "save")
    assert sorted(row["id"] for row in work.published("out")) == list(range(300))
    assert losing.calls == 2 + 3
