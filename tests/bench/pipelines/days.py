"""Days of one table, replaced at the end, filled at once, or only added to: the same rows, one column of which is the day."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa

from airflow_logio import Days, ParquetSource, Pipeline, TableWriter
from airflow_logio.dataflow import stateless

REST_SECONDS = 10.0
COLUMNS = {"day": "date", "id": "bigint", "text": "text"}


@stateless
def rested(records: pa.Table) -> pa.Table:
    """What keeps a driver without a core of this machine: a query of a warehouse, a job on a cluster."""
    time.sleep(REST_SECONDS)
    return records


def made(*, rests: bool = False, **options: Any) -> Pipeline:
    days = Pipeline("days", partition=Days("day"), params={"data": str}, connections=["warehouse"], drivers_at_once=4)
    read = days.source("read", ParquetSource("{data}/{day}.parquet", records_per_event=5_000))
    written = days.operator("rest", rested, read) if rests else read
    days.writer("save", TableWriter("warehouse", "filled", COLUMNS, **options), written)
    return days


OWNS: dict[str, Any] = {"on_new_run": "overwrite", "by": ("day",)}
at_the_end = made(**OWNS)
at_once = made(**OWNS, switch="at once")
resting = made(rests=True, **OWNS)
added = made(on_new_run="append")
