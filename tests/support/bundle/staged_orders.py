"""Orders with pictures, more bytes than a driver takes: a chain in one group, a table in another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_logio import FolderSource, Pipeline, TableWriter, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

staged = Pipeline("staged_orders", params={"orders": str}, connections=["warehouse"])


@stateless(mode="dataframe")
def signed(orders: DataFrame) -> DataFrame:
    """With the hash of each picture, and a value that is another one each time it is computed."""
    return orders.selectExpr("id", "picture", "md5(picture) AS signature", "uuid() AS drawn")


columns = {"id": "bigint", "picture": "binary", "signature": "text", "drawn": "uuid"}
raw = staged.source("raw", FolderSource("{orders}"))
signing = staged.operator("signed", signed, raw)
save = TableWriter("warehouse", "orders", columns, primary_key=["id"], lineage_column="came_with")
staged.writer("save", save, signing)
staged.group("front", "raw", "signed")
staged.group("back", "save")
