"""The plain sales pipeline with its hourly part replicated by store, and slow enough to be scaled meanwhile.

Beside it every sale is copied into a table by replicas that take whole events in turn, writer and all.
"""

from __future__ import annotations

import time

import pyarrow as pa
from plain_sales import (  # type: ignore[import-not-found]
    EVENTS_PER_BATCH,
    RECORDS_PER_EVENT,
    cents,
    hourly_sales,
    product_totals,
)

from airflow_logio.dataflow import (
    ByKey,
    Count,
    EveryEvents,
    ParquetSource,
    Pipeline,
    RoundRobin,
    TableWriter,
    Tumbling,
    stateless,
)

SLOTS = 6
MOST = 3


@stateless(columns=("store_id", "product_id", "quantity", "sales_cents"))
def copies_of(records: pa.Table) -> pa.Table:
    time.sleep(records.num_rows * 2e-3)
    return records


@stateless
def slowly(records: pa.Table) -> pa.Table:
    """Work that takes its time, by records, so that it is the same on any number of replicas."""
    time.sleep(records.num_rows * 1e-3)
    return records


replicated = Pipeline("replicated", params={"transactions": str}, connections=["warehouse"])
ingest = replicated.source(
    "ingest",
    ParquetSource(
        "{transactions}",
        ordered_by="transaction_timestamp",
        records_per_event=RECORDS_PER_EVENT,
        columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
        transform=cents,
    ),
)
totals = replicated.operator("totals", product_totals, ingest, window=EveryEvents(EVENTS_PER_BATCH))
TOTALS = {"batch": "bigint", "product_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"}
save_totals = replicated.writer(
    "save_totals", TableWriter("warehouse", "item_totals", columns=TOTALS, on_new_run="replace"), totals
)
slow = replicated.operator("slow", slowly, ingest)
hourly = replicated.operator("hourly", hourly_sales, slow, window=Tumbling("1h", on="transaction_timestamp"))
HOURLY = {
    "hour": "timestamp",
    "store_id": "bigint",
    "department": "text",
    "quantity": "bigint",
    "sales_cents": "bigint",
}
publish = replicated.writer(
    "publish", TableWriter("warehouse", "hourly_sales", columns=HOURLY, on_new_run="replace"), hourly
)
done = replicated.sink("done", Count(), publish)

copied = replicated.operator("copied", copies_of, ingest)
COPIES = {"store_id": "bigint", "product_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"}
copies = replicated.writer(
    "save_copies", TableWriter("warehouse", "copies", columns=COPIES, on_new_run="replace"), copied
)

replicated.group("totals", totals, save_totals)
replicated.group("hourly", slow, hourly)
replicated.group("publish", publish, done)
replicated.group("copies", copied, copies)
replicated.replicate("copies", partition=RoundRobin(slots=4), max=MOST, initial=2)
replicated.replicate("hourly", partition=ByKey("store_id", slots=SLOTS), max=MOST)
replicated.lineage("ingest.out", "hourly.out")
