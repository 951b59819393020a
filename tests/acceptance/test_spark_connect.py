"""Drivers that share a Spark Connect server: they die, stop and wake up, and so does the server; the result is exact."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.protocol.liveness import Lease
from airflow_logio.runtime.launch import connect_server, processes
from airflow_logio.runtime.launch.connect_server import Server
from airflow_logio.runtime.launch.driver_process import SERVER_FOLDER
from airflow_logio.runtime.launch.spark_submit import SparkSettings
from tests.support.crash_sites import IN_SPARK
from tests.support.grocery import assert_exact, write_slice
from tests.support.lake_runs import LAKE_SITES, LakeFolders
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, ArmedSparkLauncher, Running, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

SHARED = SparkSettings(connect=True, master="local[2]")
ROWS = 250_000


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slice(tmp_path_factory.mktemp("connect") / "transactions.parquet", ROWS)


def server_of(tmp_path: Path, run: Running) -> Server:
    """The server that the drivers of a run have now."""
    server = connect_server.known(tmp_path / "drivers" / run.run.uid / SERVER_FOLDER)
    assert server is not None
    return server


@pytest.mark.postgres
def test_sales_with_dead_drivers_a_zombie_and_a_dead_server(
    postgres_url: str, postgres_warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    """`hourly` dies around its first job, then stops in a transaction; when its successor works, the server is killed."""
    points = [f"{point}:1" for point in IN_SPARK] + [f"{CrashPoint.IN_LOG_TRANSACTION}:3:stop"]
    armed = {("hourly", number): point for number, point in enumerate(points, start=1)}
    last = len(points) + 1
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    arguments = (postgres_url, postgres_warehouse_url, transactions, launcher)
    with running(*arguments, ref=SALES, spark=SHARED, end_old_drivers=False, lease=Lease(8, 90)) as run:
        run.until(lambda: run.is_running("hourly", last - 1), "hourly has died around its first job")
        first = server_of(tmp_path, run)
        zombie = run.process("hourly")
        assert not zombie.children(), "a driver has no JVM of its own"
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "hourly has stopped inside a transaction")
        run.until(partial(run.is_running, "hourly", last), "hourly is replaced")
        processes.end(first.jvm)
        zombie.send_signal(signal.SIGCONT)
        eventually(lambda: has_ended(zombie), what="the zombie exits", timeout=60)
        run.finish()
        second = server_of(tmp_path, run)
        assert second.jvm != first.jvm, "a driver has started another server"
        assert run.status("hourly").incarnation == last, "who has lost the server lives on"
    assert_exact(postgres_warehouse_url, transactions, SALES_RECORDS_PER_BATCH)
    eventually(lambda: processes.is_gone(second.jvm), what="the server ends behind its last driver", timeout=60)


def test_a_lake_whose_drivers_die_around_jobs_manifests_and_publication(
    log_url: str, warehouse_url: str, tmp_path: Path
) -> None:
    one = LakeFolders(tmp_path, warehouse_url)
    armed = {
        (group, number): point for group, points in LAKE_SITES.items() for number, point in enumerate(points, start=1)
    }
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(log_url, warehouse_url, one.orders, launcher, spark=SHARED, **one.settings()) as run:
        run.finish(timeout=800)
        died = {group: run.status(group).incarnation - 1 for group in LAKE_SITES}
        assert died == {group: len(points) for group, points in LAKE_SITES.items()}, "every one of them was passed"
        one.assert_exact()
        one.assert_nothing_left(run.store, run)
