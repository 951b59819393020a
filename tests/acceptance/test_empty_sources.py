"""A source without records, on real driver processes: what it would have been written to has its schema, once."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from tests.support.bundle.nothing import DOUBLED, PLAIN
from tests.support.running import PlainLauncher, running

pytestmark = pytest.mark.acceptance

NOTHING = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'nothing.py'}:nothing")
POINTS = [CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_WRITE, CrashPoint.AFTER_WRITE]
ONE_FILE = ["000000000001.parquet"]


@pytest.mark.parametrize("point", POINTS)
def test_files_and_tables_have_their_schema_once_wherever_drivers_die(
    point: CrashPoint, log_url: str, tmp_path: Path
) -> None:
    lake, warehouse = tmp_path / "lake", tmp_path / "warehouse.db"
    lake.mkdir()
    times = pa.schema([("at", pa.timestamp("ns")), ("store", pa.int64()), ("note", pa.string())])
    pq.write_table(times.empty_table(), tmp_path / "empty.parquet")
    launcher = PlainLauncher(tmp_path / "drivers", {("store", 1): f"{point}:1", ("store", 2): f"{point}:1"})
    connections = {"lake": str(lake), "warehouse": f"sqlite:///{warehouse}"}
    with running(log_url, "", tmp_path / "empty.parquet", launcher, ref=NOTHING, connections=connections) as run:
        run.finish()
        assert run.status("store").incarnation == 3, f"{point} was not passed"
        folder = lake / run.run.uid
        numbers = [run.count(f"{name}.lake", "write") for name in ("plain", "declared", "unknown")]
    assert numbers == [1, 1, 0]
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        f"{name}/{file}" for name in ("declared", "plain") for file in ONE_FILE
    ]
    assert pq.read_table(folder / "plain") == PLAIN.empty_table()
    assert pq.read_table(folder / "declared") == DOUBLED.empty_table()
    with contextlib.closing(sqlite3.connect(warehouse)) as database:
        assert database.execute("SELECT store, twice FROM stores").fetchall() == []
