"""A source of files without rows, and what is written of them: directly, behind a function, and to a table."""

from __future__ import annotations

import pyarrow as pa

from airflow_logio.dataflow import ParquetSource, ParquetWriter, Pipeline, TableWriter, stateless

PLAIN = pa.schema([("at", pa.timestamp("us")), ("store", pa.int64())])
"""The schema of the source's files, as events have it."""
DOUBLED = pa.schema([("store", pa.int64()), ("twice", pa.int64())])


@stateless
def doubled(table: pa.Table) -> pa.Table:
    stores = table.column("store").to_pylist()
    return pa.table({"store": stores, "twice": [2 * store for store in stores]}, schema=DOUBLED)


nothing = Pipeline("nothing", params={"transactions": str}, connections=["lake", "warehouse"])
read = nothing.source("read", ParquetSource("{transactions}", columns=("at", "store")))
twice = nothing.operator("twice", doubled, read)
plain = nothing.writer("plain", ParquetWriter("lake"), read)
declared = nothing.writer("declared", ParquetWriter("lake", schema=DOUBLED), twice)
unknown = nothing.writer("unknown", ParquetWriter("lake"), twice)
table = nothing.writer("table", TableWriter("warehouse", "stores", {"store": "bigint", "twice": "bigint"}), twice)
nothing.group("ingest", read, twice)
nothing.group("store", plain, declared, unknown, table)
