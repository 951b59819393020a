"""Days of one table, replaced at the end, filled at once, or only added to: the same rows, one column of which is the day."""

from __future__ import annotations

from typing import Any

from airflow_logio import Days, ParquetSource, Pipeline, TableWriter

COLUMNS = {"day": "date", "id": "bigint", "text": "text"}


def made(**options: Any) -> Pipeline:
    days = Pipeline("days", partition=Days("day"), params={"data": str}, connections=["warehouse"], drivers_at_once=4)
    read = days.source("read", ParquetSource("{data}/{day}.parquet", records_per_event=5_000))
    days.writer("save", TableWriter("warehouse", "filled", COLUMNS, **options), read)
    return days


OWNS: dict[str, Any] = {"on_new_run": "overwrite", "by": ("day",)}
at_the_end = made(**OWNS)
at_once = made(**OWNS, switch="at once")
added = made(on_new_run="append")
