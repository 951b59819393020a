"""A run's parameters in names, on real drivers: each run has its own folder, and finds it again when it is recovered."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.bundle import parse_ref
from tests.support.running import PlainLauncher, running

pytestmark = pytest.mark.acceptance

DAILY = """
from airflow_logio import ParquetSource, ParquetWriter, Pipeline

daily = Pipeline("daily", params={"day": str}, connections=["lake"])
read = daily.source("read", ParquetSource("FOLDER/{day}/*.parquet", records_per_event=10))
daily.writer("save", ParquetWriter("lake", "sales/dt={day}"), read)
"""


def test_each_run_writes_the_folder_that_its_parameters_name_and_so_does_its_recovery(
    log_url: str, tmp_path: Path
) -> None:
    (lake := tmp_path / "lake").mkdir()
    (tmp_path / "daily.py").write_text(DAILY.replace("FOLDER", str(tmp_path)))
    ref = parse_ref(f"{tmp_path / 'daily.py'}:daily")
    days = {"2024-05-17": range(100), "2024-05-18": range(1000, 1050)}
    for day, numbers in days.items():
        (tmp_path / day).mkdir()
        pq.write_table(pa.table({"n": list(numbers)}), tmp_path / day / "a.parquet")
    for name, day in (("one", "2024-05-17"), ("two", "2024-05-18"), ("again", "2024-05-17")):
        armed = {("read", 1): f"{CrashPoint.AFTER_WRITE}:1", ("read", 2): f"{CrashPoint.BEFORE_WRITE}:1"}
        launcher = PlainLauncher(tmp_path / "drivers" / name, armed)
        settings = {"ref": ref, "connections": {"lake": str(lake)}, "params": {"day": day}, "name": name}
        with running(log_url, "", tmp_path, launcher, **settings) as run:
            run.finish()
            assert run.status("read").incarnation in (2, 3), "once, and twice where the write was not logged before"
            uid = run.run.uid
        found = duckdb.execute(f"SELECT n FROM read_parquet('{lake}/sales/dt={day}/{uid}/*/*.parquet') ORDER BY n")
        assert [n for (n,) in found.fetchall()] == list(days[day]), "one file per write action, each once"
    everything = duckdb.execute(
        f"SELECT dt, count(*) FROM read_parquet('{lake}/**/*.parquet', hive_partitioning=true) GROUP BY ALL"
    )
    assert {str(day): n for day, n in everything.fetchall()} == {"2024-05-17": 200, "2024-05-18": 50}
    assert [path.name for path in lake.iterdir()] == ["sales"]

    settings = {"ref": ref, "connections": {"lake": str(lake)}, "params": {"day": "2024-05-17/../x"}, "name": "wrong"}
    with pytest.raises(ConfigurationError, match="would make several folders of one"):
        running(log_url, "", tmp_path, PlainLauncher(tmp_path / "drivers"), **settings).__enter__()
