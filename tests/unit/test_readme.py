"""What README and the pages under docs/ quote: parts of the examples as they are, and a first pipeline that is exact."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio.testing import Simulator, pipeline_scenario
from pipelines.revenue import revenue

ROOT = Path(__file__).parents[2]
START = dt.datetime(2017, 1, 1, 11)  # noqa: DTZ001  # timestamps are UTC without zone


def test_quotes_are_the_examples_as_they_are() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "quote"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_pipeline_is_exact_whatever_crashes(tmp_path: Path) -> None:
    sales = [
        {"store_id": row % 3, "sales_value": row / 4, "transaction_timestamp": START + dt.timedelta(seconds=2 * row)}
        for row in range(9_000)
    ]
    file = tmp_path / "transactions.parquet"
    pq.write_table(pa.Table.from_pylist(sales), file)
    expected = Counter[tuple[object, ...]]()
    for row in sales:
        hour = row["transaction_timestamp"].replace(minute=0, second=0, microsecond=0)
        expected[hour, row["store_id"]] += row["sales_value"]

    scenario = pipeline_scenario(revenue, params={"transactions": str(file)})
    simulator = Simulator(scenario)
    written = simulator.reference().observed.writes["save>warehouse"]
    found = Counter[tuple[object, ...]]()
    for body in filter(None, written):
        for row in scenario.codec.decode(body).to_pylist():
            found[row["hour"], row["store_id"]] += row["revenue"]
    assert found == expected
    for seed in range(1, 9):
        _, failure = simulator.run(seed)
        assert failure is None
