"""A window that stays open with many events in it until one more comes, which the source holds back until a file is there."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import Count, EveryEvents, Pipeline, SourceBatch, SourceOperator, generate

SIZES = (10, 1_000, 10_000, 100_000)
LOOK_SECONDS = 0.01


class Held(SourceOperator):
    """So many events of one record, and the last one when the file is there."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": params["events"], "last_with": params["last_with"]}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        for number in range(offset, action["events"] + 1):
            while number == action["events"] and not os.path.exists(action["last_with"]):
                time.sleep(LOOK_SECONDS)
            yield SourceBatch(pa.table({"number": [number]}), number + 1)


@generate
def counted(records: pa.Table) -> pa.Table:
    return pa.table({"records": [records.num_rows]})


def _pipeline(size: int) -> Pipeline:
    made = Pipeline(f"undone_{size}", params={"events": int, "last_with": str}, fuse=False)
    held = made.source("held", Held())
    made.sink("done", Count(), made.operator("counted", counted, held, window=EveryEvents(size + 1)))
    return made


undone_10, undone_1000, undone_10000, undone_100000 = map(_pipeline, SIZES)
