"""Runs of the pipeline `bundle/lake_orders.py`: their folders, where their drivers die, and what they must have made."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.store.port import LogStore
from airflow_logio.systems.payloads import Payloads, sweep_run
from tests.support import lake
from tests.support.running import Running
from tests.support.warehouse import rows_of

LAKE_ORDERS = bundle.parse_ref(f"{Path(__file__).parent / 'bundle' / 'lake_orders.py'}:lake")
FILES, ROWS = 6, 3_000
EVENTS = FILES // 2


class LakeFolders:
    """The folders of one test; files are published by links, or by copies where that is `elsewhere`."""

    def __init__(self, tmp_path: Path, warehouse_url: str, elsewhere: Path | None = None) -> None:
        self.orders = lake.write_orders(tmp_path / "orders", FILES, ROWS)
        self.published = elsewhere or tmp_path / "lake"
        self.published.mkdir(exist_ok=True)
        self.payloads = tmp_path / "payloads"
        self.warehouse_url = warehouse_url

    def settings(self) -> dict[str, object]:
        return {
            "ref": LAKE_ORDERS,
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


LAKE_SITES = {
    "front": (
        f"{CrashPoint.BEFORE_DATASET_JOB}:1",
        f"{CrashPoint.AFTER_DATASET_JOB}:2",
    ),
    "back": (
        f"{CrashPoint.AFTER_MANIFEST}:1",
        f"{CrashPoint.IN_PLACING}:1",
        f"{CrashPoint.IN_PUBLICATION}:1",
    ),
    "windows": (
        f"{CrashPoint.AFTER_DATASET_JOB}:1",
        f"{CrashPoint.AFTER_MANIFEST}:1",
        f"{CrashPoint.BEFORE_COMMIT}:2",
    ),
}
"""Where the drivers of a group die, one incarnation after the other; those of the windows around their first generation."""
