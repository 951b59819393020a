"""Orders with tokens that are drawn in tasks before a shuffle, which two stages may read; tasks stand still at gates."""

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
PATIENCE_SECONDS = 240
LOOK_SECONDS = 0.02
BETWEEN, RESULT = "between", "result"
"""Where tasks stand: of a job between two others, and of the last one."""
CONF = {
    "spark.sql.shuffle.partitions": str(PARTITIONS),
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "-1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
}

drawn = Pipeline("drawn_orders", params={"orders": str, "gates": str, "reused": bool}, connections=["lake"])


def tokens(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Another token for each record, each time a task runs; Spark takes it for determined by the records."""
    for batch in batches:
        made = pa.array([uuid.uuid4().hex for _ in range(batch.num_rows)])
        yield pa.RecordBatch.from_arrays([*batch.columns, made], [*batch.schema.names, "token"])


def held(gates: str, where: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stands still before its first record until there is a gate ``<where>-<file>``, or that with the partition; says so in a
    file."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    for number, batch in enumerate(batches):
        if number == 0 and batch.num_rows:
            name = f"{where}-{batch.column('file')[0].as_py()}"
            Path(gates, f"stands-{name}-{context.partitionId()}-{os.getpid()}").touch()
            ends_at = time.monotonic() + PATIENCE_SECONDS
            while not any(Path(gates, one).exists() for one in (name, f"{name}-{context.partitionId()}")):
                if time.monotonic() > ends_at:
                    raise TimeoutError(f"gate {name} has not opened")
                time.sleep(LOOK_SECONDS)
        yield batch


@stateless(mode="dataframe")
def marked(orders: DataFrame, params: Mapping[str, Any]) -> DataFrame:
    """Each order with its token, and a sum over what its store has: of the same draw.

    If `reused`, the sum is made by a stage of its own, which reads the same shuffle before.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    columns, gates = orders.select("id", "file", "store", "cents"), params["gates"]
    made = columns.repartition(PARTITIONS).mapInArrow(tokens, "id long, file long, store int, cents long, token string")
    shuffled = made.repartition(PARTITIONS, "token")
    # A broadcast is awaited before a stage that needs it begins.
    slow = columns.select("file", "store").mapInArrow(partial(held, gates, BETWEEN), "file long, store int")
    late = F.broadcast(slow.groupBy("file", "store").count().select("file", "store"))
    # Of all columns, and joined by the same ones: a shuffle of others would be another one.
    total = F.sum(F.crc32(F.concat_ws(" ", "id", "file", "store", "cents", "token")))
    if params["reused"]:
        sums = shuffled.groupBy("file", "store").agg(total.alias("total"))
        found = shuffled.join(late, ["file", "store"]).join(sums, ["file", "store"])
    else:
        found = shuffled.join(late, ["file", "store"]).withColumn("total", total.over(Window.partitionBy("store")))
    schema = "id long, file long, store int, cents long, token string, total long"
    return found.select("id", "file", "store", "cents", "token", "total").mapInArrow(
        partial(held, gates, RESULT), schema
    )


raw = drawn.source("raw", FolderSource("{orders}", files_per_event=1))
marking = drawn.operator("marked", marked, raw)
drawn.writer("orders", DatasetWriter("lake", "orders"), marking)
drawn.group("all", "raw", "marked", "orders", spark=CONF)
