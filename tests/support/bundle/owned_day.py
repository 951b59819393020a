"""Clicks of a day as two tables that the run owns by the day; and beside them, what nothing waits for.

Some clicks cannot be used while the file of parameter `fault` is there: they are set aside.
"""

from __future__ import annotations

import os
from typing import Any

import pyarrow as pa

from airflow_logio import AllOfRun, Count, Days, ParquetSource, Pipeline, TableWriter, generate, stateless

days = Pipeline("owned_day", partition=Days("day"), params={"data": str, "fault": str}, connections=["warehouse"])


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


web = days.source("web", ParquetSource("{data}/{day}.parquet", records_per_event=100))
clean = days.operator("clean", usable, web)
top = days.operator("top", counted, web, window=AllOfRun())
clicks = {"day": "date", "id": "bigint", "page": "text"}
days.writer(
    "keep", TableWriter("warehouse", "clicks", clicks, ("day", "id"), on_new_run="overwrite", by=("day",)), clean
)
pages = {"day": "date", "page": "text", "clicks": "bigint", "sum": "bigint"}
days.writer("save", TableWriter("warehouse", "pages", pages, ("day", "page"), on_new_run="overwrite", by=("day",)), top)
visits = days.source("visits", ParquetSource("{data}/{day}.parquet", records_per_event=100))
days.sink("seen", Count(), visits)
days.group("reading", web, clean)
days.group("replacing", top, "keep", "save")
days.group("beside", visits, "seen")
