"""A DataFrame that is another one each time, and a queue that forgets what it was told to, published by another group; and a
table that grows, by itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_logio import DatasetWriter, Pipeline, RangeSource, SparkSource, TableSource, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FILES_PER_RANGE = 2


def read_orders(spark: SparkSession, params: Mapping[str, Any]) -> DataFrame:
    """All orders, by price; it notes that it was asked."""
    with Path(params["journal"]).open("a") as journal:
        journal.write("read\n")
    return spark.read.parquet(params["orders"]).selectExpr(
        "id", "price", "quantity * price AS cents", "uuid() AS drawn", "concat(uuid(), uuid(), uuid()) AS noise"
    )


class Queue(RangeSource):
    """The files of a folder, by name; those that are forgotten are deleted. Offsets are numbers of files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def placeholders(self) -> frozenset[str]:
        return frozenset({self.folder})

    def first(self, params: Mapping[str, Any]) -> int:
        return 0

    def last(self, params: Mapping[str, Any]) -> int:
        return len(list(Path(params[self.folder]).glob("*.parquet")))

    def latest(self, params: Mapping[str, Any], start: int, limit: int | None) -> int:
        return start + FILES_PER_RANGE if limit is None else min(start + FILES_PER_RANGE, limit)

    def frame(self, spark: SparkSession, params: Mapping[str, Any], start: int, end: int) -> DataFrame:
        return spark.read.parquet(*(self._file(params, number) for number in range(start, end))).select("id", "store")

    def forget(self, params: Mapping[str, Any], end: int) -> None:
        for number in range(end):
            Path(self._file(params, number)).unlink(missing_ok=True)

    def _file(self, params: Mapping[str, Any], number: int) -> str:
        return f"{params[self.folder]}/orders-{number:04d}.parquet"


@stateless(mode="dataframe")
def without_noise(orders: DataFrame) -> DataFrame:
    return orders.drop("noise")


@stateless(mode="dataframe")
def same(changes: DataFrame) -> DataFrame:
    return changes


spark_orders = Pipeline(
    "spark_orders", params={"orders": str, "queue": str, "journal": str}, connections=["lake", "shop"]
)
raw = spark_orders.source("raw", SparkSource(read_orders, ordered_by="price", bytes_per_event="80 kB"))
queue = spark_orders.source("queue", Queue("queue"))
changed = spark_orders.operator("changed", same, queue)
clean = spark_orders.operator("clean", without_noise, raw)
spark_orders.writer("orders", DatasetWriter("lake", "orders"), clean)
spark_orders.writer("changes", DatasetWriter("lake", "changes"), changed)
spark_orders.group("read", "raw")
spark_orders.group("listen", "queue", "changed")
spark_orders.group("publish", "clean", "orders", "changes")
sales = spark_orders.source("sales", TableSource("shop", "sales", rows_per_event=400, append_only=True))
spark_orders.writer("sold", DatasetWriter("lake", "sold"), sales)
spark_orders.group("follow", "sales", "sold")
