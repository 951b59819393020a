"""A year of grocery sales, 51 million of them, from Parquet files into a lake and a table: no record passes a driver.

raw ── clean ── named ──┬── save_sales                 every sale, a folder per day         → lake: sales
                        └── hourly ──┬── save_hours    sums per hour and department, by day → lake: department_hours
                                     └── publish       the same                             → table department_hours
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_logio import DatasetWriter, FolderSource, Pipeline, TableWriter, Tumbling, generate, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# [START operators]
@stateless(mode="dataframe")
def cleanse(sales: DataFrame) -> DataFrame:
    """Sales that took place, in integer cents, each with its day."""
    return sales.where("quantity > 0").selectExpr(
        "sale_id",
        "CAST(sold_at AS DATE) AS day",
        "sold_at",
        "city",
        "store_id",
        "household_id",
        "product_id",
        "quantity",
        "CAST(round(sales_value * 100) AS BIGINT) AS sales_cents",
    )


@stateless(mode="dataframe")
def with_department(sales: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    """A join with the table of products, which is small: Spark sends it to every task."""
    from pyspark.sql import functions as F

    products = sales.sparkSession.read.schema("product_id BIGINT, department STRING").parquet(params["products"])
    return sales.join(F.broadcast(products), "product_id", "left").fillna("UNKNOWN", "department")


@generate(mode="dataframe", columns=("sold_at", "department", "quantity", "sales_cents"), many=True)
def per_hour(sales: DataFrame) -> DataFrame:
    """The sums of many days in one plan: `inset_id` says which day a row belongs to, and is a key of each step.

    Without `many=True` a function gets one day, and needs no such key; a plan for each of many small days costs more.
    """
    from pyspark.sql import functions as F

    day, hour = F.col("sold_at").cast("date").alias("day"), F.hour("sold_at").alias("hour")
    return sales.groupBy("inset_id", day, hour, "department").agg(
        F.count("*").alias("sales"), F.sum("quantity").alias("quantity"), F.sum("sales_cents").alias("sales_cents")
    )


# [END operators]

# [START pipeline]
orders_lake = Pipeline("orders_lake", params={"sales": str, "products": str}, connections=["lake", "warehouse"])

raw = orders_lake.source("raw", FolderSource("{sales}", files_per_event=14))
clean = orders_lake.operator("clean", cleanse, raw)
named = orders_lake.operator("named", with_department, clean)
orders_lake.writer("save_sales", DatasetWriter("lake", "sales", partition_by=("day",)), named)
hourly = orders_lake.operator("hourly", per_hour, named, window=Tumbling("1d", on="sold_at"))
orders_lake.writer("save_hours", DatasetWriter("lake", "department_hours", partition_by=("day",)), hourly)
orders_lake.writer(
    "publish",
    TableWriter(
        "warehouse",
        "department_hours",
        columns={
            "day": "date",
            "hour": "int",
            "department": "text",
            "sales": "bigint",
            "quantity": "bigint",
            "sales_cents": "bigint",
        },
        primary_key=("day", "hour", "department"),
        on_new_run="replace",
    ),
    hourly,
)
orders_lake.group("sales", raw, clean, named, "save_sales")
orders_lake.group("hours", hourly, "save_hours", "publish")
# [END pipeline]


def _sales() -> str:
    from demo.data import sales_folder, wanted_records

    return str(sales_folder(Path(".logio").absolute(), wanted_records(), lambda text: sys.stderr.write(f"{text}\n")))


def _products() -> str:
    from demo.data import parquet_file

    return str(parquet_file("products"))


# So that `logio run dags/pipelines/orders_lake.py:orders_lake` needs no options.
orders_lake.local_defaults(
    params={"sales": _sales, "products": _products},
    connections={"lake": ".logio/lake", "warehouse": ".logio/warehouse.db"},
)
