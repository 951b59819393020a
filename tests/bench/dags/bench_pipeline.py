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


paced = Pipeline("sales", params={"transactions": str, "pace": str}, connections=["warehouse"])

ingest = paced.source(
    "ingest",
    PacedParquet(
        "{transactions}",
        ordered_by="transaction_timestamp",
        records_per_event=1_000,
        columns=("store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"),
        transform=cents,
    ),
)
totals = paced.operator("totals", product_totals, ingest, window=EveryEvents(100))
save_totals = paced.writer("save_totals", _writer("save_totals"), totals)
hourly = paced.operator("hourly", hourly_sales, ingest, window=Tumbling("1h", on="transaction_timestamp"))
publish = paced.writer("publish", _writer("publish"), hourly)
done = paced.sink("done", Count(), publish)

paced.group("ingest", ingest)
paced.group("totals", totals, save_totals)
paced.group("hourly", hourly)
paced.group("publish", publish, done)
paced.lineage("ingest.out", "hourly.out")
