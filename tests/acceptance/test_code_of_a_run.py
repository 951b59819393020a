"""Which code the drivers of a run execute: installed pipelines, data files, edits and deployments in the middle of a run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.cli import preparation
from airflow_logio.cli.app import main
from airflow_logio.runtime.launch import spark_submit
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
"""Each number times a factor that lies beside this module. The third batch waits for a word."""

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import EveryEvents, ParquetSource, Pipeline, TableWriter, generate


@generate
def priced(numbers: pa.Table, inset_id: str) -> pa.Table:
    factor = int((Path(__file__).parent / "factor.txt").read_text())
    if int(inset_id) == 3 and factor < 3:
        raise ValueError(f"version {factor} cannot price batch 3")
    return pa.table({"batch": pa.array([int(inset_id)], pa.int64()), "price": [factor * pc.sum(numbers["n"]).as_py()]})


prices = Pipeline("prices", params={"numbers": str}, connections=["warehouse"])
read = prices.source("read", ParquetSource("{numbers}", records_per_event=10))
price = prices.operator("price", priced, read, window=EveryEvents(1))
table = TableWriter("warehouse", "prices", {"batch": "bigint", "price": "bigint"}, on_new_run="replace")
prices.lineage(start="read.out", target="price.out")
prices.group("all", read, price, prices.writer("save", table, price))
'''


class Deployments:
    """A repository of pipelines, and checkouts of its versions, as a Git bundle of Airflow has them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = folder / "repository"
        self.repository.mkdir()
        self._git("init", "--quiet")
        (self.repository / "shop_flows").mkdir()
        (self.repository / "shop_flows" / "__init__.py").touch()
        (self.repository / "shop_flows" / "prices.py").write_text(VERSION)

    def commit(self, factor: int, *, more: str = "") -> str:
        (self.repository / "shop_flows" / "factor.txt").write_text(str(factor))
        (self.repository / "shop_flows" / "prices.py").write_text(VERSION + more)
        self._git("add", "--all")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", str(factor))
        return self._git("rev-parse", "HEAD").strip()

    def deploy(self, commit: str, place: Path) -> None:
        """What is at that place afterwards is this version; whatever was there before is gone."""
        shutil.rmtree(place, ignore_errors=True)
        self._git("worktree", "prune")
        self._git("worktree", "add", "--quiet", "--force", "--detach", str(place), commit)

    def _git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.repository, check=True, text=True, stdout=subprocess.PIPE
        ).stdout


@pytest.fixture
def logio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command in a terminal of its own, which has imported nothing of the pipeline; drivers need no Spark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preparation, "LocalProcessLauncher", lambda _: PlainLauncher(tmp_path / "drivers"))
    monkeypatch.setattr(spark_submit, "check", lambda _: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.endswith("_URL")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WAREHOUSE_URL", f"sqlite:///{tmp_path}/warehouse.db")

    def command(*arguments: str, expected: int = 0) -> str:
        for name in [name for name in sys.modules if name.startswith("shop_flows")]:
            del sys.modules[name]
        monkeypatch.setattr("sys.argv", ["logio", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = "".join(capsys.readouterr())
        assert (ended.value.code or 0) == expected, printed
        return printed

    return command


def test_a_run_keeps_its_version_until_a_person_takes_another_one(tmp_path: Path, logio: Callable[..., str]) -> None:
    """Version 1 parks; version 2, with another graph, is deployed in its place, and a retry still executes version 1,
    although no folder has it any more. Version 3 is taken on purpose."""
    deployments = Deployments(tmp_path)
    first = deployments.commit(1)
    changed = deployments.commit(2, more="prices.lineage(start='read.out', target='save.out')\n")
    third = deployments.commit(3)
    place = tmp_path / "bundle"
    deployments.deploy(first, place)
    pq.write_table(pa.table({"n": range(30)}), tmp_path / "numbers.parquet")
    run = ["run", f"{place}/shop_flows/prices.py:prices", "--param", "numbers=numbers.parquet", "--run-id", "r"]
    assert "version 1 cannot price batch 3" in logio(*run, expected=1)
    deployments.deploy(changed, place)
    assert "version 1 cannot price batch 3" in logio("retry", "r", expected=1)
    assert "another version of pipeline" in logio("retry", "r", "--code", "new", expected=1)
    deployments.deploy(third, place)
    assert "group all: its next driver gets code 1" in logio("retry", "r", "--code", "new")
    url = f"sqlite:///{tmp_path}/warehouse.db"
    sums = [sum(range(10 * batch, 10 * batch + 10)) for batch in range(3)]
    assert sorted(rows_of(url, "SELECT batch, price FROM prices")) == [(1, sums[0]), (2, sums[1]), (3, 3 * sums[2])]
    status = json.loads(logio("status", "r", "--json"))
    assert [(change["number"], change["group"]) for change in status["code_changes"]] == [(1, "all")]
    assert "logio retry --code new by" in status["code_changes"][0]["taken_by"]
    assert "logio retry --code new by" in logio("status", "r")
    assert [("code 1" in logio("lineage", "r", "price.out", str(event))) for event in (1, 3)] == [False, True]
