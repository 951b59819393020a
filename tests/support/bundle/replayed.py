"""Three replay operators in a row, each in a group of its own; the last one feeds a writer and a window that lags."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, TableWriter, generate, stateless

RECORDS_PER_EVENT = 20
EVENTS_PER_SET = 3
EVENTS_PER_TOTAL = 5


@stateless
def doubled(sales: pa.Table) -> pa.Table:
    return sales.set_column(1, "amount", pc.multiply(sales["amount"], 2))


@generate
def items(sales: pa.Table, inset_id: str) -> Iterator[pa.Table]:
    """An event per item."""
    grouped = sales.group_by("item", use_threads=False).aggregate([("amount", "sum")]).sort_by("item")
    found = pa.table(
        {"batch": pa.repeat(int(inset_id), grouped.num_rows), **dict(zip(("item", "amount"), grouped, strict=True))}
    )
    yield from (found.slice(row, 1) for row in range(found.num_rows))


@stateless
def more(sums: pa.Table) -> pa.Table:
    return sums.set_column(2, "amount", pc.add(sums["amount"], 1))


@generate
def totals(sums: pa.Table, inset_id: str) -> pa.Table:
    return pa.table({"number": [int(inset_id)], "amount": [pc.sum(sums["amount"]).as_py()]})


pipeline = Pipeline("replayed", params={"transactions": str}, connections=["warehouse"])
source = pipeline.source("source", ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT))
first = pipeline.operator("doubled", doubled, source, replay=True)
second = pipeline.operator("items", items, first, window=EveryEvents(EVENTS_PER_SET), replay=True)
third = pipeline.operator("more", more, second, replay=True)
saved = {"batch": "bigint", "item": "bigint", "amount": "bigint"}
save = pipeline.writer("save", TableWriter("warehouse", "replayed_items", saved, on_new_run="replace"), third)
pipeline.sink("done_items", Count(), save)
summed = pipeline.operator("totals", totals, third, window=EveryEvents(EVENTS_PER_TOTAL))
columns = {"number": "bigint", "amount": "bigint"}
put = pipeline.writer("put", TableWriter("warehouse", "replayed_totals", columns, on_new_run="replace"), summed)
pipeline.sink("done_totals", Count(), put)
pipeline.group("ends", save, "done_items")
pipeline.group("late", summed, put, "done_totals")
pipeline.lineage("source.out", "more.out")
