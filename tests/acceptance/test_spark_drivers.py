"""The example pipeline on real spark-submit processes: drivers killed, stopped and continued; the result is exact."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path

import psutil
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.driver_folders import SCRATCH
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.crash_sites import IN_SPARK
from tests.support.grocery import assert_exact, write_slice
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, ArmedSparkLauncher, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

ROWS = 250_000


@pytest.fixture(scope="session")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slice(tmp_path_factory.mktemp("spark") / "transactions.parquet", ROWS)


def test_every_driver_is_killed_and_then_two_at_once(
    log_url: str, warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    """Each group once, its JVM or its Python, when it has something to lose; then two together."""
    around_its_first_job = dict(enumerate(IN_SPARK, start=2))
    armed = {("hourly", number): f"{point}:1" for number, point in around_its_first_job.items()}
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    bound = BacklogBound(events=50)  # the source waits for hourly, whose driver takes longest to come up
    with running(log_url, warehouse_url, transactions, launcher, ref=SALES, backlog=bound) as run:
        run.until(lambda: run.count("totals.in", "in") > 10, "ingest and totals have begun")
        assert run.process("ingest").children() == [], "what needs no Spark has no JVM"
        run.signal("ingest", signal.SIGKILL)
        run.signal("totals", signal.SIGKILL)
        run.until(lambda: run.is_running("hourly") and run.count("hourly.in", "in") > 10, "hourly holds events")
        scratch = tmp_path / "drivers" / run.run.uid / "hourly" / "1" / SCRATCH
        # It takes events while its Spark session is still being made.
        run.until(lambda: list(scratch.glob("blockmgr-*")), "Spark's files are in the folder of the driver")
        run.signal("hourly", signal.SIGKILL, jvm=True)
        for number, point in around_its_first_job.items():
            run.until(partial(run.is_running, "hourly", number + 1), f"hourly died again, {point}")
        run.until(lambda: run.is_running("hourly") and run.is_running("publish"), "both run")
        run.signal("hourly", signal.SIGKILL)
        run.signal("publish", signal.SIGKILL)
        run.finish()
        assert {group: run.status(group).incarnation > 1 for group in run.groups} == dict.fromkeys(run.groups, True)
    assert not scratch.exists(), "what a killed driver cannot remove, its successors do"
    assert_exact(warehouse_url, transactions, SALES_RECORDS_PER_BATCH)


SITES = {
    "ingest": (f"{CrashPoint.AFTER_REGISTER}:1", f"{CrashPoint.BEFORE_COMMIT}:2", f"{CrashPoint.AFTER_COMMIT}:3"),
    "totals": (
        f"{CrashPoint.BEFORE_RECOVERY}:1",
        f"{CrashPoint.BEFORE_WRITE}:1",
        f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
        f"{CrashPoint.AFTER_WRITE}:1",
    ),
    "hourly": (
        f"{CrashPoint.BEFORE_READ}:1",
        f"{CrashPoint.AFTER_READ}:1",
        *(f"{point}:1" for point in IN_SPARK),
    ),
    "publish": (
        f"{CrashPoint.AFTER_RECOVERY}:1",
        f"{CrashPoint.IN_LOG_TRANSACTION}:2",
        f"{CrashPoint.BEFORE_FINISH}:1",
    ),
}
"""Where the drivers of a group die, one incarnation after the other."""


@pytest.mark.postgres
def test_a_dozen_crash_points_in_one_run(
    postgres_url: str, warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    armed = {(group, number): point for group, points in SITES.items() for number, point in enumerate(points, start=1)}
    assert len(armed) >= 12
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(postgres_url, warehouse_url, transactions, launcher, ref=SALES) as run:
        run.finish(timeout=400)
        died = {group: run.status(group).incarnation - 1 for group in SITES}
        assert died == {group: len(points) for group, points in SITES.items()}, "every one of them was passed"
    assert_exact(warehouse_url, transactions, SALES_RECORDS_PER_BATCH)


@pytest.mark.postgres
def test_a_stopped_spark_driver_is_replaced_and_exits_when_it_is_continued(
    postgres_url: str, postgres_warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    """Stopped behind its fence statement, the ending of old processes switched off."""
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("hourly", 1): f"{CrashPoint.IN_LOG_TRANSACTION}:3:stop"})
    arguments = (postgres_url, postgres_warehouse_url, transactions, launcher)
    with running(*arguments, ref=SALES, end_old_drivers=False, lease=Lease(8, 90)) as run:
        run.until(lambda: run.is_running("hourly"), "hourly runs")
        zombie = run.process("hourly")
        jvm = zombie.parent()
        assert jvm is not None
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "hourly has stopped inside a transaction")
        run.until(lambda: run.is_running("hourly", 2), "hourly is replaced")
        zombie.send_signal(signal.SIGCONT)
        eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=60)
        run.finish()
        assert run.status("hourly").incarnation == 2
    assert_exact(postgres_warehouse_url, transactions, SALES_RECORDS_PER_BATCH)


def test_python_does_not_outlive_its_jvm(
    sqlite_url: str, warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    """Python is not told that the JVM of spark-submit is gone; a driver without a session has to see it itself."""
    launcher = ArmedSparkLauncher(tmp_path / "drivers")
    with running(sqlite_url, warehouse_url, transactions, launcher, ref=SALES) as run:
        run.until(lambda: run.is_running("hourly"), "hourly runs", "hourly")
        python = run.process("hourly")
        run.signal("hourly", signal.SIGKILL, jvm=True)
        eventually(lambda: has_ended(python), what="Python exits", timeout=60)
