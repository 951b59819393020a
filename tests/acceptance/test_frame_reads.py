"""Large reads of windows of mode ``dataframe`` on real spark-submit processes, which die around what is stored of them."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import bundle
from airflow_logio.lineage.lineage_records import effect
from airflow_logio.store.lineage.queries import backward
from airflow_logio.systems.payloads import Payloads, sweep_run
from tests.support import lake
from tests.support.running import ArmedSparkLauncher, running
from tests.support.warehouse import change

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres, pytest.mark.timeout(600)]

READ_ORDERS = bundle.parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'read_orders.py'}:read_orders")
FILES, ROWS = 2, 500
SITES = (f"{CrashPoint.IN_STORE}:1", f"{CrashPoint.IN_PUBLICATION}:1")
"""One effect is stored, and the other one half written; the log names both, and what was made of them."""
TABLE = """
    CREATE TABLE labels AS
    SELECT i AS id, 'label ' || i AS label FROM generate_series(0, 9999, 2) AS i;
    CREATE INDEX ON labels (id)
"""


def test_dying_around_the_store_of_reads(postgres_url: str, postgres_warehouse_url: str, tmp_path: Path) -> None:
    """What was asked before the commit is asked again, nothing after it; compared with what DuckDB makes of the files."""
    orders = lake.write_orders(tmp_path / "orders", FILES, ROWS)
    published, payloads, journal = tmp_path / "lake", Payloads(str(tmp_path / "payloads")), tmp_path / "journal"
    published.mkdir()
    change(postgres_warehouse_url, TABLE)
    launcher = ArmedSparkLauncher(tmp_path / "drivers", {("all", n): site for n, site in enumerate(SITES, start=1)})
    settings = {
        "ref": READ_ORDERS,
        "params": {"orders": str(orders), "journal": str(journal)},
        "connections": {"lake": str(published), "wh": postgres_warehouse_url},
        "payloads": str(tmp_path / "payloads"),
    }
    with running(postgres_url, "", Path(), launcher, **settings) as run:
        run.finish(timeout=500)
        assert run.status("all").incarnation == len(SITES) + 1, "every one of them was passed"
        with duckdb.connect() as database:
            query = f"SELECT id, label, drawn FROM '{published}/labelled/*.parquet' ORDER BY id"
            found = database.execute(query).fetchall()
        used = {drawn for _, _, drawn in found}
        assert used == {2}, "the second driver has asked for what was committed"
        assert len(journal.read_text().splitlines()) == 2, "and the third one has not asked"
        assert [(id, label) for id, label, _ in found] == [(id, f"label {id}") for id in range(0, FILES * ROWS, 2)]
        origin = backward(run.store, run.run, "days.out", 1)
        (inset,) = origin.input_sets()
        told = {
            (read.description.get("table"), read.records, read.description.get("keys"), table.num_rows)
            for read in origin.reads("days")
            for table in [effect(run.store, run.run, read, inset, payloads)]
            if "drawn" not in table.column_names or pc.unique(table.column("drawn")).to_pylist() == [2]
        }
        assert told == {("labels", FILES * ROWS // 2, FILES * ROWS, FILES * ROWS // 2), (None, 1_000, None, 1_000)}
        sweep_run(payloads, run.store, run.run)
        refs = [ref for ref in run.store.references(run.run.run_id, f"{run.run.uid}/") if ".manifest#" in ref]
        kept = [payloads.dataset("a row", ref) for ref in refs]
        files = {file.path for one in kept for file in one.manifest.files} | {ref.partition("#")[0] for ref in refs}
        assert set(payloads.find(run.run.uid)) == files
        assert len([ref for ref in refs if "/datasets/days/" in ref]) == 2
