"""A lake whose payload store is on HDFS: real daemons, drivers and executors, which die.

What is published is compared with DuckDB's reading of the orders, and nothing is left on HDFS in the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.port import LogStore
from airflow_logio.supervision import tidying
from airflow_logio.systems.payloads import Payloads, sweep_run
from airflow_logio.systems.payloads.hdfs_client import Hdfs as Client
from tests.support.hdfs import Hdfs, hdfs
from tests.support.lake_runs import LakeFolders
from tests.support.running import ArmedSparkLauncher, Running, running
from tests.support.yarn_cluster import why_no_yarn

pytest.importorskip("hdfs_native")
pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(1200)]

MASTER = "local-cluster[1,1,600]"
"""One executor, a process of its own, which the driver's JVM starts."""
GROUPS = ("front", "back", "windows")


class HdfsLakeFolders(LakeFolders):
    """Orders and what is published are in folders; what is between them is on HDFS."""

    def __init__(self, tmp_path: Path, warehouse_url: str, cluster: Hdfs) -> None:
        super().__init__(tmp_path, warehouse_url)
        self.cluster = cluster
        self.root = f"{cluster.url}/lake/payloads"

    def settings(self) -> dict[str, object]:
        conf = {"spark.executor.memory": "600m", "spark.ui.enabled": "false"}
        variables = {"HADOOP_CONF_DIR": str(self.cluster.conf)}
        return {
            **super().settings(),
            "payloads": self.root,
            "spark": SparkSettings(MASTER, conf=conf, env_vars=variables),
        }

    def files(self) -> list[str]:
        return sorted(path for path, is_folder in Client(self.root).listed("", is_deep=True) if not is_folder)

    def assert_nothing_left(self, store: LogStore, run: Running) -> None:
        """What rows name is there, whole, and nothing else; of a run that was removed, nothing, and no folder."""
        payloads, uid = Payloads(self.root), run.run.uid
        while store.collect(run.run.run_id, 1_000).more:
            pass
        sweep_run(payloads, store, run.run)
        refs = store.references(run.run.run_id, f"{uid}/")
        datasets = [payloads.dataset("a row", ref) for ref in refs if ".manifest#" in ref]
        for dataset in datasets:
            dataset.check()
        named = {file.path for dataset in datasets for file in dataset.manifest.files}
        assert self.files() == sorted(named | {ref.partition("#")[0] for ref in refs})
        assert named
        tidying.remove(
            store, run.run.run_id, payloads.remove, lambda: payloads.discard(payloads.find(uid), uid), unfinished=True
        )
        assert list(Client(self.root).listed("", is_deep=True)) == []


@pytest.fixture
def lake(tmp_path: Path, warehouse_url: str) -> Iterator[HdfsLakeFolders]:
    if (why := why_no_yarn()) is not None:
        pytest.skip(why)
    with hdfs(tmp_path / "hdfs") as cluster:
        yield HdfsLakeFolders(tmp_path, warehouse_url, cluster)


def test_dying_drivers_and_a_datanode_that_is_killed_and_comes_back(
    sqlite_url: str, warehouse_url: str, tmp_path: Path, lake: HdfsLakeFolders
) -> None:
    """Drivers die around jobs and manifests; the only DataNode dies when the first datasets are there, and is back when
    groups wait for it or try again."""
    armed = {
        ("front", 1): f"{CrashPoint.AFTER_DATASET_JOB}:1",
        ("back", 1): f"{CrashPoint.AFTER_MANIFEST}:1",
        ("windows", 1): f"{CrashPoint.BEFORE_COMMIT}:2",
    }
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(sqlite_url, warehouse_url, lake.orders, launcher, **lake.settings()) as run:
        run.until(
            lambda: run.is_running("front", 2) and any(path.endswith(".manifest") for path in lake.files()),
            "front's successor has written a dataset",
            timeout=600,
        )
        lake.cluster.kill("datanode")
        lake.cluster.start_daemon("datanode")
        lake.cluster.wait()
        run.finish(timeout=1000)
        assert {group: run.status(group).incarnation >= 2 for group in GROUPS} == dict.fromkeys(GROUPS, True)
        lake.assert_exact()
        lake.assert_nothing_left(run.store, run)
