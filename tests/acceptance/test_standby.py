"""Standbys of real Spark drivers: they take the place of a driver that dies, and end when they are not needed (ADR-108)."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from airflow_logio.crash import STANDBY_VARIABLE, CrashPoint
from airflow_logio.launch.driver_folders import processes_under
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.records.driver_records import Standby
from tests.support.grocery import assert_exact, write_slice
from tests.support.running import SALES_RECORDS_PER_BATCH, ArmedSparkLauncher, Running, has_ended, running
from tests.support.standbys import sales_with_standbys, standby_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]

ROWS = 250_000
WITH_STANDBY = ("totals", "hourly")


@pytest.fixture(scope="session")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_slice(tmp_path_factory.mktemp("standby") / "transactions.parquet", ROWS)


@dataclass
class StandbysArmed(ArmedSparkLauncher):
    """Real spark-submit, with crash points armed for the standbys of drivers: ``armed`` by group and incarnation."""

    variable: str = STANDBY_VARIABLE


def pid_of_standby(run: Running, group: str) -> int:
    found = standby(run, group)
    return 0 if found is None else found.pid


def standby(run: Running, group: str) -> Standby | None:
    return standby_of(run.store, run.run.run_id, group)


def is_ready(run: Running, group: str, incarnation: int = 1) -> bool:
    found = standby(run, group)
    return run.is_running(group, incarnation) and found is not None and found.is_ready


@pytest.mark.parametrize("log_url", ["postgres", pytest.param("sqlite", marks=pytest.mark.soak)], indirect=True)
def test_standbys_take_over_and_the_result_is_exact(
    log_url: str, warehouse_url: str, transactions: Path, tmp_path: Path
) -> None:
    go_on = tmp_path / "go_on"
    ref = sales_with_standbys(tmp_path, WITH_STANDBY, go_on, after=60)
    launcher = StandbysArmed(tmp_path / "drivers", {("hourly", 1): f"{CrashPoint.BEFORE_REGISTER}:1"})
    with running(log_url, warehouse_url, transactions, launcher, ref=ref, lease=Lease(10, 60)) as run:
        run.until(lambda: all(is_ready(run, group) for group in WITH_STANDBY), "both have standbys")
        first = standby(run, "totals")
        assert first is not None and first.rss_bytes > 2**20

        # The process that stood by is the next driver. The other one dies with its claim, and is recovered as any driver.
        run.signal("totals", signal.SIGKILL)
        run.signal("hourly", signal.SIGKILL, jvm=True)
        run.until(lambda: run.is_running("totals", 2), "totals runs again")
        identity = run.status("totals").identity
        assert identity is not None and identity.pid == first.pid
        run.until(lambda: is_ready(run, "totals", 2), "it has a standby again")
        run.until(lambda: is_ready(run, "hourly", 3), "hourly was recovered, and has a standby again")
        reasons = [one.reason for one in run.store.drivers(run.run.run_id) if one.group == "hourly"]
        assert len(reasons) == 3 and "ended without saying so" in reasons[2]
        # Who hears first of the killed JVM: an observer of the process, or the driver, from a job.
        assert "ended without saying so" in reasons[1] or "SparkLost" in reasons[1]

        # A driver hangs: its standby or the supervisor ends it, and the standby does not end itself with its children.
        hung = run.signal("totals", signal.SIGSTOP)
        run.until(lambda: is_ready(run, "totals", 3), "totals has another driver, which has a standby")
        assert has_ended(hung)

        # A standby is killed: its driver starts another one. Both are killed: the supervisor recovers the group.
        run.until(lambda: is_ready(run, "hourly", 3), "hourly has a standby")
        killed = pid_of_standby(run, "hourly")
        psutil.Process(killed).kill()
        run.until(lambda: pid_of_standby(run, "hourly") not in (0, killed), "it has another one")
        psutil.Process(pid_of_standby(run, "hourly")).kill()
        run.signal("hourly", signal.SIGKILL)
        run.until(lambda: run.is_running("hourly", 4), "hourly runs again")
        go_on.touch()
        run.finish()
        eventually(lambda: not processes_under(tmp_path / "drivers"), what="no standby is left", timeout=30)
    assert_exact(warehouse_url, transactions, SALES_RECORDS_PER_BATCH)
