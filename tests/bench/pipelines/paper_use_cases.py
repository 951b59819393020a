"""The pipelines of the paper's three use cases (Section 9), each operator in a group of its own, none with Spark.

Which one, and how large, says the variable PAPER_RUN: drivers get it, because the pipeline names it. The paper's OP4 both
writes and sends. Here that is a window with a `TableWriter` behind it in the same group, so in the same process: one
transactional write action and one event for each set. A processing time is a sleep.

An operator that is to fail kills its process (SIGKILL) when it has the given number of events, and before anything of the
last one is logged. A file per failure sees to it that it happens once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    InputEvent,
    Node,
    Pipeline,
    RoundRobin,
    SourceBatch,
    SourceOperator,
    Synchronized,
    TableWriter,
    generate,
    stateless,
)

VARIABLE = "PAPER_RUN"
"""JSON: the fields of `Scaled`, `folder`, and of the run `lineage`, `replay`, `failures`, `standby`, `plain`."""
RUN: dict[str, Any] = json.loads(os.environ[VARIABLE])
FOLDER = Path(RUN["folder"])
TABLE = "paper_results"
COLUMNS = ("batch", "events", "first", "total", "squares")
REPLICAS = 2


def mark(name: str) -> bool:
    """Write the time into a file, seconds since 1970. False if it was there."""
    with suppress(FileExistsError), (FOLDER / name).open("x") as file:
        file.write(repr(time.time()))
        return True
    return False


def may_fail(operator: str, counted: int, replica: int | None = None) -> None:
    """The operator has this many events. Replicas take turns: the first one fails first."""
    points = RUN["points"][: RUN["failures"]]
    if operator != RUN["fails"] or counted not in points:
        return
    turn = points.index(counted)
    if replica in (None, turn % REPLICAS) and mark(f"killed-{turn}"):
        os.kill(os.getpid(), signal.SIGKILL)


class FixedRate(SourceOperator):
    """So many events at a fixed rate by the clock. `total` and `squares` add up to what must come out at the end."""

    def __init__(self) -> None:
        self.events, self.every, self.event_bytes = RUN["events"], RUN["every"], RUN["event_bytes"]

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": self.events}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        while RUN["standby"] and not (FOLDER / "go").is_file():
            time.sleep(0.01)
        noise = random.Random(self.event_bytes).randbytes(self.event_bytes)  # nothing compresses it
        began = time.monotonic() - offset * self.every
        for number in range(offset, self.events):
            time.sleep(max(0.0, began + number * self.every - time.monotonic()))
            if number == 0:
                mark("began")
            payload = number.to_bytes(8, "big") + noise[8:]
            value = number + 1
            columns = {"number": [number], "total": [value], "squares": [value * value], "payload": [payload]}
            yield SourceBatch(pa.table(columns), number + 1)


class Ending(Count):
    """OP5: notes when it has the last event that it is to get, and that it got more."""

    def __init__(self, end: int) -> None:
        self.end = end

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        parts = super().assign(event, state)
        if state["events"] >= self.end:
            mark("ended" if state["events"] == self.end else "one_too_many")
        return parts


@stateless
def passed(records: pa.Table) -> pa.Table:
    return records


@stateless
def quick(records: pa.Table) -> pa.Table:
    """OP2: one event of each."""
    time.sleep(RUN["op2_seconds"])
    may_fail("op2", records["number"][0].as_py() + 1)
    return records


@stateless
def replicated(records: pa.Table) -> pa.Table:
    """OP3 of use case 3: events go to its replicas in turn, so that each knows how many it has."""
    time.sleep(RUN["op3_seconds"])
    turn, replica = divmod(records["number"][0].as_py(), REPLICAS)
    may_fail("op3", turn + 1, replica)
    return records


def gathered_by_op3(held: list[pa.Table] | None, event: pa.Table) -> list[pa.Table]:
    may_fail("op3", event["number"][0].as_py() + 1)
    return [*(held or []), event]


def gathered_by_op4(held: list[pa.Table] | None, event: pa.Table) -> list[pa.Table]:
    """An event of OP3 has the number of the first one of two."""
    may_fail("op4", event["number"][0].as_py() // 2 + 1)
    return [*(held or []), event]


def sums(records: pa.Table) -> dict[str, Any]:
    return {
        "number": [pc.min(records["number"])],
        "total": [pc.sum(records["total"])],
        "squares": [pc.sum(records["squares"])],
    }


@generate(accumulate=gathered_by_op3, finish=pa.concat_tables)
def slow(records: pa.Table) -> pa.Table:
    """OP3: one event of two, as large as one of them."""
    time.sleep(RUN["op3_seconds"])
    return pa.table({**sums(records), "payload": [records["payload"][0]]})


def row(records: pa.Table, inset_id: str) -> pa.Table:
    found = sums(records)
    batch, events = pa.array([int(inset_id)], pa.int64()), pa.array([records.num_rows], pa.int64())
    values = (batch, events, found["number"], found["total"], found["squares"])
    return pa.table(dict(zip(COLUMNS, values, strict=True)))


@generate(accumulate=gathered_by_op4, finish=pa.concat_tables)
def written(records: pa.Table, inset_id: str) -> pa.Table:
    """OP4: a row of each set."""
    return row(records, inset_id)


@generate(inputs=("op2", "op3"))
def met(op2: pa.Table, op3: pa.Table, inset_id: str) -> pa.Table:
    """OP4 of use case 2. What has not come has no columns."""
    return row(pa.concat_tables([one for one in (op2, op3) if one.num_rows]), inset_id)


def _pipeline() -> Pipeline:
    made = Pipeline("paper", connections=["warehouse"], environment=[VARIABLE], fuse=False)
    op1 = made.source("op1", FixedRate())
    op4 = _middle(made, op1)
    table = TableWriter("warehouse", TABLE, dict.fromkeys(COLUMNS, "bigint"), primary_key=("batch",))
    save = made.writer("save", table, op4)
    made.sink("end", Ending(RUN["end"]), save)
    made.group("writing", op4, save, standby=_standbys(op4.name))
    if RUN["lineage"]:
        made.lineage(op1, save)
    return made


def _middle(made: Pipeline, op1: Node) -> Node:
    """All between source and write action; returns the operator that writes."""
    again = RUN["replay"]
    if RUN["shape"] == "replicas":
        op2 = made.operator("op2", passed, op1, replay=again)
        op3 = made.operator("op3", replicated, op2, replay=again)
        group = made.group("slow", op3, standby=_standbys("op3"))
        if not RUN["plain"]:
            made.replicate(group, partition=RoundRobin(), max=REPLICAS, initial=REPLICAS)
        op4 = made.operator("op4", passed, op3, replay=again)
        return made.operator("op5", written, op4, window=EveryEvents(RUN["trigger"]))
    linear = RUN["shape"] == "linear"
    op2 = made.operator("op2", quick, op1, replay=again)
    op3 = made.operator("op3", slow, op2 if linear else op1, window=EveryEvents(2), replay=again)
    made.group("quick", op2, standby=_standbys("op2"))
    made.group("slow", op3, standby=_standbys("op3"))
    every = EveryEvents(RUN["trigger"])
    if linear:
        return made.operator("op4", written, op3, window=every)
    both = Synchronized(op2=RUN["op2_trigger"] or 1, op3=RUN["trigger"], incomplete="drop")
    window = both if RUN["shape"] == "synchronized" else every
    return made.operator("op4", met, op2=op2, op3=op3, window=window)


def _standbys(operator: str) -> int:
    return 1 if RUN["standby"] and RUN["fails"] == operator else 0


row(pa.table({"number": [0], "total": [1], "squares": [1]}), "1")  # Arrow's first use takes 0.4 s: not while we measure
paper = _pipeline()
