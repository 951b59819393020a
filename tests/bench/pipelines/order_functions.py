"""What is measured of DataFrames: functions as an author has them, for a pipeline and for plain scripts. Nothing of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
