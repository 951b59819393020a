"""`logio run` from a terminal's point of view: real spark-submit drivers, a slice of the data, every row checked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.launch.driver_folders import processes_under
from airflow_logio.launch.driver_process import PROGRAM
from demo.checks import check_sales
from demo.data import parquet_file
from tests.support.bundle import outside
from tests.support.grocery import write_slice
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]

SALES = f"{Path(__file__).parents[2] / 'dags' / 'pipelines' / 'sales.py'}:sales"
ROWS = 30_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the terminal is; log, warehouse and drivers are in it by default."""
    write_slice(tmp_path / "transactions.parquet", ROWS)
    return tmp_path


def started(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")} | variables
    command = [sys.executable, "-m", "airflow_logio.cli", *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def is_exact(folder: Path) -> bool:
    warehouse = f"sqlite:///{folder / '.logio' / 'warehouse.db'}"
    result = check_sales(warehouse, folder / "transactions.parquet", parquet_file("products"))
    assert result.exact, "\n".join(result.lines())
    return True


def test_a_run_needs_no_options_but_its_data(folder: Path) -> None:
    run = started(folder, "run", SALES, "--param", "transactions=transactions.parquet", "--json", "summary.json")
    printed, _ = run.communicate(timeout=240)
    assert run.returncode == 0, printed
    uid, shown = re.findall(r"uid (\w{8}); `logio ui (\w+)` shows it in a browser", " ".join(printed.split()))[0]
    assert uid == shown
    assert is_exact(folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["outcome"], summary["records"], summary["drivers_launched"]) == ("finished", ROWS, 4)
    assert summary["ports"]["ingest.out out"] == {**summary["ports"]["ingest.out out"], "events": 30, "records": ROWS}
    assert processes_under(folder) == []


def test_ctrl_c_leaves_no_driver_and_the_run_goes_on_later(folder: Path) -> None:
    arguments = ("run", SALES, "--param", "transactions=transactions.parquet", "--run-id", "mine")
    run = started(folder, *arguments)
    drivers = folder / ".logio" / "drivers"
    eventually(lambda: len(list(drivers.glob("*/*/1/driver.log"))) == 4, what="four drivers", timeout=60)
    eventually(lambda: processes_under(drivers), what="driver processes", timeout=60)
    (server,) = (one for one in psutil.Process(run.pid).children() if str(PROGRAM) in one.cmdline())
    eventually(lambda: len(server.children()) == 3, what="three drivers of Python alone, which are forked", timeout=60)
    alone = server.children()
    next(one for one in alone if "/publish/" in one.cmdline()[-1]).kill()
    eventually(lambda: set(server.children()) - set(alone), what="the successor is forked, too", timeout=60)
    run.send_signal(signal.SIGINT)
    printed, _ = run.communicate(timeout=60)
    assert run.returncode == 130, printed
    assert processes_under(folder) == [] and not server.is_running()
    again = started(folder, *arguments)
    printed, _ = again.communicate(timeout=240)
    assert again.returncode == 0, printed
    assert is_exact(folder)
    assert processes_under(folder) == []


def test_parameters_and_named_variables_reach_functions_and_nothing_else_shows_them(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "numbers.parquet")
    token, warehouse = "s3cr3t-" + "x" * 20, f"sqlite:///{tmp_path / 'warehouse.db'}"
    arguments = ("run", f"{outside.__file__}:outside", "--param", "numbers=numbers.parquet", "--param", "rate=1.5")
    refused = started(tmp_path, *arguments)
    printed, _ = refused.communicate(timeout=120)
    assert refused.returncode != 0
    assert "names environment variable 'SHOP_TOKEN', which is not set" in printed
    run = started(tmp_path, *arguments, SHOP_TOKEN=token, LOGIO_CONN_WAREHOUSE=warehouse)
    printed, _ = run.communicate(timeout=240)
    assert run.returncode == 0, printed
    rows = rows_of(warehouse, "SELECT price, token, at_import, shown FROM prices")
    assert sorted(rows) == [(price, outside.digest(token), True, False) for price in (1.5, 3.0, 4.5)]
    assert token not in printed
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if token.encode() in path.read_bytes()] == [], (
        "neither log, nor driver's log, nor bundle"
    )
