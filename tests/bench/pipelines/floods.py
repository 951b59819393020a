"""Events of one record each, as fast as they come, through two groups and through five, none with Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import Pipeline, SourceBatch, SourceOperator, TableWriter, stateless

BODIES = 1_000
"""So many different bodies: none is found in a cache because of the one before it."""


class Flood(SourceOperator):
    """`events` events of a record with a body of `bytes` bytes, which no compression makes smaller."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": params["events"], "bytes": params["bytes"]}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        noise = os.urandom(action["bytes"] + BODIES)
        for number in range(offset, action["events"]):
            first = number % BODIES
            body = noise[first : first + action["bytes"]]
            table = pa.table({"number": [number], "read_at": [time.time()], "body": pa.array([body], pa.binary())})
            yield SourceBatch(table, number + 1)


@stateless
def passed(records: pa.Table) -> pa.Table:
    return records


@stateless
def without_body(records: pa.Table) -> pa.Table:
    return records.select(["number", "read_at"])


def _flood(name: str, between: int) -> Pipeline:
    """A source, so many operators in groups of their own, and a last group that writes what is left without the body."""
    made = Pipeline(name, params={"events": int, "bytes": int}, connections=["warehouse"], fuse=False)
    port = made.source("read", Flood())
    for number in range(between):
        port = made.operator(f"pass{number + 1}", passed, port)
    last = made.operator("strip", without_body, port)
    columns = {"number": "bigint", "read_at": "double"}
    save = made.writer("save", TableWriter("warehouse", "flood", columns=columns, primary_key=("number",)), last)
    made.group("writing", last, save)
    return made


two = _flood("two", 0)
five = _flood("five", 3)
