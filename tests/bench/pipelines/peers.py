"""The aggregation that is measured beside Structured Streaming and Flink, in four groups and fused into one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    ParquetSource,
    Pipeline,
    SourceBatch,
    TableWriter,
    Tumbling,
    generate,
    stateless,
)


class Noted(ParquetSource):
    """Notes how many records it has read by when, for the strict clock of the bench.

    With a pace, the noted time is that at which the last record was due: if the group keeps the source waiting, that is
    latency.
    """

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        pace, began = params["pace"], time.time()
        with open(params["reads"], "a", buffering=1) as reads:
            reads.write(f"{offset} {began}\n")
            for event in super().read(params, action, offset):
                due = began + (event.next_offset - offset) / pace if pace else time.time()
                time.sleep(max(0.0, due - time.time()))
                reads.write(f"{event.next_offset} {due}\n")
                yield event


@stateless
def cleansed(records: pa.Table) -> pa.Table:
    return records.filter(pc.greater(records.column("cents"), 0))


@stateless
def taxed(records: pa.Table) -> pa.Table:
    cents = records.column("cents")
    return records.set_column(2, "cents", pc.add(cents, pc.divide(pc.multiply(cents, 19), 100)))


@generate
def summed(records: pa.Table, window_start: datetime) -> pa.Table:
    groups = records.group_by("key", use_threads=False).aggregate([("cents", "count"), ("cents", "sum")])
    minute = pa.repeat(pa.scalar(window_start, pa.timestamp("us")), groups.num_rows)
    return pa.table(
        {
            "minute": minute,
            "key": groups.column("key"),
            "records": groups.column("cents_count"),
            "cents": groups.column("cents_sum"),
        }
    )


def _pipeline(size: int, *, fused: bool) -> Pipeline:
    made = Pipeline(
        "peers", params={"records": str, "reads": str, "pace": float}, connections=["warehouse"], fuse=fused
    )
    read = made.source("read", Noted("{records}", ordered_by="at", records_per_event=size))
    clean = made.operator("clean", cleansed, read)
    tax = made.operator("tax", taxed, clean)
    sums = made.operator("sums", summed, tax, window=Tumbling("1m", on="at"))
    columns = {"minute": "timestamp", "key": "bigint", "records": "bigint", "cents": "bigint"}
    made.writer("save", TableWriter("warehouse", "peer_sums", columns=columns, primary_key=("minute", "key")), sums)
    if not fused:
        made.group("convert", clean, tax)
    return made


four_10000, four_1000 = (_pipeline(size, fused=False) for size in (10_000, 1_000))
fused_10000, fused_1000 = (_pipeline(size, fused=True) for size in (10_000, 1_000))
