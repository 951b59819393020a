"""The pipelines of DataFrames that are measured: a chain of two functions in one plan, and sums per hour behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_logio import DatasetWriter, FolderSource, Pipeline, Tumbling, generate, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES_PER_EVENT = 4


# The functions of an author, for scripts as well.


def cleanse(orders: DataFrame) -> DataFrame:
    return orders.where("quantity > 0").selectExpr(
        "id",
        "CAST(ordered_at AS DATE) AS day",
        "ordered_at",
        "store_id",
        "product_id",
        "CAST(round(price * 100) AS BIGINT) * quantity AS cents",
        "note",
    )


def with_department(orders: DataFrame, products: str) -> DataFrame:
    """`products` is a Parquet file."""
    from pyspark.sql import functions as F

    names = orders.sparkSession.read.schema("product_id BIGINT, department STRING").parquet(products)
    return orders.join(F.broadcast(names), "product_id", "left").fillna("UNKNOWN", "department")


def per_store(orders: DataFrame, *keys: str) -> DataFrame:
    from pyspark.sql import functions as F

    sums = orders.groupBy(*keys, "store_id", "department")
    return sums.agg(F.count("*").alias("orders"), F.sum("cents").alias("cents"))


@stateless(mode="dataframe")
def joined(orders: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    return with_department(orders, params["products"])


@generate(mode="dataframe", columns=("store_id", "department", "cents"), many=True)
def summed(orders: DataFrame) -> DataFrame:
    return per_store(orders, "inset_id", "window_start").withColumnRenamed("window_start", "hour")


chain = Pipeline("bench_orders", params={"orders": str, "products": str}, connections=["lake"])
raw = chain.source("raw", FolderSource("{orders}", files_per_event=FILES_PER_EVENT))
clean = chain.operator("clean", stateless(mode="dataframe")(cleanse), raw)
named = chain.operator("named", joined, clean)
save = chain.writer("save", DatasetWriter("lake", "orders"), named)
chain.group("chain", raw, clean, named, save)


def windowed(*groups: tuple[str, ...]) -> Pipeline:
    """Sums per hour and store, in groups that have the operators of these names."""
    pipeline = Pipeline("bench_hours", params={"orders": str, "products": str}, connections=["lake"])
    read = pipeline.source("raw", FolderSource("{orders}", files_per_event=FILES_PER_EVENT))
    cleansed = pipeline.operator(
        "named", joined, pipeline.operator("clean", stateless(mode="dataframe")(cleanse), read)
    )
    hourly = pipeline.operator("hourly", summed, cleansed, window=Tumbling("1h", on="ordered_at"))
    pipeline.writer("save", DatasetWriter("lake", "hours"), hourly)
    for number, members in enumerate(groups, start=1):
        pipeline.group(f"group{number}", *members)
    return pipeline


windows = windowed(("raw", "clean", "named", "hourly", "save"))
windows_in_three = windowed(("raw", "clean", "named"), ("hourly",), ("save",))
