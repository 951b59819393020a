"""Orders in a Delta table: what its versions bring into another Delta table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_logio import DeltaSource, DeltaWriter, Pipeline, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@stateless(mode="dataframe")
def costing(orders: DataFrame) -> DataFrame:
    """What each order costs; of those that have a quantity."""
    return orders.where("quantity > 0").selectExpr("id", "store", "quantity * price AS cents")


versions = Pipeline("delta_versions", params={"orders": str}, connections=["lake"])
read = versions.source("raw", DeltaSource("{orders}", versions_per_event=2))
columns = {"id": "bigint", "store": "int", "cents": "bigint"}
cost = versions.operator("costing", costing, read)
versions.writer("orders", DeltaWriter("lake", "costs", columns, on_new_run="append"), cost)
versions.group("front", "raw", "costing")
versions.group("back", "orders")
