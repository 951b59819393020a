"""The sales pipeline with a source whose pace is set from outside, while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, Tumbling
from airflow_logio.dataflow.operators import SourceBatch, WriterOperator
from pipelines.sales import cents, hourly_sales, product_totals, sales


class PacedParquet(ParquetSource):
    """So many events per second as the file of run parameter ``pace`` says; without such a file as fast as they go."""

    def placeholders(self) -> frozenset[str]:
        return super().placeholders() | {"pace"}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        due = time.monotonic()
        for batch in super().read(params, action, offset):
            if pace := _pace(params["pace"]):
                due = max(due + 1 / pace, time.monotonic() - 1.0)
                time.sleep(max(0.0, due - time.monotonic()))
            yield batch


def _pace(path: str) -> float | None:
    try:
        return float(Path(path).read_text())
    except FileNotFoundError:
        return None


def _writer(name: str) -> WriterOperator:
    found = sales.operators[name]
    assert isinstance(found, WriterOperator), f"{name} is no writer"
    return found


def _sales(standby: int) -> Pipeline:
    """With a standby for each group that is killed, or with none."""
    made = Pipeline("sales", params={"transactions": str, "pace": str}, connections=["warehouse"])
    ingest = made.source(
        "ingest",
        PacedParquet(
            "{transactions}",
            ordered_by="transaction_timestamp",
            records_per_event=1_000,
            columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
            transform=cents,
        ),
    )
    totals = made.operator("totals", product_totals, ingest, window=EveryEvents(100))
    save_totals = made.writer("save_totals", _writer("save_totals"), totals)
    hourly = made.operator("hourly", hourly_sales, ingest, window=Tumbling("1h", on="transaction_timestamp"))
    publish = made.writer("publish", _writer("publish"), hourly)
    done = made.sink("done", Count(), publish)

    made.group("ingest", ingest)
    made.group("totals", totals, save_totals, standby=standby)
    made.group("hourly", hourly, standby=standby)
    made.group("publish", publish, done)
    made.lineage("ingest.out", "hourly.out")
    return made


paced, paced_with_standbys = _sales(0), _sales(1)
