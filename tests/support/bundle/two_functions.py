"""The paper's Example OP2: one operator with two generative functions over the same events, and a third with another window.

Each writes a table of its own. `extremes` makes as many events of an Input Set as it has items (dynamic batching).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from airflow_logio.dataflow import Count, EveryEvents, ParquetSource, Pipeline, Sums, TableWriter, generate

RECORDS_PER_EVENT = 10
EVENTS = 7
"""Events per Input Set of the first two functions."""
EVENTS_OF_THE_THIRD = 11


def tagged(table: pa.Table, inset_id: str) -> pa.Table:
    return table.add_column(0, "batch", pa.repeat(pa.scalar(int(inset_id), pa.int64()), table.num_rows))


@generate(accumulate=Sums(by=["item"], of=["amount"]))
def totals(sums: pa.Table, inset_id: str) -> pa.Table:
    return tagged(sums, inset_id)


@generate
def extremes(sales: pa.Table, inset_id: str) -> Iterator[pa.Table]:
    """An event per item."""
    grouped = sales.group_by("item", use_threads=False).aggregate([("amount", "min"), ("amount", "max")])
    found = tagged(grouped.sort_by("item").rename_columns(["item", "lowest", "highest"]), inset_id)
    yield from (found.slice(row, 1) for row in range(found.num_rows))


@generate
def counts(sales: pa.Table, inset_id: str) -> pa.Table:
    return tagged(pa.table({"records": pa.array([sales.num_rows], pa.int64())}), inset_id)


COLUMNS = {
    "totals": ("batch", "item", "amount"),
    "extremes": ("batch", "item", "lowest", "highest"),
    "counts": ("batch", "records"),
}

pipeline = Pipeline("two_functions", params={"transactions": str}, connections=["warehouse"])
source = pipeline.source("source", ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT))
op2 = pipeline.operator(
    "op2",
    {"totals": totals, "extremes": extremes, "counts": (counts, EveryEvents(EVENTS_OF_THE_THIRD))},
    source,
    window=EveryEvents(EVENTS),
)
for table, columns in COLUMNS.items():
    writer = TableWriter(
        "warehouse", table, dict.fromkeys(columns, "bigint"), primary_key=columns[:-1][:2], on_new_run="replace"
    )
    pipeline.sink(f"done_{table}", Count(), pipeline.writer(f"save_{table}", writer, op2.port(table)))
pipeline.group("ends", *(f"{kind}_{table}" for kind in ("save", "done") for table in COLUMNS if table != "totals"))
pipeline.group("op2", op2, "save_totals", "done_totals")
pipeline.lineage("source.out", "op2.extremes")
