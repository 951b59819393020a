"""Plain Python alone, without an end: `count` gives the numbers from 0 on, `save` writes them down."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import Pipeline, SourceBatch, TableWriter
from airflow_logio.dataflow.operators import SourceOperator

PACE_SECONDS = 0.05


class Count(SourceOperator):
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"from": 0}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        while True:
            time.sleep(PACE_SECONDS)
            offset += 1
            yield SourceBatch(pa.table({"number": pa.array([offset - 1], pa.int64())}), offset)


steady = Pipeline("steady", connections=["warehouse"])
count = steady.source("count", Count())
save = steady.writer("save", TableWriter("warehouse", "numbers", {"number": "bigint"}, on_new_run="replace"), count)
steady.group("count", count)
steady.group("save", save)
