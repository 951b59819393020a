"""Clicks of a day as two tables that the run owns by the day; and beside them, what nothing waits for.

`days` replaces the day at the end; `filled` is the same pipeline with code that fills it at once, and `later` with one that
adds column `page` to a table without it.

Some clicks cannot be used while the file of parameter `fault` is there: they are set aside.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from airflow_logio import AllOfRun, Count, Days, ParquetSource, Pipeline, TableWriter, generate, stateless


@stateless(on_error="quarantine")
def usable(clicks: pa.Table, params: Any) -> pa.Table:
    """All of an event or nothing of it; of each third one, nothing today."""
    if clicks["id"][0].as_py() % 300 == 0 and os.path.exists(params["fault"]):
        raise ValueError("this event cannot be used today")
    return clicks


@generate
def counted(clicks: pa.Table, params: Any) -> pa.Table:
    """How often each page was asked for."""
    pages = clicks.group_by("page").aggregate([("id", "count"), ("id", "sum")]).sort_by("page")
    day = pa.array([params["day"]] * len(pages)).cast(pa.date32())
    return pa.table([day, pages["page"], pages["id_count"], pages["id_sum"]], names=["day", "page", "clicks", "sum"])


def made(page: str = "text", **options: Any) -> Pipeline:
    """With tables that replace the day as the options say; the type of a column of one of them."""
    days = Pipeline("owned_day", partition=Days("day"), params={"data": str, "fault": str}, connections=["warehouse"])
    web = days.source("web", ParquetSource("{data}/{day}.parquet", records_per_event=100))
    clean = days.operator("clean", usable, web)
    top = days.operator("top", counted, web, window=AllOfRun())
    owns: dict[str, Any] = {"on_new_run": "overwrite", "by": ("day",), **options}
    clicks = {"day": "date", "id": "bigint", "page": page}
    days.writer("keep", TableWriter("warehouse", "clicks", clicks, ("day", "id"), **owns), clean)
    pages = {"day": "date", "page": "text", "clicks": "bigint", "sum": "bigint"}
    days.writer("save", TableWriter("warehouse", "pages", pages, ("day", "page"), **owns), top)
    visits = days.source("visits", ParquetSource("{data}/{day}.parquet", records_per_event=100))
    days.sink("seen", Count(), visits)
    days.group("reading", web, clean)
    days.group("replacing", top, "keep", "save")
    days.group("beside", visits, "seen")
    return days


days = made()
filled = made(switch="at once")
later = made(page="text null")
