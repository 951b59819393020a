"""The largest order of each store and day, as a script says it for a day: a window function that knows of no other one."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_logio import FolderSource, Pipeline, TableWriter, Tumbling, generate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAITS_AT = 11
"""Of the month: on this day the function waits for file `over`, and says by a file whose driver does."""


@generate(mode="dataframe")
def largest(orders: DataFrame, window_start: dt.datetime, params: Mapping[str, Any]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    over = Path(params["over"])
    while window_start.day == WAITS_AT and not over.exists():
        Path(f"{over}.{os.getpid()}").touch()
        time.sleep(0.1)
    rank = F.row_number().over(Window.partitionBy("store").orderBy(F.desc("cents")))
    ranked = orders.withColumn("rank", rank).where("rank = 1")
    return ranked.select(F.lit(window_start).alias("day"), "store", "cents")


best_of_days = Pipeline("best_of_days", params={"orders": str, "over": str}, connections=["warehouse"])
raw = best_of_days.source("raw", FolderSource("{orders}"))
daily = best_of_days.operator("daily", largest, raw, window=Tumbling("1d", on="ts"))
columns = {"day": "timestamp", "store": "int", "cents": "bigint"}
best_of_days.writer("save", TableWriter("warehouse", "best", columns, on_new_run="replace"), daily)
best_of_days.group("all", raw, daily, "save")
