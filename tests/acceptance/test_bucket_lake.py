"""A lake whose payload store is a bucket: real drivers and executors with Hadoop's client of S3, which die, stop and wake up.

What is published is compared with DuckDB's reading of the orders, and nothing is left in the bucket in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.protocol.liveness import Lease
from tests.support.bucket_lakes import BucketLakeFolders, executors
from tests.support.hadoop_aws import why_no_hadoop_aws
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore
from tests.support.running import ArmedSparkLauncher, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(1200)]

GROUPS = ("front", "back", "windows")


@pytest.fixture
def lake(tmp_path: Path, warehouse_url: str, objects: ObjectStore) -> Iterator[BucketLakeFolders]:
    if (why := why_no_hadoop_aws()) is not None:
        pytest.skip(why)
    with reached(objects):
        yield BucketLakeFolders(tmp_path, warehouse_url, objects)


def test_dying_drivers_and_executors(
    sqlite_url: str, warehouse_url: str, tmp_path: Path, lake: BucketLakeFolders
) -> None:
    """Drivers die around jobs and manifests; the executor of one is killed as soon as there is one."""
    armed = {
        ("front", 1): f"{CrashPoint.AFTER_DATASET_JOB}:1",
        ("back", 1): f"{CrashPoint.AFTER_MANIFEST}:1",
        ("windows", 1): f"{CrashPoint.BEFORE_COMMIT}:2",
    }
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(sqlite_url, warehouse_url, lake.orders, launcher, **lake.settings()) as run:
        run.until(
            lambda: run.is_running("front", 2) and executors(run.process("front")), "front has an executor", timeout=600
        )
        for process in executors(run.process("front")):
            process.kill()
        run.finish(timeout=1000)
        assert {group: run.status(group).incarnation >= 2 for group in GROUPS} == dict.fromkeys(GROUPS, True)
        lake.assert_exact()
        lake.assert_nothing_left(run.store, run)


def test_a_zombie_that_publishes_beside_its_successor(
    sqlite_url: str, warehouse_url: str, tmp_path: Path, lake: BucketLakeFolders
) -> None:
    """Stopped with files in bucket and folder, and no receipt; the ending of old processes is switched off."""
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("back", 1): f"{CrashPoint.IN_PUBLICATION}:1:stop"})
    arguments = (sqlite_url, warehouse_url, lake.orders, launcher)
    settings: dict[str, object] = {"end_old_drivers": False, "lease": Lease(15, 120), **lake.settings()}
    with running(*arguments, **settings) as run:
        run.until(lambda: run.is_running("back"), "back runs", timeout=300)
        zombie = run.process("back")
        jvm = zombie.parent()
        assert jvm is not None
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "back has stopped while it publishes", timeout=600)
        run.until(lambda: run.is_running("back", 2), "back is replaced", timeout=300)
        run.until(lambda: run.count("orders.lake", "write") > 0, "its successor has published", timeout=600)
        zombie.resume()
        eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=120)
        run.finish(timeout=1000)
        lake.assert_exact()
        lake.assert_nothing_left(run.store, run)
