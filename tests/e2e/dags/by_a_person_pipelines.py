"""Pipelines of one group whose source waits before each event, and whose drivers do not begin, as long as files say so."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

from airflow_logio.dataflow import EveryEvents, ParquetSource, Pipeline, TableWriter
from pipelines.sales import cents, product_totals

SLOW, STUCK = "slow", "stuck"
"""Files of the folder in the drivers' variable TESTS_FOLDER: a second per event; no commit at all."""
FOLDER = Path(os.environ["TESTS_FOLDER"]) if "TESTS_FOLDER" in os.environ else None
RECORDS_PER_EVENT = 250
EVENTS_PER_BATCH = 10

while FOLDER is not None and (FOLDER / STUCK).exists():
    time.sleep(0.05)  # here, in a driver: one that has begun commits what is to be collected, though no event comes


def paced(sales: pa.Table) -> pa.Table:
    if FOLDER is not None and (FOLDER / SLOW).exists():
        time.sleep(1.0)
    return cents(sales)


def sums_of(name: str) -> Pipeline:
    pipeline = Pipeline(name, params={"transactions": str}, connections=["warehouse"])
    source = ParquetSource(
        "{transactions}",
        ordered_by="transaction_timestamp",
        records_per_event=RECORDS_PER_EVENT,
        columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
        transform=paced,
    )
    table = TableWriter(
        "warehouse",
        "item_totals",
        columns={"batch": "bigint", "product_id": "bigint", "quantity": "bigint", "sales_cents": "bigint"},
        primary_key=("batch", "product_id"),
        on_new_run="replace",
    )
    read = pipeline.source("read", source)
    add = pipeline.operator("add", product_totals, read, window=EveryEvents(EVENTS_PER_BATCH))
    pipeline.group("all", read, add, pipeline.writer("save", table, add))
    return pipeline


one, days, counted = sums_of("one"), sums_of("days"), sums_of("counted")
