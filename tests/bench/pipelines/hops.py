"""A chain of five groups without Spark, in which each event is one record that says when it was read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import Pipeline, SourceBatch, SourceOperator, TableWriter, stateless

HOPS = 4
"""From group to group; the write to the warehouse comes after the last one."""


class Paced(SourceOperator):
    """So many events, at so many per second by the clock, however slow what follows is."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": params["events"], "per_second": params["per_second"]}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        began = time.monotonic() - offset / action["per_second"]
        for number in range(offset, action["events"]):
            time.sleep(max(0.0, began + number / action["per_second"] - time.monotonic()))
            yield SourceBatch(pa.table({"number": [number], "read_at": [time.time()]}), number + 1)


@stateless
def passed(records: pa.Table) -> pa.Table:
    return records


hops = Pipeline("hops", params={"events": int, "per_second": float}, connections=["warehouse"], fuse=False)
port = hops.source("read", Paced())
for name in ("first", "second", "third"):
    port = hops.operator(name, passed, port)
hops.writer(
    "save",
    TableWriter("warehouse", "hop_results", columns={"number": "bigint", "read_at": "double"}, primary_key=("number",)),
    port,
)
