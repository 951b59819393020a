"""A Delta table whose files executors write, on real drivers and executors that die or stop between files and commit."""

from __future__ import annotations

from pathlib import Path

import deltalake
import duckdb
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.spark.delta_files import TASK_BYTES
from tests.support.bucket_lakes import MASTER, executors
from tests.support.delta_tables import files_of, numbers_of
from tests.support.running import ArmedSparkLauncher, Running, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(1200)]

REF = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'delta_files.py'}:pipeline")
FILES, ROWS, PICTURE = 4, 5_000, 8_000
DEATHS = (
    f"{CrashPoint.AFTER_LAKE_FILES}:2",
    f"{CrashPoint.BEFORE_LAKE_COMMIT}:1",
    f"{CrashPoint.AFTER_LAKE_COMMIT}:1",
)
"""With the files of the first event put, before their commit, and behind it."""


class Lake:
    """Two events of two files, each of which is a task's."""

    def __init__(self, tmp_path: Path) -> None:
        assert ROWS * PICTURE > TASK_BYTES
        self.orders, self.lake = tmp_path / "orders", tmp_path / "lake"
        self.table = self.lake / "orders"
        self.orders.mkdir()
        self.lake.mkdir()
        rng = np.random.default_rng(7)
        for number in range(FILES):
            ids = np.arange(number * ROWS, (number + 1) * ROWS)
            pictures = [rng.bytes(PICTURE) for _ in range(ROWS)]
            pq.write_table(pa.table({"id": ids, "picture": pictures}), self.orders / f"{number}.parquet")
        conf = {"spark.executor.memory": "600m", "spark.ui.enabled": "false"}
        self.settings = {
            "ref": REF,
            "params": {"orders": str(self.orders)},
            "connections": {"lake": str(self.lake)},
            "payloads": str(tmp_path / "payloads"),
            "spark": SparkSettings(MASTER, conf=conf),
        }

    def there(self) -> set[str]:
        """All data files, those that no commit names included."""
        return {
            str(path.relative_to(self.table))
            for path in self.table.rglob("*.parquet")
            if "_delta_log" not in path.parts
        }

    def assert_exact(self) -> None:
        """By DuckDB, of the files that a reader of the log finds, and by delta-rs."""
        named = files_of(self.table)
        files = [str(self.table / path) for path in named]
        with duckdb.connect() as database:
            wanted = database.execute(f"SELECT id, md5(picture) FROM '{self.orders}/*.parquet' ORDER BY id").fetchall()
            read = "read_parquet(?, hive_partitioning = false)"
            found = database.execute(f"SELECT id, signature FROM {read} ORDER BY id", [files]).fetchall()
            assert found == wanted
            same = f"SELECT count(*), count(DISTINCT drawn) FROM {read} WHERE signature = md5(picture)"
            assert database.execute(same, [files]).fetchall() == [(FILES * ROWS, FILES * ROWS)]
            for path, partition in named.items():
                query = f"SELECT DISTINCT id % 5 FROM {read}"
                assert database.execute(query, [[str(self.table / path)]]).fetchall() == [
                    (int(str(partition["part"])),)
                ]
        assert len(deltalake.DeltaTable(str(self.table)).to_pyarrow_table(columns=["id"])) == FILES * ROWS
        assert len(named) == FILES * 5, "a file for each partition and task"


def test_dying_between_files_and_commit_and_losing_an_executor(sqlite_url: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    armed = {("all", number): point for number, point in enumerate(DEATHS, start=1)}
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(sqlite_url, "", lake.orders, launcher, **lake.settings) as run:
        last = len(DEATHS) + 1
        run.until(lambda: run.is_running("all", last), "every point was passed", timeout=900)
        before = lake.there()
        run.until(lambda: lake.there() - before, "a task of the last driver has put a file", timeout=300)
        for process in executors(run.process("all")):
            process.kill()
        run.finish(timeout=600)
        assert run.status("all").incarnation == last, "a job outlives its executor"
        lake.assert_exact()
    assert len(lake.there()) > len(files_of(lake.table))
    vacuum(lake.table)
    assert lake.there() == set(files_of(lake.table))
    lake.assert_exact()


def test_a_zombie_whose_executors_have_written_commits_nothing(sqlite_url: str, tmp_path: Path) -> None:
    """It stops with files that no commit names, which a VACUUM without retention removes before it continues."""
    lake = Lake(tmp_path)
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("all", 1): f"{CrashPoint.AFTER_LAKE_FILES}:2:stop"})
    settings = {"end_old_drivers": False, "lease": Lease(15, 120), **lake.settings}
    with running(sqlite_url, "", lake.orders, launcher, **settings) as run:
        zombie, jvm = _stopped(run)
        run.finish(timeout=900)
        vacuum(lake.table)
        before = numbers_of(lake.table)
        zombie.resume()
        eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=180)
        assert numbers_of(lake.table) == before
        lake.assert_exact()


def _stopped(run: Running) -> tuple[psutil.Process, psutil.Process]:
    run.until(lambda: run.is_running("all"), "the driver runs", timeout=300)
    zombie = run.process("all")
    jvm = zombie.parent()
    assert jvm is not None
    run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "it has stopped behind its files", timeout=600)
    return zombie, jvm


def vacuum(folder: Path) -> None:
    table = deltalake.DeltaTable(str(folder))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
