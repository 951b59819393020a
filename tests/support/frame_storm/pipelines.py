"""The pipeline of a shape, as an author would build it."""

from __future__ import annotations

import datetime as dt
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_logio import (
    DatasetWriter,
    FolderSource,
    ParquetSource,
    Pipeline,
    QuerySource,
    TableRead,
    TableSource,
    TableWriter,
    Tumbling,
    generate,
    stateless,
)
from airflow_logio.dataflow.operators import SourceOperator
from tests.support.frame_storm.places import LABEL, ORDERS, SHOPS
from tests.support.frame_storm.shape import AMOUNT, Kind, Shape, drawn

BY = ("inset_id", "window_start", "kind")
LAKE = "{place}/best"
BEST, SUMS = "Best", "user"
"""Tables of the warehouse."""
CONNECTIONS = ("lake", "shop", "warehouse")
DAY = "current_timestamp"


def pipeline_of(seed: int, alone: bool = False) -> Pipeline:
    """`alone`: in one group, whatever the shape says."""
    shape = drawn(seed)
    made = Pipeline(
        f"frames{seed}",
        params={"root": str, "place": str, "over": str},
        connections=list(CONNECTIONS),
        zone=shape.zone or None,
    )
    rows: Any = made.source("raw", source_of(shape))
    first = ["raw"]
    if shape.mode == "executors":
        rows = made.operator("tables", tables, rows)
        first.append("tables")
    window = Tumbling("1d", on="at", zone=shape.zone or None)
    best = made.operator("best", best_of(shape), rows, window=window)
    sums = made.operator("sums", sums_of(shape), rows, window=window)
    made.writer("publish", DatasetWriter("lake", LAKE), best)
    made.writer("save_best", TableWriter("warehouse", BEST, columns_of_best(shape), on_new_run="replace"), best)
    made.writer("save_sums", TableWriter("warehouse", SUMS, COLUMNS_OF_SUMS, on_new_run="replace"), sums)
    rest = ["best", "sums", "publish", "save_best", "save_sums"]
    if shape.apart and not alone:
        made.group("front", *first)
        made.group("back", *rest)
    else:
        made.group("all", *first, *rest)
    made.lineage("raw.out", "best.out")
    return made


def source_of(shape: Shape) -> SourceOperator:
    columns = {
        "id": "bigint",
        "at": "timestamptz",
        "kind": "text",
        shape.name: column_type(shape.keys.arrow),
        AMOUNT: "decimal(38,9)",
        "big": "bigint",
        "ratio": "double",
        "born": "date",
        "note": "text",
    }
    match shape.source:
        case Kind.FOLDER:
            return FolderSource("{root}/{place}", files_per_event=shape.per_event)
        case Kind.TABLE:
            return TableSource("shop", ORDERS, columns=tuple(columns), rows_per_event=shape.per_event, append_only=True)
        case Kind.PARQUET:
            return ParquetSource("{root}/{place}/*.parquet", records_per_event=20 * shape.per_event)
        case Kind.QUERY:
            return QuerySource(
                "shop", table=ORDERS, columns=columns, records_per_event=shape.per_event,
                replayable=True, order_by=("at", "id"), append_only=True,
            )  # fmt: skip


def column_type(kind: pa.DataType) -> str:
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamptz"
    return "double" if pa.types.is_floating(kind) else "text"


def columns_of_best(shape: Shape) -> dict[str, str]:
    return {
        DAY: "date",
        "kind": "text",
        "rank": "int",
        "id": "bigint",
        shape.name: column_type(shape.keys.arrow),
        AMOUNT: "decimal(38,9)",
        "big": "bigint",
        "ratio": "double",
        "born": "date",
        "note": "text",
        "at": "timestamptz",
        LABEL: "text",
    }


COLUMNS_OF_SUMS = {
    DAY: "date",
    "kind": "text",
    "rows": "bigint",
    AMOUNT: "decimal(38,9)",
    "big": "bigint",
    "note": "text",
    "found": "bigint",
}


@stateless
def tables(rows: pa.Table) -> pa.Table:
    return rows


def read_of(shape: Shape) -> TableRead:
    return TableRead("shop", SHOPS, (LABEL, shape.name), key=shape.name)


def best_of(shape: Shape) -> Any:
    """The largest of each kind: a window function that knows of no other day. The last day waits for the end of the storm."""

    last = shape.first + dt.timedelta(days=shape.days - 1)

    @generate(mode=shape.mode, reads={"shops": read_of(shape)})
    def best(rows: Any, shops: Any, window_start: dt.datetime, params: Mapping[str, Any]) -> Any:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        if window_start.date() >= last:
            until_over(params)
        rank = F.row_number().over(Window.partitionBy("kind").orderBy(F.desc(AMOUNT), "id"))
        top = rows.withColumn("rank", rank).where(F.col("rank") <= shape.top)
        day = F.lit(window_start).cast("date").alias(DAY)
        others = [F.col(f"`{name}`") for name in columns_of_best(shape) if name != DAY]
        return top.join(shops, shape.name, "left").select(day, *others)

    return best


def sums_of(shape: Shape) -> Any:
    """Many days in one plan, which its keys keep apart."""

    @generate(mode=shape.mode, reads={"shops": read_of(shape)}, many=True)
    def sums(rows: Any, shops: Any) -> Any:
        from pyspark.sql import functions as F

        found = rows.join(shops, shape.name).groupBy(*BY).agg(F.count(LABEL).alias("found"))
        whole = rows.groupBy(*BY).agg(
            F.count("*").alias("rows"),
            F.sum(AMOUNT).cast("decimal(38,9)").alias(AMOUNT),
            F.max("big").alias("big"),
            F.min("note").alias("note"),
        )
        day = F.col("window_start").cast("date").alias(DAY)
        others = [name for name in COLUMNS_OF_SUMS if name not in (DAY, "found")]
        both = whole.join(found, list(BY), "left")
        return both.select("inset_id", day, *others, F.coalesce("found", F.lit(0)).alias("found"))

    return sums


def until_over(params: Mapping[str, Any]) -> None:
    """So that a run does not end before what must happen has happened."""
    over = Path(params["over"])
    while not over.exists():
        Path(f"{over}.{os.getpid()}").touch()  # this driver has come so far
        time.sleep(0.1)
