"""Delta tables on real driver processes that die and stop around each commit; compared with DuckDB's answer.

What the tables hold is read by a reader of the tests' own, which replays their logs (`tests.support.delta_tables`).
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import psutil
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.launch.driver_config import REPLACED
from airflow_logio.protocol.liveness import Lease
from tests.support.crash_sites import IN_LAKE_COMMITS
from tests.support.delta_tables import numbers_of, rows_of
from tests.support.running import PlainLauncher, running

pytestmark = pytest.mark.acceptance

LAKE = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'delta_lake.py'}:pipeline")
RECORDS_PER_EVENT = 1_000


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    (tmp_path / "lake").mkdir()
    return tmp_path / "lake"


def started(log_url: str, lake: Path, transactions: Path, launcher: PlainLauncher, **settings: Any) -> Any:
    return running(log_url, "", transactions, launcher, ref=LAKE, connections={"lake": str(lake)}, **settings)


def assert_exact(lake: Path, transactions: Path) -> None:
    """Each line once, and of each store what its last event has said."""
    lines = f"""
        SELECT store_id::bigint AS store_id, quantity::double AS quantity, file_row_number // {RECORDS_PER_EVENT} AS event
        FROM read_parquet('{transactions}', file_row_number = true)"""
    stores = f"""
        SELECT store_id, arg_max(quantity, event)
        FROM (SELECT store_id, event, sum(quantity) AS quantity FROM ({lines}) GROUP BY ALL) GROUP BY store_id"""
    with duckdb.connect() as connection:
        wanted = connection.execute(f"SELECT store_id, quantity FROM ({lines})").fetchall()
        newest = connection.execute(stores).fetchall()
    assert rows_of(lake / "lines", "store_id", "quantity") == sorted(wanted, key=repr)
    assert rows_of(lake / "stores", "store_id", "quantity") == sorted(newest, key=repr)
    for table in ("lines", "stores"):
        uri = str(lake / table)
        assert deltalake.DeltaTable(uri).to_pyarrow_table().num_rows == len(rows_of(uri, "store_id"))


@pytest.mark.parametrize("point", IN_LAKE_COMMITS)
def test_dying_around_a_commit_of_a_table_twice_changes_nothing(
    point: CrashPoint, log_url: str, lake: Path, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {("lake", 1): f"{point}:3", ("lake", 2): f"{point}:2"})
    with started(log_url, lake, small_transactions, launcher) as run:
        run.finish()
        assert run.status("lake").incarnation == 3, f"{point} was not passed"
    assert_exact(lake, small_transactions)


@pytest.mark.postgres
@pytest.mark.parametrize("point", [CrashPoint.AFTER_LAKE_FILES, CrashPoint.BEFORE_LAKE_COMMIT])
def test_a_zombie_commits_nothing_behind_its_successor_and_a_vacuum(
    point: CrashPoint, postgres_url: str, lake: Path, small_transactions: Path, tmp_path: Path
) -> None:
    """It stops with files that no commit names, which a VACUUM without retention removes before it continues."""
    launcher = PlainLauncher(tmp_path / "drivers", {("lake", 1): f"{point}:3:stop"})
    lease = Lease(seconds=6, launch_seconds=60)
    with started(postgres_url, lake, small_transactions, launcher, lease=lease, end_old_drivers=False) as run:
        run.until(lambda: run.is_running("lake"), "lake runs")
        zombie = run.process("lake")
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, f"lake has stopped at {point}")
        run.finish()
        for table in ("lines", "stores"):
            opened = deltalake.DeltaTable(str(lake / table))
            opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        before = {table: numbers_of(lake / table) for table in ("lines", "stores")}
        zombie.send_signal(signal.SIGCONT)
        child = next(child for child in launcher.children if child.pid == zombie.pid)
        assert child.wait(timeout=60) == REPLACED, run.log_of("lake")
        assert {table: numbers_of(lake / table) for table in ("lines", "stores")} == before
    assert_exact(lake, small_transactions)
