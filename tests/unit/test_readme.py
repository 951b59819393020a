"""What README quotes: a first pipeline that is exact. (`make check` compares the quotes with the examples.)"""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_logio.testing import Simulator, pipeline_scenario
from pipelines.revenue import revenue

START = dt.datetime(2017, 1, 1, 11)  # noqa: DTZ001  # timestamps are UTC without zone


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
