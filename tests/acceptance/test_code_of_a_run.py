"""Which code the drivers of a run execute: installed pipelines, data files, edits and deployments in the middle of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli import preparation
from airflow_logio.cli.app import main
from airflow_logio.crash import CrashPoint
from airflow_logio.launch import spark_submit
from airflow_logio.launch.launcher import Launched
from airflow_logio.store.records.driver_records import Claim
from tests.support.deployments import Deployments
from tests.support.running import PlainLauncher
from tests.support.warehouse import rows_of

pytestmark = pytest.mark.acceptance

PRICING = '''
"""Each number times a factor that lies beside this module."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate


@generate
def priced(numbers: pa.Table, inset_id: str) -> pa.Table:
    factor = int((Path(__file__).parent / "factor.txt").read_text())
    return pa.table({"batch": pa.array([int(inset_id)], pa.int64()), "price": [factor * pc.sum(numbers["n"]).as_py()]})


prices = Pipeline("prices", params={"numbers": str}, connections=["warehouse"])
read = prices.source("read", ParquetSource("{numbers}", records_per_event=10))
price = prices.operator("price", priced, read, window=EveryEvents(1))
table = TableWriter("warehouse", "prices", {"batch": "bigint", "price": "bigint"}, on_new_run="replace")
prices.group("all", read, price, prices.writer("save", table, price))
'''


@pytest.mark.spark
def test_a_pipeline_installed_as_a_package_runs(tmp_path: Path) -> None:
    """Beside it is what would hide a compiled package if it were shipped as well; the site is the last on the path."""
    site = tmp_path / "lib" / "site-packages"
    for name, text in {
        "shop_pipelines/__init__.py": "",
        "shop_pipelines/prices.py": PRICING,
        "shop_pipelines/factor.txt": "3",
        "msgspec/__init__.py": "raise ImportError('no compiled module here')",
        "pyarrow/__init__.py": "raise ImportError('no compiled module here')",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    terminal = tmp_path / "terminal"
    terminal.mkdir()
    pq.write_table(pa.table({"n": range(30)}), terminal / "numbers.parquet")
    program = f"import sys; sys.path.append({str(site)!r}); from airflow_logio.cli.__main__ import main; main()"
    arguments = ["run", "shop_pipelines.prices:prices", "--param", "numbers=numbers.parquet"]
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=terminal,
        env=environment | {"WAREHOUSE_URL": f"sqlite:///{terminal}/warehouse.db"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    expected = [(batch + 1, 3 * sum(range(10 * batch, 10 * batch + 10))) for batch in range(3)]
    assert sorted(rows_of(f"sqlite:///{terminal}/warehouse.db", "SELECT batch, price FROM prices")) == expected
    (shipped,) = terminal.rglob("bundle.zip")
    assert shipped.stat().st_size < 10_000


VERSION = '''
"""Each number times a factor that lies beside this module. The third batch is read when the second one is in the warehouse:
what a group has not committed when an operator fails, the next version may compute."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate


def behind_the_second(numbers: pa.Table) -> pa.Table:
    deadline = time.monotonic() + 60
    while numbers["n"][0].as_py() == 20 and not second_is_written():
        if time.monotonic() > deadline:
            raise TimeoutError("batch 2 is not in the warehouse")
        time.sleep(0.05)
    return numbers


def second_is_written() -> bool:
    try:
        with closing(sqlite3.connect("file:WAREHOUSE?mode=ro", uri=True)) as warehouse:
            return warehouse.execute("SELECT count(*) FROM prices WHERE batch = 2").fetchone() == (1,)
    except sqlite3.OperationalError:  # there is no table yet, or it is locked
        return False


@GENERATE
def priced(numbers: pa.Table, inset_id: str) -> pa.Table:
    factor = int((Path(__file__).parent / "factor.txt").read_text())
    if int(inset_id) == 3 and factor < 3:
        raise ValueError(f"version {factor} cannot price batch 3")
    return pa.table({"batch": pa.array([int(inset_id)], pa.int64()), "price": [factor * pc.sum(numbers["n"]).as_py()]})


prices = Pipeline("prices", params={"numbers": str}, connections=["warehouse"])
read = prices.source("read", ParquetSource("{numbers}", records_per_event=10, transform=behind_the_second))
price = prices.operator("price", priced, read, window=EveryEvents(1))
table = TableWriter("warehouse", "prices", {"batch": "bigint", "price": "bigint"}, on_new_run="replace")
prices.lineage(start="read.out", target="price.out")
prices.group("all", read, price, prices.writer("save", table, price))
'''
OTHER_GRAPH = "prices.lineage(start='read.out', target='save.out')\n"
SUMS = [sum(range(10 * batch, 10 * batch + 10)) for batch in range(3)]


class Shop:
    """A terminal in whose folder versions of the shop's pipeline are deployed; drivers need no JVM."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.deployments = Deployments(folder / "bundle", "shop")
        self.warehouse = f"sqlite:///{folder}/warehouse.db"
        self._monkeypatch, self._capsys = monkeypatch, capsys
        launcher = PlainLauncher(folder / "drivers")
        monkeypatch.setattr(preparation, "LocalProcessLauncher", lambda _: launcher)
        monkeypatch.setattr(spark_submit, "check", lambda _: None)
        monkeypatch.setenv("LOGIO_URL", f"sqlite:///{folder}/log.db")
        monkeypatch.setenv("LOGIO_CONN_WAREHOUSE", self.warehouse)
        monkeypatch.chdir(folder)
        pq.write_table(pa.table({"n": range(30)}), folder / "numbers.parquet")

    def deploy(self, factor: int, *, more: str = "", quarantine: bool = False) -> None:
        """The version that multiplies by `factor`."""
        generate = "generate(on_error='quarantine', order_insensitive=True)" if quarantine else "generate"
        source = VERSION.replace("GENERATE", generate).replace("WAREHOUSE", self.warehouse.removeprefix("sqlite:///"))
        self.deployments.deploy(
            {"shop/__init__.py": "", "shop/prices.py": source + more, "shop/factor.txt": str(factor)}
        )

    def run(self, *, expected: int) -> str:
        return self.logio(
            "run",
            "bundle/shop/prices.py:prices",
            "--param",
            "numbers=numbers.parquet",
            "--run-id",
            "r",
            expected=expected,
        )

    def logio(self, *arguments: str, expected: int = 0) -> str:
        """A command, in a process that has imported no version of the shop; what it prints."""
        self.deployments.forget()
        self._monkeypatch.setattr("sys.argv", ["logio", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._capsys.readouterr()
        assert int(ended.value.code or 0) == expected, printed
        return printed.out + printed.err

    def prices(self) -> list[tuple[int, int]]:
        return sorted((batch, price) for batch, price in rows_of(self.warehouse, "SELECT batch, price FROM prices"))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    found = Shop(tmp_path, monkeypatch, capsys)
    yield found
    found.deployments.forget()


def test_a_run_keeps_its_version_until_a_person_takes_another_one(shop: Shop) -> None:
    """Version 1 parks; version 2, with another graph, is deployed in its place, and a retry still executes version 1,
    although no folder has it any more. Version 3 is taken on purpose."""
    shop.deploy(1)
    assert "version 1 cannot price batch 3" in shop.run(expected=1)
    shop.deploy(2, more=OTHER_GRAPH)
    assert "version 1 cannot price batch 3" in shop.logio("retry", "r", expected=1)
    refused = shop.logio("retry", "r", "--code", "new", expected=1)
    assert "another version of pipeline" in refused and "continues it with the version that it has" in refused
    shop.deploy(1)
    assert "has no other code than code 0, which the group has already" in shop.logio(
        "retry", "r", "--code", "new", expected=1
    )
    shop.deploy(3)
    assert "continues with the code that it has" in shop.run(expected=1)
    assert "group all: its next driver gets code 1" in shop.logio("retry", "r", "--code", "new")
    assert shop.prices() == [(1, SUMS[0]), (2, SUMS[1]), (3, 3 * SUMS[2])]
    (change,) = json.loads(shop.logio("status", "r", "--json"))["code_changes"]
    assert (change["number"], change["group"]) == (1, "all") and "logio retry --code new by" in change["taken_by"]
    assert "logio retry --code new by" in shop.logio("status", "r")
    assert [("code 1" in shop.logio("lineage", "r", "price.out", event)) for event in "13"] == [False, True]


def test_a_quarantined_input_set_is_generated_by_the_mended_version(shop: Shop) -> None:
    """Its group has finished, and is launched again with the code that the person wants."""
    shop.deploy(1, quarantine=True)
    assert "1 Input Set" in shop.run(expected=1)
    shop.deploy(3, quarantine=True)
    assert "group all: its next driver gets code 1" in shop.logio("retry", "r", "--code", "new")
    assert shop.prices() == [(1, SUMS[0]), (2, SUMS[1]), (3, 3 * SUMS[2])]


def test_a_recovery_executes_the_version_of_the_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version is deployed while a driver works, which dies after its second commit; the folder is not looked at again."""
    launch = PlainLauncher.launch

    def deployed_behind(launcher: PlainLauncher, claim: Claim, *more: Any) -> Launched:
        launcher.armed = {("all", 1): f"{CrashPoint.AFTER_COMMIT}:2"}
        launched = launch(launcher, claim, *more)
        shop.deploy(4)
        return launched

    monkeypatch.setattr(PlainLauncher, "launch", deployed_behind)
    shop.deploy(3)
    assert "2 drivers launched, 1 of them recoveries" in shop.run(expected=0)
    assert shop.prices() == [(batch, 3 * total) for batch, total in enumerate(SUMS, 1)]
