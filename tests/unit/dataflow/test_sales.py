"""The example pipeline, on its real data, against sums computed independently; and what importing it loads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import (
    BatchOperator,
    InputEvent,
    InputSet,
    ParquetSource,
    StatefulOperator,
    TableWriter,
    WindowedOperator,
)
from airflow_logio.protocol.values import Port
from pipelines.sales import cents, sales
from tests.unit.dataflow.conftest import FakeExternal

ROOT = Path(__file__).parents[3]


def answer(query: str) -> pa.Table:
    relation = duckdb.sql(query)
    assert relation is not None
    return relation.to_arrow_table()


def input_sets(operator: StatefulOperator, events: list[InputEvent]) -> Iterator[InputSet]:
    """The Input Sets in the order in which they close, as without failures."""
    state, held = operator.initial_state(), dict[str, Any]()
    for event in events:
        for inset, part in operator.assign(event, state).items():
            held[inset] = operator.accumulate(held.get(inset), part)
        for inset in operator.triggered(state, list(held)):
            yield InputSet(inset, held.pop(inset))
    for inset in operator.flush(state, list(held)):
        yield InputSet(inset, held.pop(inset))


@pytest.fixture(scope="module")
def events(transactions: Path) -> list[InputEvent]:
    ingest = sales.operators["ingest"]
    assert isinstance(ingest, ParquetSource)
    params = sales.check_params({"transactions": str(transactions)})
    batches = ingest.read(params, ingest.action(params), 0)
    return [InputEvent("in", number, batch.table) for number, batch in enumerate(batches, start=1)]


def test_shape() -> None:
    assert {name: group.operators for name, group in sales.groups.items()} == {
        "ingest": ("ingest",),
        "totals": ("totals", "save_totals"),
        "hourly": ("hourly",),
        "publish": ("publish", "done"),
    }
    assert sales.receivers(Port("ingest", "out")) == (Port("totals", "in"), Port("hourly", "in"))
    assert sales.receivers(Port("save_totals", "out")) == ()
    assert sales.lineage_ports("ingest") == (frozenset(), frozenset({"out"}))
    assert sales.lineage_ports("hourly") == (frozenset({"in"}), frozenset({"out"}))
    assert sales.lineage_ports("totals") == (frozenset(), frozenset())
    assert sales.connections == ("warehouse",)
    writer = sales.operators["publish"]
    assert isinstance(writer, TableWriter)
    assert (writer.table, writer.on_new_run, writer.primary_key) == (
        "hourly_sales",
        "replace",
        ("hour", "store_id", "department"),
    )


def test_money_is_integer_cents() -> None:
    money = pa.table({"a": [1, 2, 3], "sales_value": [0.29, 1.1, 0.0]})  # 0.29 * 100 is 28.999999999999996
    assert cents(money).to_pydict() == {"a": [1, 2, 3], "sales_cents": [29, 110, 0]}


def test_totals_on_the_whole_file(events: list[InputEvent], transactions: Path) -> None:
    totals = sales.operators["totals"]
    assert isinstance(totals, WindowedOperator)
    outputs = [table for s in input_sets(totals, events) for _, table in totals.generate(s, {}, FakeExternal())]
    assert len(outputs) == 15
    computed = pa.concat_tables(outputs)
    assert computed.schema == pa.schema(
        [(name, pa.int64()) for name in ("batch", "product_id", "quantity", "sales_cents")]
    )
    expected = answer(
        f"""SELECT file_row_number // 100000 + 1 AS batch, product_id, sum(quantity)::BIGINT AS quantity,
                   sum(round(sales_value * 100)::BIGINT)::BIGINT AS sales_cents
            FROM read_parquet('{transactions}', file_row_number = true) GROUP BY ALL ORDER BY ALL"""
    )
    assert computed.combine_chunks().equals(expected.cast(computed.schema).combine_chunks())


def test_hourly_input_sets_on_the_whole_file(events: list[InputEvent]) -> None:
    hourly = sales.operators["hourly"]
    assert isinstance(hourly, BatchOperator)
    sets = list(input_sets(hourly, events))
    assert len(sets) == 8_003
    assert [s.inset_id for s in sets] == sorted(s.inset_id for s in sets)
    tagged = hourly.tagged(sets)
    assert tagged.num_rows == 1_469_307
    assert tagged.column_names == ["inset_id", "window_start", "store_id", "product_id", "quantity", "sales_cents"]


@pytest.mark.spark
def test_hourly_in_spark(events: list[InputEvent], data: Path, transactions: Path) -> None:
    from pyspark.sql import SparkSession

    hourly = sales.operators["hourly"]
    assert isinstance(hourly, BatchOperator)
    sets = list(input_sets(hourly, events[:60]))
    builder: Any = SparkSession.builder
    for key, value in {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        products = pq.read_table(data / "products.parquet", columns=["product_id", "department"])
        frames = {"products": session.createDataFrame(products.replace_schema_metadata(None))}
        result = hourly.run(session.createDataFrame(hourly.tagged(sets)), frames).toArrow()
    finally:
        session.stop()
    outputs = hourly.split(result, len(sets))
    assert [[out[0] for out in outs] for outs in outputs] == [["out"]] * len(sets)
    computed = pa.concat_tables([outs[0][1] for outs in outputs])
    expected = answer(
        f"""SELECT date_trunc('hour', transaction_timestamp)::TIMESTAMP AS hour, store_id,
                   coalesce(department, 'UNKNOWN') AS department, sum(quantity)::BIGINT AS quantity,
                   sum(round(sales_value * 100)::BIGINT)::BIGINT AS sales_cents
            FROM read_parquet('{transactions}', file_row_number = true) sold
            LEFT JOIN '{data / "products.parquet"}' USING (product_id)
            WHERE sold.file_row_number < 60000 GROUP BY ALL ORDER BY ALL"""
    )
    assert computed.schema.field("hour").type == pa.timestamp("us")
    assert computed.combine_chunks().equals(expected.cast(computed.schema).combine_chunks())


def test_importing_a_pipeline_loads_neither_airflow_nor_spark_nor_a_database_nor_arrow() -> None:
    program = """
import sys
import airflow_logio.dataflow
from pipelines.sales import sales
sales.fingerprint()
heavy = {"airflow", "pyspark", "sqlalchemy", "pandas", "networkx", "numpy", "pyarrow"}
print(sorted(heavy & {name.partition(".")[0] for name in sys.modules}))
"""
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'dags'}", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == "[]"


def test_fingerprint_is_the_same_in_another_process() -> None:
    program = "from pipelines.sales import sales; print(sorted(sales.fingerprint().items()))"
    env = {"PYTHONPATH": f"{ROOT}:{ROOT / 'dags'}", "PATH": "/usr/bin:/bin", "PYTHONHASHSEED": "77"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=True)
    assert done.stdout.strip() == str(sorted(sales.fingerprint().items()))
