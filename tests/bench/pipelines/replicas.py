"""What is measured of replicas: a stateless operator that waits 100 ms for each event, and one that computes as long."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow import Count, Pipeline, RoundRobin, SourceBatch, SourceOperator, stateless
from airflow_logio.dataflow.functions.decorators import StatelessFunction

SLEEP_SECONDS = 0.1
MOST = 8


class Numbers(SourceOperator):
    """The given number of events, one record each."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"rows": params["events"]}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        for number in range(offset, action["rows"]):
            yield SourceBatch(pa.table({"number": [number]}), number + 1)


@stateless
def waiting(records: pa.Table) -> pa.Table:
    time.sleep(SLEEP_SECONDS)
    return records


@stateless
def computing(records: pa.Table) -> pa.Table:
    """Holds the interpreter: a second thread would be of no use."""
    digest = b""
    for _ in range(120_000):
        digest = hashlib.md5(digest, usedforsecurity=False).digest()
    return records


def _pipeline(name: str, function: StatelessFunction, replicas: int) -> Pipeline:
    pipeline = Pipeline(name, params={"events": int})
    numbers = pipeline.source("numbers", Numbers())
    work = pipeline.operator("work", function, numbers)
    pipeline.sink("done", Count(), work)
    pipeline.replicate("work", partition=RoundRobin(), min=0, max=MOST, initial=replicas)
    return pipeline


waiting_1, waiting_2, waiting_4, waiting_8 = (_pipeline(f"waiting_{n}", waiting, n) for n in (1, 2, 4, 8))
computing_1, computing_2 = (_pipeline(f"computing_{n}", computing, n) for n in (1, 2))
