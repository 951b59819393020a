"""Delta tables that real spark-submit drivers read, which die; compared with DuckDB and with what was written.

What the drivers write into a Delta table is read by a reader of the tests' own (`tests.support.delta_tables`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from tests.support import lake
from tests.support.delta_tables import rows_of
from tests.support.running import ArmedSparkLauncher, Running, running

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(1200)]

BUNDLE = Path(__file__).parents[1] / "support" / "bundle" / "delta_orders.py"
VERSIONS, ROWS = 6, 500
READING = {
    ("front", 1): f"{CrashPoint.BEFORE_DATASET_JOB}:1",
    ("front", 2): f"{CrashPoint.AFTER_DATASET_JOB}:1",
    ("front", 3): f"{CrashPoint.BEFORE_COMMIT}:2",
}
"""Before Spark reads a range that is logged, when it has, and before the log says so."""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    """A table of versions with the same orders as the files beside it, partitioned by store."""
    written = lake.write_orders(tmp_path / "written", VERSIONS, ROWS)
    for number, file in enumerate(sorted(written.glob("*.parquet"))):
        configuration = {"delta.enableChangeDataFeed": "true"}
        table = pq.read_table(file)
        write_deltalake(tmp_path / "orders", table, mode="append", partition_by=["store"], configuration=configuration)
        if number == VERSIONS // 2:
            DeltaTable(tmp_path / "orders").optimize.compact()
    (tmp_path / "lake").mkdir()
    return tmp_path / "orders"


def started(log_url: str, orders: Path, name: str, armed: Any) -> Any:
    """A run of a pipeline of the bundle."""
    launcher = ArmedSparkLauncher(orders.parent / "drivers", armed)
    settings: dict[str, Any] = {
        "ref": parse_ref(f"{BUNDLE}:{name}"),
        "params": {"orders": str(orders)},
        "connections": {"lake": str(orders.parent / "lake")},
        "payloads": str(orders.parent / "payloads"),
    }
    return running(log_url, "", orders, launcher, **settings)


def assert_died(run: Running, armed: Any) -> None:
    for group in ("front", "back"):
        assert run.status(group).incarnation == 1 + sum(one == group for one, _ in armed), (
            f"{group}: every point was passed"
        )


def test_versions_become_lines_of_another_table_whoever_dies(sqlite_url: str, orders: Path) -> None:
    """The reading driver dies at three points, the one that writes around its commit."""
    armed = {**READING, ("back", 1): f"{CrashPoint.BEFORE_LAKE_COMMIT}:1"}
    with started(sqlite_url, orders, "versions", armed) as run:
        run.finish(timeout=1000)
        assert_died(run, armed)
    expected = lake.expected_orders(orders.parent / "written")
    assert rows_of(orders.parent / "lake" / "costs", "id", "store", "cents") == sorted(expected, key=repr)
