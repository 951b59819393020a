"""A lake whose payload store is a bucket: real drivers and executors with Hadoop's client of S3, which die, stop and wake up.

What is published is compared with DuckDB's reading of the orders, and nothing is left in the bucket in the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.port import LogStore
from airflow_logio.supervision import tidying
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payloads import Payloads, sweep_removed, sweep_run, task_files
from airflow_logio.systems.payloads.file_roots import data_files
from tests.support.hadoop_aws import s3a_classes, why_no_hadoop_aws
from tests.support.lake_runs import LakeFolders
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore
from tests.support.running import ArmedSparkLauncher, Running, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(1200)]

MASTER = "local-cluster[1,1,600]"
"""One executor, a process of its own, which the driver's JVM starts."""
GROUPS = ("front", "back", "windows")


class BucketLakeFolders(LakeFolders):
    """Orders and what is published are in folders; what is between them is in a bucket."""

    def __init__(self, tmp_path: Path, warehouse_url: str, objects: ObjectStore) -> None:
        super().__init__(tmp_path, warehouse_url)
        self.objects = objects
        self.scratch = tmp_path / "s3a"
        self.root = objects.new_url("lake/payloads")

    def settings(self) -> dict[str, object]:
        conf = {"spark.executor.memory": "600m", "spark.ui.enabled": "false", **s3a_classes(self.scratch)}
        spark = SparkSettings(MASTER, conf=conf, env_vars=dict(self.objects.variables))
        return {**super().settings(), "payloads": self.root, "spark": spark}

    def keys(self) -> list[str]:
        """All current objects of the bucket."""
        pages = (
            self.objects.client().get_paginator("list_objects_v2").paginate(Bucket=BucketRoot.of(self.root).authority)
        )
        return sorted(item["Key"] for page in pages for item in page.get("Contents", ()))

    def assert_nothing_left(self, store: LogStore, run: Running) -> None:
        """What rows name is there, whole, and nothing else; of a run that was removed, nothing, whatever a zombie does."""
        payloads, uid = Payloads(self.root), run.run.uid
        while store.collect(run.run.run_id, 1_000).more:
            pass
        sweep_run(payloads, store, run.run)
        refs = store.references(run.run.run_id, f"{uid}/")
        datasets = [payloads.dataset("a row", ref) for ref in refs if ".manifest#" in ref]
        for dataset in datasets:
            dataset.check()
        named = {file.path for dataset in datasets for file in dataset.manifest.files}
        at = BucketRoot.of(self.root)
        assert self.keys() == sorted(at.below(path) for path in named | {ref.partition("#")[0] for ref in refs})
        tidying.remove(
            store, run.run.run_id, payloads.remove, lambda: payloads.discard(payloads.find(uid), uid), unfinished=True
        )
        assert self.keys() == []
        late = pa.table({"n": [1]}).to_batches()
        task_files.new_files(data_files(self.root), f"{uid}/back/1/0/late", (), late)
        payloads.epoch(uid, "back", 1, 0).store("datasets/late", b"of a zombie")
        assert len(self.keys()) == 2
        assert sweep_removed(payloads, store) == 2
        assert self.keys() == []


@pytest.fixture
def lake(tmp_path: Path, warehouse_url: str, objects: ObjectStore) -> Iterator[BucketLakeFolders]:
    if (why := why_no_hadoop_aws()) is not None:
        pytest.skip(why)
    with reached(objects):
        yield BucketLakeFolders(tmp_path, warehouse_url, objects)


def executors(driver: psutil.Process) -> Sequence[psutil.Process]:
    """Those that the JVM of a driver has started."""
    jvm = driver.parent()
    assert jvm is not None
    found = []
    for process in jvm.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    return found


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
