"""Chains that are measured on a cluster: many small events, some large ones, and events whose one task mostly waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_logio import DatasetWriter, Pipeline, RangeSource, SparkSource, stateless
from airflow_logio.dataflow.operators import SourceOperator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 40
"""Of an event. In a file they are more than half of what an event may have, so that each file is one."""
LARGE_ROWS = 1_600_000
"""Of a large event. A half of them stays, in files of about 32 MB together."""
LIMIT = "4 KB"
PARTS = 20
"""Files that the one task of an event writes, where it waits."""
WAIT_SECONDS = 4.0


class Numbers(RangeSource):
    """Events of so many numbers, one after the other: as many as a run asks for. `tasks` read one."""

    def __init__(self, rows: int = ROWS, tasks: int = 1) -> None:
        self.rows = rows
        self.tasks = tasks

    def first(self, params: Mapping[str, Any]) -> Any:
        return 0

    def last(self, params: Mapping[str, Any]) -> Any:
        return params["events"] * self.rows

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any) -> Any:
        return min(start + self.rows, limit)

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> DataFrame:
        numbers = spark.range(start, end, 1, self.tasks)
        hashed: DataFrame = numbers.selectExpr("id", "sha2(CAST(id AS STRING), 256) AS token")
        return hashed


def numbered(spark: SparkSession, params: Mapping[str, Any]) -> DataFrame:
    """A task for each event."""
    return spark.range(0, params["events"] * ROWS, 1, params["events"]).selectExpr("id", "uuid() AS token")


@stateless(mode="dataframe")
def even(rows: DataFrame) -> DataFrame:
    return rows.where("id % 2 = 0")


def waits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    time.sleep(WAIT_SECONDS)
    yield from batches


@stateless(mode="dataframe")
def waiting(rows: DataFrame) -> DataFrame:
    """One task, whatever the number of cores."""
    one = rows.coalesce(1).mapInArrow(waits, "id long, token string")
    return one.selectExpr("*", f"id % {PARTS} AS part")


def _pipeline(
    name: str, source: SourceOperator, function: Any, writer: DatasetWriter, jobs_at_once: int | None = None
) -> Pipeline:
    made = Pipeline(name, params={"events": int}, connections=["lake"])
    raw = made.source("raw", source)
    made.writer("save", writer, made.operator("work", function, raw))
    made.group("all", "raw", "work", "save", jobs_at_once=jobs_at_once)
    return made


small = _pipeline("bench_small", Numbers(), even, DatasetWriter("lake", "numbers"))
large = _pipeline("bench_large", Numbers(LARGE_ROWS, 2), even, DatasetWriter("lake", "numbers"))
stored = SparkSource(numbered, bytes_per_event=LIMIT)
in_parts = DatasetWriter("lake", "numbers", partition_by=("part",))
by_two = _pipeline("bench_by_two", stored, waiting, in_parts, 2)
by_eight = _pipeline("bench_by_eight", stored, waiting, in_parts, 8)
by_default = _pipeline("bench_by_default", stored, waiting, in_parts)
