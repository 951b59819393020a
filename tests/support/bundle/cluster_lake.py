"""Orders as a lake for drivers on clusters: a chain of DataFrames, whose tasks wait where a test wants it, and sums of days.

raw ── priced ──┬── orders                    every order, a folder per store            → lake: orders
                └── daily ──┬── days          sums per store and day                     → lake: days
                            └── publish       the same                                   → table store_days
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_logio import DatasetWriter, FolderSource, Pipeline, TableWriter, Tumbling, generate, stateless

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

lake = Pipeline("cluster_lake", params={"orders": str, "gates": str}, connections=["lake", "warehouse"])


@stateless(mode="dataframe")
def priced(orders: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    """What each good order costs, and a value that is another one each time it is drawn.

    The task that meets the order of a gate (a file `gate-ID` in the folder) waits there until there is `open-ID`.
    """
    folder = params["gates"]

    def waiting(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # goes to executors by value
        import os
        import time

        for batch in batches:
            for order in batch.column("id").to_pylist():
                if os.path.exists(f"{folder}/gate-{order}"):
                    open(f"{folder}/held-{order}-{time.time()}", "w").close()
                    while not os.path.exists(f"{folder}/open-{order}"):
                        time.sleep(0.05)
            yield batch

    good = orders.where("quantity > 0").selectExpr("id", "ts", "store", "quantity * price AS cents", "uuid() AS drawn")
    return good.mapInArrow(waiting, good.schema)


@generate(mode="dataframe")
def per_day(orders: DataFrame, window_start: dt.datetime) -> DataFrame:
    """A shuffle within an Input Set."""
    from pyspark.sql import functions as F

    sums = orders.groupBy("store").agg(F.sum("cents").alias("cents"), F.count("*").alias("orders"))
    return sums.select(F.lit(window_start.date()).alias("day"), "store", "cents", "orders")


raw = lake.source("raw", FolderSource("{orders}", files_per_event=1))
pricing = lake.operator("priced", priced, raw)
daily = lake.operator("daily", per_day, pricing, window=Tumbling("1d", on="ts"))
lake.writer("orders", DatasetWriter("lake", "orders", partition_by=("store",)), pricing)
lake.writer("days", DatasetWriter("lake", "days"), daily)
columns: dict[str, Any] = {"day": "date", "store": "int", "cents": "bigint", "orders": "bigint"}
key = ("day", "store")
lake.writer(
    "publish", TableWriter("warehouse", "store_days", columns=columns, primary_key=key, on_new_run="replace"), daily
)
lake.group("make", "raw", "priced", "orders")
lake.group("sum", "daily", "days", "publish")
