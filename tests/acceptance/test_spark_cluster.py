"""Client mode with a Spark standalone master: jobs run on its executors, and a killed driver leaves none behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import Launched, LocalProcessLauncher
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.records.driver_records import Claim
from tests.support.grocery import assert_exact
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, PlainLauncher, running
from tests.support.spark_cluster import HOSTS, Cluster, spark_cluster
from tests.support.waiting import eventually
from tests.support.waiting_driver import Waiting

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(600)]


class HourlyOnTheCluster(PlainLauncher):
    """The one group with Spark jobs; the others need no JVM."""

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        if claim.group == "hourly":
            return LocalProcessLauncher(self.work_dir).launch(claim, launch)
        return super().launch(claim, launch)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with spark_cluster(tmp_path, HOSTS[:1], cores=1, memory="600m") as found:
        found.wait_for_workers()
        yield found


DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.executorIdleTimeout": "2s",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
}


def test_a_killed_driver_is_recovered_and_leaves_no_application(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, cluster: Cluster, tmp_path: Path
) -> None:
    """With dynamic allocation: executors come with jobs, and go while the source stands still."""
    half = Waiting(tmp_path / "half", CrashPoint.AFTER_READ, 11)
    launcher = HourlyOnTheCluster(tmp_path / "drivers", variables={("ingest", 1): half.variables})
    settings = cluster.settings({"spark.sql.shuffle.partitions": "2", **DYNAMIC}, total_executor_cores=1)
    lease = Lease(240, 240)
    with running(sqlite_url, warehouse_url, small_transactions, launcher, ref=SALES, lease=lease) as run:
        run.context = replace(run.context, settings=settings)
        has_executor = lambda: run.is_running("hourly") and cluster.executors()  # noqa: E731
        run.until(has_executor, "hourly has an executor of the cluster", timeout=240)
        [first] = cluster.running()
        run.signal("hourly", signal.SIGKILL, jvm=True)
        run.until(lambda: run.is_running("hourly", 2) and cluster.executors(), "hourly is recovered", timeout=240)
        run.until(lambda: not cluster.executors(), "an idle executor is given back", timeout=240)
        assert run.is_running("hourly", 2) and half.is_there()
        half.end()
        run.finish(timeout=300)
        assert run.status("hourly").incarnation == 2
    eventually(lambda: cluster.running() == [], what="the master shows no application that runs", timeout=60, every=0.2)
    eventually(lambda: cluster.executors() == [], what="no executor is left", timeout=60, every=0.2)
    ended = cluster.state()["completedapps"]
    assert first in [application["id"] for application in ended]
    assert len(ended) == 2, "one per driver of hourly; the other groups have no jobs"
    assert_exact(warehouse_url, small_transactions, SALES_RECORDS_PER_BATCH)
