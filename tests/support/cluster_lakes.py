"""A lake whose drivers a cluster manager starts, whichever: `bundle/cluster_lake.py`, its input, and DuckDB's results.

A test gives the settings of its drivers and ends them at the gates; folders are shared by all hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_logio.launch import bundle
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.supervision.tidying import staging_of
from tests.support import lake
from tests.support.gated_runs import GatedRun, NoLauncher
from tests.support.running import running
from tests.support.warehouse import rows_of

CLUSTER_LAKE = bundle.parse_ref(f"{Path(__file__).parent / 'bundle' / 'cluster_lake.py'}:lake")
FILES, ROWS = 4, 400
GROUPS = ("make", "sum")

NodeSays = Mapping[str, Any]
"""What the node's file, or the Secret, is to say to drivers."""


@dataclass
class ClusterLake(GatedRun):
    """A run of it. A task of group `make` waits in the middle of a file at each of `gates`, until it is opened."""

    orders: Path
    published: Path
    payloads: Path
    gates: tuple[int, ...]
    """Ids of orders, in different events."""

    def assert_exact(self) -> None:
        """As DuckDB computes it from the files: the folders, by what readers see, and the table."""
        expected = lake.expected_orders(self.orders)
        days = lake.expected_days(self.orders)
        assert lake.published_orders(self.published) == expected
        assert len(set(lake.drawn(self.published))) == len(expected), "each order was drawn once"
        found = f"read_parquet('{self.published}/days/*.parquet')"
        assert lake.rows_of_query(f"SELECT day, store, cents, orders FROM {found} ORDER BY ALL") == days
        table = "SELECT day, store, cents, orders FROM store_days ORDER BY day, store"
        assert rows_of(self.run.context.connections["warehouse"], table) == days
        for folder, actions in {"orders": FILES, "days": lake.DAYS}.items():
            receipts = lake.receipts(self.published / folder)
            named = [file["path"] for receipt in receipts for file in receipt["files"]]
            there = [path.relative_to(self.published / folder) for path in (self.published / folder).rglob("*.parquet")]
            assert len(receipts) == actions
            assert sorted(named) == sorted(map(str, there)), "receipts name all that is there, hidden files included"

    def living(self) -> dict[str, int]:
        """Group → its drivers that the log does not have as ended: of each, none may be besides the newest."""
        drivers = self.run.store.drivers(self.run.run.run_id)
        return {group: sum(one.group == group and one.ended_at is None for one in drivers) for group in GROUPS}

    def leaves_nothing(self) -> None:
        """`logio gc` of a run that has ended removes it, and all its payloads and staging tables."""
        urls = self.run.context.connections
        command = [sys.executable, "-m", "airflow_logio.cli", "gc", "--older-than", "1s"]
        told = {"LOGIO_URL": self.run.context.log_url, "LOGIO_PAYLOADS": str(self.payloads)}
        told |= {f"LOGIO_CONN_{name.upper()}": url for name, url in urls.items()}
        assert any(self.payloads.rglob("*.parquet")), "lineage keeps some until then"
        done = subprocess.run(command, check=False, env=os.environ | told, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 and "removed" in done.stdout, f"{done.stdout}\n{done.stderr}"
        assert [path for path in self.payloads.rglob("*") if path.is_file()] == []
        assert staging_of({"warehouse": urls["warehouse"]}, self.run.run) == []


@contextmanager
def cluster_lake(
    settings: Callable[[NodeSays], SparkSettings],
    folder: Path,
    log_url: str,
    warehouse_url: str,
    *,
    lease: Lease | None = None,
    **more: Any,
) -> Iterator[ClusterLake]:
    """A run of it that the test supervises. `settings` of its drivers are told what their node has to say; `more` goes to
    `running`. The folder is one that all hosts share."""
    published, gates, payloads = (folder / name for name in ("lake", "gates", "payloads"))
    for one in (published, gates, payloads):
        one.mkdir()
    orders = lake.write_orders(folder / "orders", FILES, ROWS)
    good = [order for order, _, _ in lake.expected_orders(orders)]
    held = tuple(next(order for order in good if order >= ROWS * file + ROWS // 2) for file in range(1, FILES))
    for order in held:
        (gates / f"gate-{order}").touch()
    connections = {"lake": str(published), "warehouse": warehouse_url}
    says = {"log": log_url, "payloads": str(payloads), "connections": connections, "environment": {}}
    with running(
        log_url,
        warehouse_url,
        orders,
        NoLauncher(folder / "none"),
        ref=CLUSTER_LAKE,
        params={"orders": str(orders), "gates": str(gates)},
        connections=connections,
        payloads=str(payloads),
        code=collect(CLUSTER_LAKE),
        spark=settings(says),
        lease=lease or Lease(15, 240),
        **more,
    ) as run:
        yield ClusterLake(run, gates, orders, published, payloads, held)
