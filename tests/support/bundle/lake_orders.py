"""Orders as a lake: ranges of a folder, chains of DataFrames in two groups, windows in a third, folders and a table."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import DatasetWriter, FolderSource, Pipeline, TableWriter, Tumbling, generate, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

lake = Pipeline("lake_orders", params={"orders": str}, connections=["lake", "warehouse"])


@stateless(mode="dataframe", outputs=("good", "bad"))
def checked(orders: DataFrame) -> dict[str, DataFrame]:
    """Orders with a quantity, and the others."""
    return {"good": orders.where("quantity > 0"), "bad": orders.where("quantity <= 0 OR quantity IS NULL")}


@stateless(mode="dataframe")
def priced(orders: DataFrame) -> DataFrame:
    """What each order costs, and when it was drawn: another value each time it is evaluated."""
    return orders.selectExpr("id", "store", "quantity * price AS cents", "uuid() AS drawn")


@stateless(mode="dataframe")
def per_store(orders: DataFrame) -> DataFrame:
    """A shuffle within one event."""
    return orders.groupBy("store").sum("cents").withColumnRenamed("sum(cents)", "cents")


@generate(mode="dataframe")
def per_day(orders: DataFrame, window_start: dt.datetime) -> DataFrame:
    """A shuffle within an Input Set, and a value that is another one each time."""
    from pyspark.sql import functions as F

    priced = orders.withColumn("cents", orders["quantity"] * orders["price"])
    sums = priced.groupBy("store").agg({"cents": "sum", "*": "count"}).toDF("store", "cents", "orders")
    return sums.select(F.lit(window_start).alias("day"), "*", F.expr("uuid() AS drawn"))


@stateless
def rejected(orders: pa.Table) -> pa.Table:
    """Mode ``driver`` behind a chain."""
    return orders.select(["id"]).append_column("reason", pc.cast(orders.column("store"), pa.string()))


raw = lake.source("raw", FolderSource("{orders}", files_per_event=2))
checking = lake.operator("checked", checked, raw)
pricing = lake.operator("priced", priced, "checked.good")
summing = lake.operator("per_store", per_store, pricing)
daily = lake.operator("daily", per_day, "checked.good", window=Tumbling("1d", on="ts"))
refused = lake.operator("rejected", rejected, "checked.bad")
lake.writer("orders", DatasetWriter("lake", "orders", partition_by=("store",)), pricing)
lake.writer("stores", DatasetWriter("lake", "stores"), summing)
lake.writer("days", DatasetWriter("lake", "days"), daily)
columns: dict[str, Any] = {"id": "bigint", "reason": "text"}
lake.writer("refused", TableWriter("warehouse", "refused", columns=columns), refused)
lake.group("front", "raw", "checked", "rejected")
lake.group("back", "priced", "per_store", "orders", "stores")
lake.group("windows", "daily", "days")
lake.lineage("raw", "priced")
