"""The sales pipeline on sales that never end, so many events a second: each sale is arithmetic of its number.

Drained, it has read a prefix, from which every row of its tables can be computed (`tests/soak/test_stability.py`).
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_logio import Count, EveryEvents, Pipeline, SourceBatch, Sums, TableWriter, Tumbling, generate
from airflow_logio.dataflow.operators import SourceOperator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RECORDS_PER_EVENT = 60
EVENTS_PER_BATCH = 10
PRODUCTS, STORES = 23, 7
BEGIN = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - as the column has it
SECONDS_PER_SALE = 30
"""Of the time in the records: an event is half an hour."""


def sale(number: int) -> tuple[dt.datetime, int, int, int, int]:
    """(time, store, product, quantity, cents)"""
    at = BEGIN + dt.timedelta(seconds=SECONDS_PER_SALE * number)
    return at, number % STORES, number * 7919 % PRODUCTS, number % 3 + 1, number * 31 % 997


class Sales(SourceOperator):
    """Replayable: the same numbers are the same sales. A driver that begins anew does not catch up what it has missed."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"from": 0}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        due = time.monotonic()
        while True:
            due += 1 / params["events_per_second"]
            time.sleep(max(0.0, due - time.monotonic()))
            columns = zip(*map(sale, range(offset, offset + RECORDS_PER_EVENT)), strict=True)
            names = ("sold_at", "store_id", "product_id", "quantity", "sales_cents")
            offset += RECORDS_PER_EVENT
            yield SourceBatch(pa.table(dict(zip(names, map(list, columns), strict=True))), offset)


@generate(mode="driver", accumulate=Sums(by=["product_id"], of=["quantity", "sales_cents"]))
def product_totals(sums: pa.Table, inset_id: str) -> pa.Table:
    return sums.add_column(0, "batch", pa.repeat(pa.scalar(int(inset_id), pa.int64()), sums.num_rows))


@generate(mode="executors", columns=("store_id", "quantity", "sales_cents"), many=True)
def hourly_sales(sales: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    summed = (F.sum("quantity").alias("quantity"), F.sum("sales_cents").alias("sales_cents"))
    return sales.groupBy("inset_id", F.col("window_start").alias("hour"), "store_id").agg(*summed)


sales = Pipeline("paced_sales", params={"events_per_second": float}, connections=["warehouse"])
ingest = sales.source("ingest", Sales())
totals = sales.operator("totals", product_totals, ingest, window=EveryEvents(EVENTS_PER_BATCH))
save_totals = sales.writer(
    "save_totals",
    TableWriter(
        "warehouse",
        "item_totals",
        columns={"batch": "bigint", "product_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"},
        primary_key=("batch", "product_id"),
        on_new_run="replace",
    ),
    totals,
)
hourly = sales.operator("hourly", hourly_sales, ingest, window=Tumbling("1h", on="sold_at"))
publish = sales.writer(
    "publish",
    TableWriter(
        "warehouse",
        "hourly_sales",
        columns={"hour": "timestamp", "store_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"},
        primary_key=("hour", "store_id"),
        on_new_run="replace",
    ),
    hourly,
)
done = sales.sink("done", Count(), publish)
sales.group("ingest", ingest)
sales.group("totals", totals, save_totals)
sales.group("hourly", hourly)
sales.group("publish", publish, done)
