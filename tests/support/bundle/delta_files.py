"""Orders with pictures, more bytes than a driver takes: a chain, and a Delta table behind it in the same group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_logio import DeltaWriter, FolderSource, Pipeline, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

pipeline = Pipeline("delta_files", params={"orders": str}, connections=["lake"])


@stateless(mode="dataframe")
def signed(orders: DataFrame) -> DataFrame:
    """With the hash of each picture, and a value that is another one each time it is computed."""
    return orders.selectExpr("id", "id % 5 AS part", "picture", "md5(picture) AS signature", "uuid() AS drawn")


columns = {"id": "bigint", "part": "bigint", "picture": "binary", "signature": "text", "drawn": "text"}
raw = pipeline.source("raw", FolderSource("{orders}", files_per_event=2))
signing = pipeline.operator("signed", signed, raw)
save = pipeline.writer(
    "save", DeltaWriter("lake", "orders", columns, partition_by=["part"], on_new_run="append"), signing
)
pipeline.group("all", raw, signing, save)

vars(pipeline.operators["save"])["actions_at_once"] = 1  # so that each event is a job and a commit
