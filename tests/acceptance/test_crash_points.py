"""Every named crash point, on real driver processes: each group dies there twice, recovers, and the result is exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.store.records.run_records import BacklogBound
from tests.support.crash_sites import ELSEWHERE, named
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, assert_died, running

pytestmark = pytest.mark.acceptance

SOURCES = ("ingest",)
READERS = (*SOURCES, "hourly")
WRITERS = ("totals", "publish")
GROUPS_PASSING = {
    CrashPoint.BEFORE_WRITE: WRITERS,
    CrashPoint.AFTER_WRITE: WRITERS,
    CrashPoint.IN_WAREHOUSE_TRANSACTION: WRITERS,
    CrashPoint.BEFORE_READ: READERS,
    CrashPoint.AFTER_READ: READERS,
    CrashPoint.BEFORE_NEXT_ACTION: SOURCES,
    CrashPoint.AFTER_NEXT_ACTION: SOURCES,
}
EVERYWHERE = ("ingest", "totals", "hourly", "publish")
ONCE_PER_DRIVER = {
    CrashPoint.BEFORE_REGISTER,
    CrashPoint.AFTER_REGISTER,
    CrashPoint.BEFORE_RECOVERY,
    CrashPoint.AFTER_RECOVERY,
    CrashPoint.BEFORE_NEXT_ACTION,
    CrashPoint.AFTER_NEXT_ACTION,
    CrashPoint.BEFORE_FINISH,
    CrashPoint.AFTER_FINISH,
}
FEW = BacklogBound(events=8)
"""Or one slow commit takes so many of the source's 80 events that too few commits are left for the second death."""


@pytest.mark.parametrize("point", [point for point in CrashPoint if point not in ELSEWHERE])
def test_dying_there_twice_changes_nothing(
    point: CrashPoint, log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    die_twice(point, log_url, warehouse_url, small_transactions, tmp_path)


@pytest.mark.postgres
@pytest.mark.parametrize("point", named("_warehouse_transaction"))
def test_dying_inside_a_transaction_of_a_server(
    point: CrashPoint, sqlite_url: str, postgres_warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """The warehouse hears of the death by itself, and rolls back what will never be committed."""
    die_twice(point, sqlite_url, postgres_warehouse_url, small_transactions, tmp_path)


def die_twice(point: CrashPoint, log_url: str, warehouse_url: str, transactions: Path, folder: Path) -> None:
    groups = GROUPS_PASSING.get(point, EVERYWHERE)
    later = 1 if point in ONCE_PER_DRIVER else 2
    armed = {(group, incarnation): f"{point}:{later}" for group in groups for incarnation in (1, 2)}
    launcher = PlainLauncher(folder / "drivers", armed)
    with running(log_url, warehouse_url, transactions, launcher, backlog=FEW) as run:
        run.finish()
        assert_died(run, launcher, point, groups)
    assert_exact(warehouse_url, transactions, PLAIN_RECORDS_PER_BATCH)
