"""Code of an author that does not return: while a file ``<gate>.<who>`` exists, a call of `who` waits.

`hanging` recovers what takes too long, `parking` parks it, `patient` has no limits.
"""

from __future__ import annotations

import os
import time

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import EveryEvents, ParquetSource, Pipeline, TableWriter, generate

RECORDS_PER_EVENT = 10
EVENTS_PER_SUM = 2
MAX_SECONDS = 1.5


def hang(who: str, records: pa.Table) -> None:
    """Every record has the path of the gate."""
    while os.path.exists(f"{records['gate'][0].as_py()}.{who}"):
        time.sleep(0.02)


def read_slowly(records: pa.Table) -> pa.Table:
    hang("read", records)
    return records


@generate
def total(records: pa.Table, inset_id: str) -> pa.Table:
    if inset_id == "3":
        hang("generate", records)
    return pa.table({"batch": pa.array([int(inset_id)], pa.int64()), "total": [pc.sum(records["n"])]})


def made(name: str, **limit: str) -> Pipeline:
    pipeline = Pipeline(name, params={"numbers": str}, connections=["warehouse"], fuse=False)
    read = pipeline.source(
        "read", ParquetSource("{numbers}", records_per_event=RECORDS_PER_EVENT, transform=read_slowly)
    )
    totals = pipeline.operator("totals", total, read, window=EveryEvents(EVENTS_PER_SUM))
    table = TableWriter("warehouse", "totals", {"batch": "bigint", "total": "bigint"}, on_new_run="replace")
    pipeline.writer("save", table, totals)
    if limit:
        pipeline.limit(read, totals, max_seconds=MAX_SECONDS, **limit)
    return pipeline


hanging = made("hanging", on_overrun="recover")
parking = made("parking", on_overrun="park")
patient = made("patient")
