"""The smallest complete pipeline: what each store earned in each hour, from a Parquet file into a SQL table."""

# [START pipeline]
import datetime as dt

import pyarrow as pa

from airflow_logio import ParquetSource, Pipeline, TableWriter, Tumbling, generate


@generate
def earned(sales: pa.Table, window_start: dt.datetime) -> pa.Table:
    """Runs once per hour of the data, with all sales of that hour."""
    stores = sales.group_by("store_id", use_threads=False).aggregate([("sales_value", "sum")])
    hours = pa.repeat(pa.scalar(window_start, pa.timestamp("us")), stores.num_rows)
    return stores.rename_columns(["store_id", "revenue"]).add_column(0, "hour", hours)


revenue = Pipeline("revenue", params={"transactions": str}, connections=["warehouse"])
read = revenue.source("read", ParquetSource("{transactions}", ordered_by="transaction_timestamp"))
hourly = revenue.operator("hourly", earned, read, window=Tumbling("1h", on="transaction_timestamp"))
table = TableWriter(
    "warehouse", "revenue", {"hour": "timestamp", "store_id": "bigint", "revenue": "double"}, on_new_run="replace"
)
save = revenue.writer("save", table, hourly)
revenue.group("input", read)
revenue.group("compute", hourly, save)
revenue.lineage("read.out", "hourly.out")
# [END pipeline]
