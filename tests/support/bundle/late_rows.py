"""Clicks of a day, and those that are of other days: a table keeps these as what the run of that day has brought."""

from __future__ import annotations

from airflow_logio import Count, Days, OwnPartition, ParquetSource, Pipeline, TableWriter

late = Pipeline(
    "late_rows", partition=Days("day", zone="Europe/Berlin"), params={"data": str}, connections=["warehouse"]
)
web = late.source("web", ParquetSource("{data}/{day}.parquet", records_per_event=100))
own = late.operator("own", OwnPartition("day", on="ts"), web)
late.sink("count", Count(), "own.own")
columns = {"id": "bigint", "ts": "timestamp", "page": "text"}
late.writer("keep", TableWriter("warehouse", "late", columns, ("id", "ts"), on_new_run="supersede"), "own.other")
late.group("reading", web, own, "count")
late.group("replacing", "keep")
