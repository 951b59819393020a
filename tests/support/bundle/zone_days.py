"""Orders per day of a zone whose clock is changed meanwhile, without a JVM."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio import ParquetSource, Pipeline, TableWriter, Tumbling, generate
from airflow_logio.dataflow.operators import SourceBatch

ZONE = "Europe/Berlin"
HELD_AT = 140
"""So many orders are read before file `over` is there."""


class HeldOrders(ParquetSource):
    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        for batch in super().read(params, action, offset):
            while batch.next_offset > HELD_AT and not Path(params["over"]).exists():
                yield SourceBatch(batch.table.slice(0, 0), offset)
                time.sleep(0.1)
            offset = batch.next_offset
            yield batch


@generate(mode="driver")
def per_day(orders: pa.Table, window_start: dt.datetime) -> pa.Table:
    sums = {"day": [window_start.date()], "orders": [orders.num_rows], "cents": [pc.sum(orders["cents"]).as_py()]}
    return pa.table(sums)


zone_days = Pipeline("zone_days", params={"orders": str, "over": str}, connections=["warehouse"])
raw = zone_days.source("raw", HeldOrders("{orders}", records_per_event=7))
daily = zone_days.operator("daily", per_day, raw, window=Tumbling("1d", on="at", zone=ZONE))
columns = {"day": "date", "orders": "bigint", "cents": "bigint"}
zone_days.writer("save", TableWriter("warehouse", "days", columns, on_new_run="replace"), daily)
zone_days.group("read", "raw")
zone_days.group("days", "daily", "save")
