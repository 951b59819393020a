"""Chains of DataFrames on real spark-submit processes, which die, stop and wake up: what is published is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.protocol.liveness import Lease
from airflow_logio.runtime.launch import bundle
from airflow_logio.runtime.payloads import Payloads, sweep_run
from airflow_logio.store.port import LogStore
from tests.support import lake
from tests.support.running import ArmedSparkLauncher, Running, has_ended, running
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(900)]

LAKE = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'lake_orders.py'}:lake")
FILES, ROWS = 6, 3_000
EVENTS = FILES // 2


class Lake:
    """The folders of one test; files are published by links, or by copies where that is `elsewhere`."""

    def __init__(self, tmp_path: Path, warehouse_url: str, elsewhere: Path | None = None) -> None:
        self.orders = lake.write_orders(tmp_path / "orders", FILES, ROWS)
        self.published = elsewhere or tmp_path / "lake"
        self.published.mkdir(exist_ok=True)
        self.payloads = tmp_path / "payloads"
        self.warehouse_url = warehouse_url

    def settings(self) -> dict[str, object]:
        return {
            "ref": LAKE,
            "params": {"orders": str(self.orders)},
            "connections": {"lake": str(self.published), "warehouse": self.warehouse_url},
            "payloads": str(self.payloads),
        }

    def assert_exact(self) -> None:
        """Compared with what DuckDB makes of the files, by what readers of the folders see."""
        expected = lake.expected_orders(self.orders)
        assert lake.published_orders(self.published) == expected
        assert len(set(lake.drawn(self.published))) == len(expected), "each order was drawn once"
        assert lake.published_stores(self.published) == lake.expected_stores(self.orders)
        assert lake.published_days(self.published) == lake.expected_days(self.orders)
        refused = rows_of(self.warehouse_url, "SELECT id FROM refused ORDER BY id")
        assert refused == lake.expected_refused(self.orders)
        for folder, actions in {"orders": EVENTS, "stores": EVENTS, "days": lake.DAYS}.items():
            receipts = lake.receipts(self.published / folder)
            named = [file["path"] for receipt in receipts for file in receipt["files"]]
            there = [path.relative_to(self.published / folder) for path in (self.published / folder).rglob("*.parquet")]
            assert len(receipts) == actions
            assert sorted(named) == sorted(map(str, there)), "receipts name all that is there, hidden files included"

    def assert_nothing_left(self, store: LogStore, run: Running) -> None:
        """After the sweep every file is one of a dataset that the log names, whole."""
        payloads = Payloads(str(self.payloads))
        while store.collect(run.run.run_id, 1_000).more:  # as `logio gc` does with what the last commits have marked
            pass
        sweep_run(payloads, store, run.run)
        refs = [ref for ref in store.references(run.run.run_id, f"{run.run.uid}/") if ".manifest#" in ref]
        datasets = [payloads.dataset("a row", ref) for ref in refs]
        named = {path for dataset in datasets for path in dataset.paths()}
        manifests = {str(self.payloads / ref.partition("#")[0]) for ref in refs}
        assert {str(path) for path in self.payloads.rglob("*") if path.is_file()} == named | manifests
        kept = Counter(ref.partition("/datasets/")[2].partition("/")[0] for ref in refs)
        assert kept == dict.fromkeys(("raw.out", "checked.good", "priced.out"), EVENTS), "what lineage keeps"


SITES = {
    "front": (
        f"{CrashPoint.BEFORE_DATASET_JOB}:1",
        f"{CrashPoint.AFTER_DATASET_JOB}:2",
    ),
    "back": (
        f"{CrashPoint.AFTER_MANIFEST}:1",
        f"{CrashPoint.IN_PUBLICATION}:1",
    ),
    "windows": (
        f"{CrashPoint.AFTER_DATASET_JOB}:1",
        f"{CrashPoint.AFTER_MANIFEST}:1",
        f"{CrashPoint.BEFORE_COMMIT}:2",
    ),
}
"""Where the drivers of a group die, one incarnation after the other; those of the windows around their first generation."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Path]:
    """On another file system."""
    with TemporaryDirectory(dir="/dev/shm") as made:
        assert Path(made).stat().st_dev != tmp_path.stat().st_dev
        yield Path(made)


def test_dying_around_jobs_manifests_and_publication(
    log_url: str, warehouse_url: str, tmp_path: Path, elsewhere: Path
) -> None:
    """Published by executors' copies."""
    one = Lake(tmp_path, warehouse_url, elsewhere)
    armed = {(group, number): point for group, points in SITES.items() for number, point in enumerate(points, start=1)}
    launcher = ArmedSparkLauncher(tmp_path / "drivers", armed)
    with running(log_url, warehouse_url, one.orders, launcher, **one.settings()) as run:
        run.finish(timeout=800)
        died = {group: run.status(group).incarnation - 1 for group in SITES}
        assert died == {group: len(points) for group, points in SITES.items()}, "every one of them was passed"
        one.assert_exact()
        one.assert_nothing_left(run.store, run)


@pytest.mark.postgres
def test_a_zombie_that_publishes_beside_its_successor(
    postgres_url: str, postgres_warehouse_url: str, tmp_path: Path
) -> None:
    """Stopped with its files in the folder, links of those in the payload store, and no receipt; the ending of old processes
    is switched off."""
    one = Lake(tmp_path, postgres_warehouse_url)
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("back", 1): f"{CrashPoint.IN_PUBLICATION}:1:stop"})
    arguments = (postgres_url, postgres_warehouse_url, one.orders, launcher)
    with running(*arguments, end_old_drivers=False, lease=Lease(8, 90), **one.settings()) as run:
        run.until(lambda: run.is_running("back"), "back runs")
        zombie = run.process("back")
        jvm = zombie.parent()
        assert jvm is not None
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, "back has stopped while it publishes")
        run.until(lambda: run.is_running("back", 2), "back is replaced")
        run.until(lambda: run.count("orders.lake", "write") > 0, "its successor has published")
        zombie.resume()
        eventually(lambda: has_ended(zombie) and has_ended(jvm), what="the zombie and its JVM exit", timeout=60)
        run.finish()
        assert run.status("back").incarnation == 2
        one.assert_exact()
        one.assert_nothing_left(run.store, run)
