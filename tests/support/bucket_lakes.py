"""Lakes whose payload store is a bucket: what runs of `bundle/lake_orders.py` have there, and what must be left of it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.port import LogStore
from airflow_logio.supervision import tidying
from airflow_logio.systems.bucket_roots import BucketRoot
from airflow_logio.systems.payloads import Payloads, sweep_removed, sweep_run, task_files
from airflow_logio.systems.payloads.file_roots import data_files
from tests.support.hadoop_aws import s3a_classes
from tests.support.lake_runs import LakeFolders
from tests.support.object_store import ObjectStore
from tests.support.running import Running

MASTER = "local-cluster[1,1,600]"
"""One executor, a process of its own, which the driver's JVM starts."""


class BucketLakeFolders(LakeFolders):
    """Orders and what is published are in folders; what is between them is in a bucket."""

    def __init__(self, tmp_path: Path, warehouse_url: str, objects: ObjectStore) -> None:
        super().__init__(tmp_path, warehouse_url)
        self.objects = objects
        self.scratch = tmp_path / "s3a"
        self.root = objects.new_url("lake/payloads")

    def settings(self) -> dict[str, Any]:
        conf = {"spark.executor.memory": "600m", "spark.ui.enabled": "false", **s3a_classes(self.scratch)}
        spark = SparkSettings(MASTER, conf=conf, env_vars=dict(self.objects.variables))
        return {**super().settings(), "payloads": self.root, "spark": spark}

    def keys(self) -> list[str]:
        """All current objects of the bucket."""
        pages = (
            self.objects.client().get_paginator("list_objects_v2").paginate(Bucket=BucketRoot.of(self.root).authority)
        )
        return sorted(item["Key"] for page in pages for item in page.get("Contents", ()))

    def assert_named(self, store: LogStore, run: Running) -> None:
        """What rows name is there, whole, and nothing else."""
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

    def assert_nothing_left(self, store: LogStore, run: Running) -> None:
        """And of a run that was removed, nothing, whatever a zombie does."""
        payloads, uid = Payloads(self.root), run.run.uid
        self.assert_named(store, run)
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
