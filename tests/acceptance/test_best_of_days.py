"""A window function that forgets ``inset_id`` is right for every day, also when its driver is killed between two."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

from airflow_logio.launch import bundle
from tests.support.frame_groups import orders_at
from tests.support.running import ArmedSparkLauncher, running
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(600)]

BEST = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'best_of_days.py'}:best_of_days")
HOURS = [1, 2, 3, 5, 8, 9, 25, 26, 27, 28, 30, 44, 49, 50, 51, 60, 61, 70]
"""Six orders a day, two of each store, for three days; files of four begin and end within days."""


def test_a_window_function_is_right_for_every_day_when_its_driver_is_killed_between_two(
    sqlite_url: str, tmp_path: Path
) -> None:
    orders, over, warehouse = tmp_path / "orders", tmp_path / "over", f"sqlite:///{tmp_path}/warehouse.db"
    orders.mkdir()
    for first in range(0, len(HOURS), 4):
        pq.write_table(orders_at(*HOURS).slice(first, 4), orders / f"{first:02}.parquet")
    launcher = ArmedSparkLauncher(tmp_path / "drivers")
    settings: dict[str, Any] = {
        "ref": BEST,
        "params": {"orders": str(orders), "over": str(over)},
        "payloads": str(tmp_path / "payloads"),
    }
    with running(sqlite_url, warehouse, orders, launcher, **settings) as run:
        run.until(lambda: list(tmp_path.glob("over.*")), "the last day is begun", timeout=300)
        run.signal("all", signal.SIGKILL)
        run.until(lambda: run.is_running("all", 2), "its driver is replaced", timeout=300)
        over.touch()
        run.finish(timeout=300)
        assert run.status("all").incarnation == 2
    query = f"SELECT day(ts), store, max(cents) FROM '{orders}/*.parquet' GROUP BY ALL ORDER BY ALL"
    with duckdb.connect() as database:
        database.execute("SET timezone = 'UTC'")
        expected = database.execute(query).fetchall()
    found = rows_of(warehouse, "SELECT CAST(substr(day, 9, 2) AS INT), store, cents FROM best ORDER BY 1, 2")
    assert found == expected and len(found) == 9
