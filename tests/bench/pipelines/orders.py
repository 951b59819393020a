"""The chain of DataFrames that is measured: ranges of a folder, two functions in one plan, a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_logio import DatasetWriter, FolderSource, Pipeline, stateless

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


@stateless(mode="dataframe")
def joined(orders: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    return with_department(orders, params["products"])


chain = Pipeline("bench_orders", params={"orders": str, "products": str}, connections=["lake"])
raw = chain.source("raw", FolderSource("{orders}", files_per_event=FILES_PER_EVENT))
clean = chain.operator("clean", stateless(mode="dataframe")(cleanse), raw)
named = chain.operator("named", joined, clean)
save = chain.writer("save", DatasetWriter("lake", "orders"), named)
chain.group("chain", raw, clean, named, save)
