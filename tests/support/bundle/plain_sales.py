"""The sales pipeline with its Spark job replaced by Arrow, in many small events: whole runs in seconds, without a JVM."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    ParquetSource,
    Pipeline,
    Sums,
    TableRead,
    TableWriter,
    Tumbling,
    generate,
)
from airflow_logio.dataflow import window_start as start_of_window

RECORDS_PER_EVENT = 250
EVENTS_PER_BATCH = 10


def cents(sales: pa.Table) -> pa.Table:
    amounts = pc.round(pc.multiply(sales.column("sales_value"), 100.0)).cast(pa.int64())
    return sales.drop_columns(["sales_value"]).append_column("sales_cents", amounts)


@generate(mode="driver", accumulate=Sums(by=["product_id"], of=["quantity", "sales_cents"]))
def product_totals(sums: pa.Table, inset_id: str) -> pa.Table:
    return sums.add_column(0, "batch", pa.repeat(pa.scalar(int(inset_id), pa.int64()), sums.num_rows))


@generate(
    mode="driver",
    reads={"products": TableRead("warehouse", "products", columns=("product_id", "department"), key="product_id")},
    columns=("store_id", "product_id", "quantity", "sales_cents"),
    depends={"hour": start_of_window, "store_id": "store_id"},
)
def hourly_sales(sales: pa.Table, products: pa.Table, window_start: dt.datetime) -> pa.Table:
    joined = sales.join(products, "product_id", join_type="left outer")
    department = pc.fill_null(joined.column("department"), "UNKNOWN")
    joined = joined.set_column(joined.column_names.index("department"), "department", department)
    grouped = joined.group_by(["store_id", "department"], use_threads=False)
    sums = grouped.aggregate([("quantity", "sum"), ("sales_cents", "sum")])
    hour = pa.repeat(pa.scalar(window_start, pa.timestamp("us")), sums.num_rows)
    named = sums.rename_columns(["store_id", "department", "quantity", "sales_cents"])
    return named.add_column(0, "hour", hour)


sales = Pipeline("sales", params={"transactions": str}, connections=["warehouse"])
ingest = sales.source(
    "ingest",
    ParquetSource(
        "{transactions}",
        ordered_by="transaction_timestamp",
        records_per_event=RECORDS_PER_EVENT,
        columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
        transform=cents,
    ),
)
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
sales.group("totals", totals, "save_totals")
sales.group("hourly", hourly)
sales.group("publish", publish, "done")
sales.lineage("ingest.out", "hourly.out")
