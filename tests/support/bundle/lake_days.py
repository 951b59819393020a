"""Orders of a day as a lake that its run owns: late ones are left out, the others kept in a folder of the day, by store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_logio import Count, DatasetWriter, Days, FolderSource, OwnPartition, Pipeline, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

days = Pipeline("lake_days", params={"orders": str}, partition=Days("day"), connections=["lake"])


@stateless(mode="dataframe")
def dated(orders: DataFrame, params: Any) -> DataFrame:
    """With the column by which the folder is divided."""
    from pyspark.sql import functions as F

    return orders.withColumn("day", F.lit(params["day"]))


web = days.source("web", FolderSource("{orders}"))
own = days.operator("own", OwnPartition("day", on="ts", mode="dataframe"), web)
named = days.operator("dated", dated, own.port("own"))
kept = DatasetWriter("lake", "kept", partition_by=("day", "store"), on_new_run="overwrite", by=("day",))
days.writer("keep", kept, named)
days.sink("late", Count(), own.port("other"))
days.group("all", "web", "own", "dated", "keep", "late")
