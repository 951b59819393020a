"""A window with two reads that are large: a table by keys, and a function that answers otherwise each time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_logio import DatasetWriter, EveryEvents, FolderSource, FunctionRead, Pipeline, TableRead, generate
from airflow_logio.driver.spark_jobs import frame_jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

frame_jobs.SMALL_BYTES = 1_000  # in drivers of this pipeline, so that a few rows are as many as millions

EVENTS, ANSWERED = 2, 1_000


def draw(url: str, keys: Any, params: Mapping[str, Any]) -> pa.Table:
    """How often it was asked, on each row; it notes that it was."""
    journal = Path(params["journal"])
    with journal.open("a") as file:
        file.write("asked\n")
    asked = len(journal.read_text().splitlines())
    return pa.table(
        {"id": pa.array(range(ANSWERED), pa.int64()), "drawn": [asked] * ANSWERED, "noise": [1.0] * ANSWERED}
    )


@generate(
    mode="dataframe",
    many=True,
    reads={"labels": TableRead("wh", "labels", ("id", "label"), key="id"), "draws": FunctionRead("wh", draw)},
)
def labelled(orders: DataFrame, labels: DataFrame, draws: DataFrame) -> DataFrame:
    return orders.join(labels, "id").join(draws, "id").selectExpr("inset_id", "id", "label", "drawn")


read_orders = Pipeline("read_orders", params={"orders": str, "journal": str}, connections=["lake", "wh"])
raw = read_orders.source("raw", FolderSource("{orders}"))
days = read_orders.operator("days", labelled, raw, window=EveryEvents(EVENTS))
read_orders.writer("save", DatasetWriter("lake", "labelled"), days)
read_orders.group("all", raw, days, "save")
read_orders.lineage("raw.out", "days.out")
