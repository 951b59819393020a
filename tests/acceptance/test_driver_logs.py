"""The log of a real driver: rotated while it prints, sent to the log of the run, shown, and removed with its run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.driver.driver_output import MOST_BYTES

pytestmark = pytest.mark.acceptance

TALKER = f'''
"""Prints more than a log may hold, and returns when it was rotated. A driver works in the folder of its log."""

import sys
import time
from pathlib import Path

import pyarrow as pa

from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate


@generate
def talk(numbers: pa.Table) -> pa.Table:
    for line in range({MOST_BYTES} // 100 + 10):
        print("x" * 100)
    sys.stdout.flush()
    while not Path("driver.log.1").exists():
        time.sleep(0.1)
    print("said after the rotation")
    return numbers


talks = Pipeline("talks", params={{"numbers": str}}, connections=["warehouse"])
read = talks.source("read", ParquetSource("{{numbers}}", records_per_event=10))
talker = talks.operator("talk", talk, read, window=EveryEvents(1))
table = TableWriter("warehouse", "numbers", {{"n": "bigint"}}, on_new_run="replace")
talks.group("all", read, talker, talks.writer("save", table, talker))
'''


def logio(folder: Path, *arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    ran = subprocess.run(
        [sys.executable, "-m", "airflow_logio.cli", *arguments],
        cwd=folder,
        env=variables | {"HOME": str(folder), "WAREHOUSE_URL": f"sqlite:///{folder}/warehouse.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5_000:]
    return ran.stdout


@pytest.mark.spark
def test_the_log_of_a_driver_is_rotated_shown_and_removed(tmp_path: Path) -> None:
    (tmp_path / "talks.py").write_text(TALKER)
    pq.write_table(pa.table({"n": range(10)}), tmp_path / "numbers.parquet")
    logio(tmp_path, "run", "talks.py:talks", "--param", "numbers=numbers.parquet", "--run-id", "talk")
    (log,) = tmp_path.rglob("driver.log")
    assert log.stat().st_size < MOST_BYTES < log.with_name("driver.log.1").stat().st_size
    shown = logio(tmp_path, "logs", "talk", "all", "--follow")
    for text in ("registered, pid", "x" * 100, "said after the rotation"):
        assert text in shown
    log.rename(log.with_name("kept"))
    elsewhere = logio(tmp_path, "logs", "talk", "all")
    for text in ("bytes left out", "said after the rotation", "sent of it, without secrets"):
        assert text in elsewhere
    assert len(elsewhere) < 2**20
    assert "files of the drivers of 1 run(s) removed" in logio(tmp_path, "gc")
    assert not log.parents[2].exists()
