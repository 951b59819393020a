"""Datasets in an object store, published by real drivers of DataFrames, which die, stop and wake up: what counts is exact."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from pyarrow import fs

from airflow_logio import published_files
from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from tests.support import lake
from tests.support.object_store import ObjectStore
from tests.support.running import ArmedSparkLauncher, has_ended, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(3600)]

BUCKET_ORDERS = bundle.parse_ref(
    f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'bucket_orders.py'}:bucket_orders"
)
FILES, ROWS = 4, 500
LONG = 900.0
"""Seconds that anything may take: on a machine with much else to do, a session of Spark alone takes minutes."""
SITES = (f"{CrashPoint.IN_PLACING}:1", f"{CrashPoint.IN_PUBLICATION}:1", f"{CrashPoint.IN_PUBLICATION}:2:stop")


@pytest.fixture
def url(objects: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a new bucket. Drivers and executors find credentials where their user keeps them; no variable and no URL has any."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    objects.let_in(tmp_path / "home")
    return f"{objects.new_url('lake')}&consistent=yes"


def test_dying_around_publication_and_a_zombie_beside_its_successor(
    postgres_url: str, objects: ObjectStore, url: str, tmp_path: Path
) -> None:
    """The third driver is stopped between its objects and their receipt, and wakes up when the fourth has published."""
    orders = lake.write_orders(tmp_path / "orders", FILES, ROWS)
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("all", n): site for n, site in enumerate(SITES, start=1)})
    settings = {
        "ref": BUCKET_ORDERS,
        "params": {"orders": str(orders)},
        "connections": {"lake": url},
        "payloads": str(tmp_path / "payloads"),
        "spark": SparkSettings(connect=True, master="local[2]"),
        "lease": Lease(8, 90),
    }
    with running(postgres_url, "", orders, launcher, end_old_drivers=False, **settings) as run:
        run.until(lambda: run.is_running("all", 3), "two have died", timeout=LONG)
        zombie = run.process("all")
        run.until(
            lambda: zombie.status() == psutil.STATUS_STOPPED,
            "the third one has stopped while it publishes",
            timeout=LONG,
        )
        run.until(lambda: run.is_running("all", 4), "it is replaced", timeout=LONG)
        run.until(lambda: run.count("save.lake", "write") == FILES // 2, "its successor has published", timeout=LONG)
        zombie.resume()
        eventually(lambda: has_ended(zombie), what="the zombie exits", timeout=LONG)
        run.finish(timeout=LONG)
        assert run.status("all").incarnation == 4
    base = url.partition("?")[0]
    copied = tmp_path / "lake"
    fs.copy_files(base.removeprefix("s3://"), str(copied), source_filesystem=objects.files())
    expected = lake.expected_orders(orders)
    assert lake.published_orders(copied) == expected
    assert len(set(lake.drawn(copied))) == len(expected), "each order was drawn once"
    there = sorted(str(path.relative_to(copied / "orders")) for path in copied.rglob("*.parquet"))
    receipts = lake.receipts(copied / "orders")
    assert len(receipts) == FILES // 2
    assert sorted(file["path"] for receipt in receipts for file in receipt["files"]) == there
    counted = published_files(url.replace("/lake?", "/lake/orders?"))
    assert sorted(file.path for file in counted) == [f"{base}/orders/{name}" for name in there]
