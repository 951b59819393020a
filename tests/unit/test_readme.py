"""What README and the pages under docs/ quote: parts of the examples as they are, and a first pipeline that is exact."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.testing import Simulator, pipeline_scenario
from pipelines.revenue import revenue

ROOT = Path(__file__).parents[2]
START = dt.datetime(2017, 1, 1, 11)  # noqa: DTZ001  # timestamps are UTC without zone


@pytest.mark.parametrize("program", ["quote", "reference"])
def test_quotes_are_the_examples_and_the_reference_the_docstrings_as_they_are(program: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / program), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_pipeline_is_exact_whatever_crashes(tmp_path: Path) -> None:
    sales = [(row % 3, row / 4, START + dt.timedelta(seconds=2 * row)) for row in range(9_000)]
    file = tmp_path / "transactions.parquet"
    columns = ("store_id", "sales_value", "transaction_timestamp")
    pq.write_table(pa.table(dict(zip(columns, map(list, zip(*sales, strict=True)), strict=True))), file)
    expected: dict[tuple[dt.datetime, int], float] = {}
    for store, value, time in sales:
        key = (time.replace(minute=0, second=0, microsecond=0), store)
        expected[key] = expected.get(key, 0.0) + value

    scenario = pipeline_scenario(revenue, params={"transactions": str(file)})
    simulator = Simulator(scenario)
    written = simulator.reference().observed.writes["save>warehouse"]
    rows = [row for body in filter(None, written) for row in scenario.codec.decode(body).to_pylist()]
    found = {(row["hour"], row["store_id"]): row["revenue"] for row in rows}
    assert len(found) == len(rows), "each hour of each store is written once"
    assert found == expected
    for seed in range(1, 9):
        _, failure = simulator.run(seed)
        assert failure is None
