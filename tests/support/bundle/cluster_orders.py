"""Orders with values that are drawn in tasks, before a shuffle; tasks stand still where a test wants it."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_logio import DatasetWriter, FolderSource, Pipeline, stateless

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS = 4
BATCHES = 4
"""So many leave a task before it stands still; what buffers hold back is less."""
PATIENCE_SECONDS = 240
LOOK_SECONDS = 0.02
CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",  # a task gives on some records before it has all
    "spark.sql.shuffle.partitions": "2",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
}

cluster = Pipeline("cluster_orders", params={"orders": str, "gates": str}, connections=["lake"])


def tokens(gates: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Another token for each record, each time a task runs; Spark takes it for determined by the records.

    Says in a file who has drawn.
    """
    for batch in batches:
        Path(gates, f"drew-{batch.column('file')[0].as_py()}-{os.getpid()}").touch()
        drawn = pa.array([uuid.uuid4().hex for _ in range(batch.num_rows)])
        yield pa.RecordBatch.from_arrays([*batch.columns, drawn], [*batch.schema.names, "token"])


def held(gates: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stands still in the middle until a gate is open: ``<file>``, ``<file>-<partition>``, that with the attempt, or
    ``by-<incarnation>-<file>``.

    Says in a file of its own that it stands, with the incarnation of the driver that wants the task.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition, attempt = context.partitionId(), context.attemptNumber()
    incarnation = (context.getLocalProperty("spark.jobGroup.id") or "? ? ? ? ?").split()[-2]
    for number, batch in enumerate(batches):
        yield batch
        if number != BATCHES:
            continue
        file = batch.column("file")[0].as_py()
        Path(gates, f"stands-{incarnation}-{file}-{partition}-{attempt}-{os.getpid()}").touch()
        of_task = f"{file}-{partition}"
        names = (f"{file}", of_task, f"{of_task}-{attempt}", f"by-{incarnation}-{file}")
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while not any(Path(gates, name).exists() for name in names):
            if time.monotonic() > ends_at:
                raise TimeoutError(f"none of the gates {', '.join(names)} has opened")
            time.sleep(LOOK_SECONDS)


@stateless(mode="dataframe")
def drawn(orders: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    """Where a record goes in the shuffle depends on what was drawn for it: another draw moves it to another task."""
    columns = orders.select("id", "file", "store", "cents")
    schema = "id long, file long, store int, cents long, token string"
    values = columns.mapInArrow(partial(tokens, params["gates"]), schema).selectExpr(
        "*", "CAST(rand() * 1000000 AS BIGINT) AS chance"
    )
    shuffled = values.repartition(PARTITIONS, "token", "chance")
    return shuffled.mapInArrow(partial(held, params["gates"]), f"{schema}, chance long")


@stateless(mode="dataframe")
def per_store(orders: DataFrame) -> DataFrame:
    """Sums of what was drawn, too."""
    sums = orders.groupBy("file", "store").agg({"cents": "sum", "chance": "sum", "id": "count"})
    return sums.selectExpr("file", "store", "`sum(cents)` AS cents", "`sum(chance)` AS chance", "`count(id)` AS orders")


raw = cluster.source("raw", FolderSource("{orders}", files_per_event=1))
drawing = cluster.operator("drawn", drawn, raw)
summing = cluster.operator("per_store", per_store, drawing)
cluster.writer("orders", DatasetWriter("lake", "orders"), drawing)
cluster.writer("stores", DatasetWriter("lake", "stores"), summing)
cluster.group("all", "raw", "drawn", "per_store", "orders", "stores", spark=CONF)
