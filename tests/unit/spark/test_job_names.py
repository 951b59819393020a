"""What Spark's own pages and event log say of a group's jobs: whose they are, and what they work for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_logio import Tumbling, generate
from airflow_logio.driver.spark_session import SparkSessions
from tests.support.frame_groups import Group, orders_at
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

READS = {f"all: source 'from_orders', read action {number}" for number in (1, 2)}
FIRST, SECOND = (f"all: operator 'daily', Input Set '2024-03-{day}T00:00'" for day in ("09", "10"))
BOTH = "all: operator 'daily', 2 Input Sets from '2024-03-09T00:00' to '2024-03-10T00:00'"
POSSIBLE = (READS | {FIRST, SECOND}, READS | {BOTH})
"""Whether the second day is triggered before the job of the first one begins is a matter of time."""


def jobs_of(event_log: Path, uid: str) -> set[tuple[str, str]]:
    """(job group, description) of each job that has begun in a run. A line that is being written is for the next time."""
    files = [path for path in event_log.rglob("events*") if path.is_file()]
    lines = [line for path in files for line in path.read_text().splitlines(keepends=True) if uid in line]
    begun = [json.loads(line) for line in lines if line.endswith("}\n") and '"SparkListenerJobStart"' in line]
    named = [one["Properties"] for one in begun]
    return {(one["spark.jobGroup.id"], one["spark.job.description"]) for one in named}


def test_a_job_says_its_run_its_operator_and_its_input_sets(
    tmp_path: Path, sessions: SparkSessions, event_log: Path
) -> None:
    """The run, group, incarnation and epoch are its job group, by which it is cancelled; the rest is its description."""

    @generate(mode="dataframe")
    def listed(orders: Any) -> Any:
        return orders.select("id")

    group = Group(tmp_path, sessions, orders=[orders_at(1, 2), orders_at(30, first=2)])
    group.save(group.operator("daily", listed, "from_orders", window=Tumbling("1d", on="ts")))
    assert group.run()
    assert group.driver is not None
    run, incarnation = group.driver.run, group.driver.ref.incarnation

    def described() -> set[str]:
        return {said for _, said in jobs_of(event_log, run.uid)}

    eventually(lambda: described() in POSSIBLE, what="Spark has told of these and no others", every=0.2)
    assert {named for named, _ in jobs_of(event_log, run.uid)} == {f"logio {run.uid} all {incarnation} 0"}
