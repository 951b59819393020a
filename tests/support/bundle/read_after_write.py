"""An operator that reads, for every event, the rows which the writer before it has written for that event.

The writer sends after its writes (Steps 5 and 6 of Algorithm 3 swapped). Three pipelines: writer and reader in one group,
in two groups, and in one group with an operator between them.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    ParquetSource,
    Pipeline,
    TableRead,
    TableWriter,
    generate,
    stateless,
)

RECORDS_PER_EVENT = 5


@stateless
def renamed(sales: pa.Table) -> pa.Table:
    return sales


@generate(reads={"ledger": TableRead("warehouse", "ledger", columns=("row_no", "amount"), key="row_no")})
def looked_up(sales: pa.Table, ledger: pa.Table, inset_id: str) -> pa.Table:
    """What of the event's rows was in the table when the event was used."""
    found = ledger.num_rows
    return pa.table(
        {
            "event": pa.array([int(inset_id)], pa.int64()),
            "expected": pa.array([sales.num_rows], pa.int64()),
            "found": pa.array([found], pa.int64()),
            "amount": pa.array([pc.sum(ledger["amount"]).as_py() if found else 0], pa.int64()),
        }
    )


def read_after_write(*groups: tuple[str, ...], between: bool = False) -> Pipeline:
    pipeline = Pipeline("read_after_write", params={"transactions": str}, connections=["warehouse"])
    source = pipeline.source("source", ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT))
    ledger = TableWriter(
        "warehouse",
        "ledger",
        columns={"row_no": "bigint", "amount": "bigint"},
        primary_key=["row_no"],
        on_new_run="replace",
        sends_after_writes=True,
    )
    ledger.actions_at_once = 3  # so that a run of forty events executes and releases many times
    save = pipeline.writer("save", ledger, source)
    last = pipeline.operator("between", renamed, save) if between else save
    look = pipeline.operator("look", looked_up, last, window=EveryEvents(1))
    seen = TableWriter(
        "warehouse",
        "seen",
        columns=dict.fromkeys(("event", "expected", "found", "amount"), "bigint"),
        primary_key=["event"],
        on_new_run="replace",
    )
    pipeline.sink("done", Count(), pipeline.writer("note", seen, look))
    for members in groups:
        pipeline.group(f"with_{members[-1]}", *members)
    pipeline.group("end", "note", "done")
    pipeline.lineage("source.out", "look.out")
    return pipeline


one_group = read_after_write(("source", "save", "look"))
two_groups = read_after_write(("source", "save"))
"""The reader is a group of its own."""
with_an_operator_between = read_after_write(("save", "between", "look"), between=True)
