"""The paper's second use case (Section 9.3.3): two parallel paths of different speed that meet in a synchronized operator.

OP1 sends events to OP2 (quick, one event from each) and OP3 (slow, one event from two). OP4 writes one row for every 50
events of OP2 together with 100 events of OP3; OP5 ends the pipeline. Three pipelines: with the events of OP4 as they come,
in the declared order of its ports, and in that order within one group.
"""

from __future__ import annotations

import time

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    ParquetSource,
    Pipeline,
    Synchronized,
    TableWriter,
    generate,
    stateless,
)

RECORDS_PER_EVENT = 4
SECONDS_PER_SLOW_EVENT = 0.002


@stateless
def quick(sales: pa.Table) -> pa.Table:
    return sales.append_column("doubled", pc.multiply(sales["amount"], 2))


@generate
def slow(sales: pa.Table) -> pa.Table:
    """One record out of those of two events."""
    time.sleep(SECONDS_PER_SLOW_EVENT)
    return pa.table({"first_row": [pc.min(sales["row"])], "amount": [pc.sum(sales["amount"])]})


@generate(inputs=("op2", "op3"))
def meeting(op2: pa.Table, op3: pa.Table, inset_id: str) -> pa.Table:
    """What has met, told apart by sums: a lost, doubled or misplaced event shows."""
    op3_rows, op3_amount = (pc.sum(op3[name]) for name in ("first_row", "amount")) if op3.num_rows else (0, 0)
    return pa.table(
        {
            "batch": pa.array([int(inset_id)], pa.int64()),
            "op2_records": pa.array([op2.num_rows], pa.int64()),
            "op2_rows": [pc.sum(op2["row"])],
            "op2_doubled": [pc.sum(op2["doubled"])],
            "op3_events": pa.array([op3.num_rows], pa.int64()),
            "op3_rows": pa.array([pa.scalar(op3_rows).as_py()], pa.int64()),
            "op3_amount": pa.array([pa.scalar(op3_amount).as_py()], pa.int64()),
        }
    )


COLUMNS = ("batch", "op2_records", "op2_rows", "op2_doubled", "op3_events", "op3_rows", "op3_amount")


def use_case_two(*, ordered: bool, fused: bool = False) -> Pipeline:
    pipeline = Pipeline("use_case_two", params={"transactions": str}, connections=["warehouse"], fuse=False)
    op1 = pipeline.source("op1", ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT))
    op2 = pipeline.operator("op2", quick, op1)
    op3 = pipeline.operator("op3", slow, op1, window=EveryEvents(2))
    window = Synchronized(op2=50, op3=100, ordered=ordered)
    op4 = pipeline.operator("op4", meeting, op2=op2, op3=op3, window=window)
    table = TableWriter(
        "warehouse", "meetings", dict.fromkeys(COLUMNS, "bigint"), primary_key=["batch"], on_new_run="replace"
    )
    save = pipeline.writer("save", table, op4)
    op5 = pipeline.sink("op5", Count(), save)
    if fused:
        pipeline.group("all", op1, op2, op3, op4, save, op5)
    else:
        pipeline.group("op4", op4, save)
    pipeline.lineage("op1.out", "op4.out")
    return pipeline


as_they_come = use_case_two(ordered=False)
in_order = use_case_two(ordered=True)
in_one_group = use_case_two(ordered=True, fused=True)
