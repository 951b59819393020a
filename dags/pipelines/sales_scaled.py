"""The sales pipeline with its hourly part replicated by store, and slow on purpose, so that replicas help.

ingest ──┬── totals ── save_totals                                    → item_totals
         └── dispatch ── (slow ── hourly) x 16 slots ── merge ── publish ── done   → hourly_sales

The pipeline adds the Dispatcher and the Merger. The tables equal those of `pipelines/sales.py`, row by row.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_logio import (
    ByKey,
    Count,
    EveryEvents,
    ParquetSource,
    Pipeline,
    TableWriter,
    Tumbling,
    stateless,
)
from pipelines.sales import cents, hourly_sales, product_totals

if TYPE_CHECKING:
    import pyarrow as pa

SECONDS_PER_RECORD = 1e-3


@stateless
def slowly(records: pa.Table) -> pa.Table:
    """Slow work: it only sleeps, so that replicas help even on a machine with few cores."""
    time.sleep(records.num_rows * SECONDS_PER_RECORD)
    return records


sales_scaled = Pipeline("sales_scaled", params={"transactions": str}, connections=["warehouse"])

ingest = sales_scaled.source(
    "ingest",
    ParquetSource(
        "{transactions}",
        ordered_by="transaction_timestamp",
        records_per_event=1_000,
        columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
        transform=cents,
    ),
)
totals = sales_scaled.operator("totals", product_totals, ingest, window=EveryEvents(100))
save_totals = sales_scaled.writer(
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
slow = sales_scaled.operator("slow", slowly, ingest)
hourly = sales_scaled.operator("hourly", hourly_sales, slow, window=Tumbling("1h", on="transaction_timestamp"))
publish = sales_scaled.writer(
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
done = sales_scaled.sink("done", Count(), publish)

sales_scaled.group("totals", totals, save_totals)
sales_scaled.group("publish", publish, done)
# [START replicated]
sales_scaled.group("hourly", slow, hourly)
sales_scaled.replicate("hourly", partition=ByKey("store_id", slots=16), max=3)
# [END replicated]
sales_scaled.lineage("ingest.out", "hourly.out")
