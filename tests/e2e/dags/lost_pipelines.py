"""The sales pipeline with a source that waits before each event, as long as a file says so: there is always input."""

from __future__ import annotations

import os
import time

import pyarrow as pa

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, TableWriter, Tumbling
from pipelines.sales import cents, hourly_sales, product_totals

SLOW = "TESTS_SLOW_FILE"
"""Environment variable of the drivers: the path of the file."""
PACE_SECONDS = 1.5
"""A quarter of an hour for the source of the test: longer than all that is lost takes on a busy machine."""
RECORDS_PER_EVENT = 250
EVENTS_PER_BATCH = 10


def paced(sales: pa.Table) -> pa.Table:
    if os.path.exists(os.environ[SLOW]):
        time.sleep(PACE_SECONDS)
    return cents(sales)


def source() -> ParquetSource:
    return ParquetSource(
        "{transactions}",
        ordered_by="transaction_timestamp",
        records_per_event=RECORDS_PER_EVENT,
        columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
        transform=paced,
    )


def item_totals() -> TableWriter:
    return TableWriter(
        "warehouse",
        "item_totals",
        columns={"batch": "bigint", "product_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"},
        primary_key=("batch", "product_id"),
        on_new_run="replace",
    )


sales = Pipeline("sales", params={"transactions": str}, connections=["warehouse"])
ingest = sales.source("ingest", source())
totals = sales.operator("totals", product_totals, ingest, window=EveryEvents(EVENTS_PER_BATCH))
save_totals = sales.writer("save_totals", item_totals(), totals)
hourly = sales.operator("hourly", hourly_sales, ingest, window=Tumbling("1h", on="transaction_timestamp"))
publish = sales.writer(
    "publish",
    TableWriter(
        "warehouse",
        "hourly_sales",
        columns={
            "hour": "timestamp",
            "store_id": "bigint",
            "department": "text",
            "quantity": "bigint",
            "sales_cents": "bigint",
        },
        primary_key=("hour", "store_id", "department"),
        on_new_run="replace",
    ),
    hourly,
)
done = sales.sink("done", Count(), publish)

sales.group("ingest", ingest)
sales.group("totals", totals, save_totals)
sales.group("hourly", hourly)
sales.group("publish", publish, done)
sales.lineage("ingest.out", "hourly.out")

sums = Pipeline("sums", params={"transactions": str}, connections=["warehouse"])
read = sums.source("read", source())
add = sums.operator("add", product_totals, read, window=EveryEvents(EVENTS_PER_BATCH))
save = sums.writer("save", item_totals(), add)
sums.group("all", read, add, save)
