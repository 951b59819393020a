"""Orders that executors publish into an object store: one group, of mode ``dataframe``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_logio import DatasetWriter, FolderSource, Pipeline, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

bucket_orders = Pipeline("bucket_orders", params={"orders": str}, connections=["lake"])


@stateless(mode="dataframe")
def priced(orders: DataFrame) -> DataFrame:
    """What each good order costs, and when it was drawn: another value each time it is evaluated."""
    good = orders.where("quantity > 0")
    return good.selectExpr("id", "store", "quantity * price AS cents", "uuid() AS drawn")


raw = bucket_orders.source("raw", FolderSource("{orders}", files_per_event=2))
bucket_orders.writer(
    "save", DatasetWriter("lake", "orders", partition_by=("store",)), bucket_orders.operator("priced", priced, raw)
)
bucket_orders.group("all", "raw", "priced", "save")
