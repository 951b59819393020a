"""Every named crash point, on real driver processes: each group dies there twice, recovers, and the result is exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, running

pytestmark = pytest.mark.acceptance

IN_SPARK = {CrashPoint.BEFORE_JOB, CrashPoint.AFTER_JOB}
"""Passed by drivers with a Spark session only: see test_spark_drivers.py."""
IN_STORES = {point for point in CrashPoint if point.endswith(("_store", "_drop"))}
"""Passed by sources that cannot be replayed only: see test_sources.py."""
IN_DRAINS = {point for point in CrashPoint if point.endswith("_drain")}
"""Passed by drivers that are asked to drain only: see test_draining.py."""
ELSEWHERE = IN_SPARK | IN_STORES | IN_DRAINS | {CrashPoint.IN_EXTERNAL_WRITE}
"""IN_EXTERNAL_WRITE is passed by writers of an author's own external systems only: see test_writers.py."""

WRITERS = ("totals", "publish")
GROUPS_PASSING = {
    CrashPoint.BEFORE_WRITE: WRITERS,
    CrashPoint.AFTER_WRITE: WRITERS,
    CrashPoint.IN_WAREHOUSE_TRANSACTION: WRITERS,
    CrashPoint.BEFORE_READ: ("hourly",),
    CrashPoint.AFTER_READ: ("hourly",),
}
EVERYWHERE = ("ingest", "totals", "hourly", "publish")
ONCE_PER_DRIVER = {
    CrashPoint.BEFORE_REGISTER,
    CrashPoint.AFTER_REGISTER,
    CrashPoint.BEFORE_RECOVERY,
    CrashPoint.AFTER_RECOVERY,
    CrashPoint.BEFORE_FINISH,
    CrashPoint.AFTER_FINISH,
}


@pytest.mark.parametrize("point", [point for point in CrashPoint if point not in ELSEWHERE])
def test_dying_there_twice_changes_nothing(
    point: CrashPoint, log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    groups = GROUPS_PASSING.get(point, EVERYWHERE)
    later = 1 if point in ONCE_PER_DRIVER else 2
    armed = {(group, incarnation): f"{point}:{later}" for group in groups for incarnation in (1, 2)}
    launcher = PlainLauncher(tmp_path / "drivers", armed)
    with running(log_url, warehouse_url, small_transactions, launcher) as run:
        run.finish()
        died = {group: run.status(group).incarnation for group in groups}
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)
    # After the last commit of a group nobody recovers it any more: dying behind it leaves the group finished.
    least = 1 if point is CrashPoint.AFTER_FINISH else 2
    assert all(incarnation >= least for incarnation in died.values()), f"{point} was not passed: {died}"
