"""Orders with pictures, more bytes than a driver takes, as the last one of each customer: executors load them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_logio import FolderSource, Pipeline, TableWriter, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

staged = Pipeline("staged_upserts", params={"orders": str}, connections=["warehouse"])


@stateless(mode="dataframe")
def signed(orders: DataFrame) -> DataFrame:
    """Each customer has orders in both files, the last ones in the second one."""
    return orders.selectExpr("id % 2000 AS customer", "id", "picture", "md5(picture) AS signature")


columns = {"customer": "bigint", "id": "bigint", "picture": "binary", "signature": "text"}
raw = staged.source("raw", FolderSource("{orders}"))
signing = staged.operator("signed", signed, raw)
staged.writer("save", TableWriter("warehouse", "orders", columns, ["customer"], mode="upsert", version="id"), signing)
staged.group("front", "raw", "signed")
staged.group("back", "save")
