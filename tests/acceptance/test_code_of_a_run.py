"""Which code the drivers of a run execute: installed pipelines, data files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
