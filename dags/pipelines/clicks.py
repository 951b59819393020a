"""The clicks of a day: a run for each, which owns its rows, wherever they are written.

web ── own ──┬── dated ── keep                  the day's clicks              → lake: clicks, a folder for each day
             ├── top ── save                    its ten most clicked pages    → table top
             └── (other) ── late ── keep_late   late ones, of days before     → lake: late_clicks, by the day they came
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_logio import (
    AllOfRun,
    DatasetWriter,
    Days,
    FolderSource,
    OwnPartition,
    Pipeline,
    TableWriter,
    generate,
    stateless,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# [START functions]
@stateless(mode="dataframe")
def of_day(clicks: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    """With the day of the run as a column: the folder is divided by it."""
    from pyspark.sql import functions as F

    return clicks.withColumn("day", F.lit(params["day"]).cast("date"))


@generate(mode="dataframe", columns=("page",))
def top_ten(clicks: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    """Of the whole day, as a script would compute it; of pages with as many clicks, the first one by name."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    counted = clicks.groupBy("page").agg(F.count("*").alias("clicks")).orderBy(F.desc("clicks"), "page").limit(10)
    rank = F.row_number().over(Window.orderBy(F.desc("clicks"), "page"))
    return counted.select(F.lit(params["day"]).cast("date").alias("day"), rank.alias("rank"), "page", "clicks")


# [END functions]

# [START pipeline]
clicks = Pipeline(
    "clicks",
    partition=Days("day", zone="Europe/Berlin"),
    params={"data": str},
    connections=["lake", "warehouse"],
    drivers_at_once=2,
)
web = clicks.source("web", FolderSource("{data}/web/dt={day}", files_per_event=2))
own = clicks.operator("own", OwnPartition("day", on="ts", mode="dataframe"), web)
dated = clicks.operator("dated", of_day, own.port("own"))
keep = DatasetWriter("lake", "clicks", partition_by=("day",), on_new_run="overwrite", by=("day",))
clicks.writer("keep", keep, dated)
top = clicks.operator("top", top_ten, own.port("own"), window=AllOfRun())
save = TableWriter(
    "warehouse",
    "top",
    columns={"day": "date", "rank": "int", "page": "text", "clicks": "bigint"},
    primary_key=("day", "rank"),
    on_new_run="overwrite",
    by=("day",),
)
clicks.writer("save", save, top)
late = clicks.operator("late", of_day, own.port("other"))
keep_late = DatasetWriter(
    "lake", "late_clicks", partition_by=("day",), on_new_run="overwrite", by=("day",), empty="replace"
)
clicks.writer("keep_late", keep_late, late)
clicks.group("all", web, own, dated, "keep", top, "save", late, "keep_late")
# [END pipeline]


def _data() -> str:
    from demo.clicks import clicks_folder

    return str(clicks_folder(Path(".logio").absolute() / "clicks", lambda text: sys.stderr.write(f"{text}\n")))


# So that `logio run dags/pipelines/clicks.py:clicks --partition 2017-03-25..2017-03-27` needs no other option.
clicks.local_defaults(params={"data": _data}, connections={"lake": ".logio/lake", "warehouse": ".logio/warehouse.db"})
