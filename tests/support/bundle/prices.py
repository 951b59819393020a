"""Prices as decimals, into a table whose author has declared doubles: a mistake that shows at the first write."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter, stateless

TYPE = "double"


@stateless
def with_tax(table: pa.Table) -> pa.Table:
    return pa.table({"item": table["item"], "price": table["price"].cast(pa.decimal128(20, 2))})


prices = Pipeline("prices", params={"transactions": str}, connections=["warehouse"])
read = prices.source("read", ParquetSource("{transactions}", records_per_event=10))
tax = prices.operator("tax", with_tax, read)
table = TableWriter("warehouse", "prices", {"item": "bigint", "price": TYPE}, on_new_run="replace")
save = prices.writer("save", table, tax)
prices.group("ingest", read, tax)
prices.group("store", save)
