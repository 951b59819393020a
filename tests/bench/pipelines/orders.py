"""The chain of DataFrames that is measured: ranges of a folder, two functions in one plan, a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from order_functions import cleanse, with_department

from airflow_logio import DatasetWriter, FolderSource, Pipeline, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES_PER_EVENT = 4


@stateless(mode="dataframe")
def joined(orders: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    return with_department(orders, params["products"])


chain = Pipeline("bench_orders", params={"orders": str, "products": str}, connections=["lake"])
raw = chain.source("raw", FolderSource("{orders}", files_per_event=FILES_PER_EVENT))
clean = chain.operator("clean", stateless(mode="dataframe")(cleanse), raw)
named = chain.operator("named", joined, clean)
save = chain.writer("save", DatasetWriter("lake", "orders"), named)
chain.group("chain", raw, clean, named, save)
