"""Three operators in groups of their own, two receivers behind them: with their bodies in the log, and without."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    EveryEvents,
    Pipeline,
    SourceBatch,
    SourceOperator,
    TableWriter,
    generate,
    stateless,
)

ITEMS = 5
EVENTS_PER_SET = 3


class Rows(SourceOperator):
    """So many events of so many records. All are there at once."""

    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"events": params["events"], "records": params["records"]}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        for number in range(offset, action["events"]):
            ids = pa.array(range(number * action["records"], (number + 1) * action["records"]), pa.int64())
            yield SourceBatch(pa.table({"id": ids}), number + 1)


@stateless
def described(rows: pa.Table) -> pa.Table:
    """Makes an event some times as large as what it is made of."""
    ids = rows["id"]
    item = pc.subtract(ids, pc.multiply(pc.divide(ids, ITEMS), ITEMS))
    texts = [pc.cast(pc.multiply(ids, factor), pa.string()) for factor in (7_919, 104_729, 1_299_709)]
    columns = {"id": ids, "item": item, **{f"text{number}": text for number, text in enumerate(texts)}}
    return pa.table(columns)


@generate
def per_item(rows: pa.Table) -> Iterator[pa.Table]:
    for item in range(ITEMS):
        yield rows.filter(pc.equal(rows["item"], item))


@stateless
def longer(rows: pa.Table) -> pa.Table:
    return rows.append_column("text", pc.binary_join_element_wise(rows["text0"], rows["text1"], "-"))


@stateless
def sums(rows: pa.Table) -> pa.Table:
    length = pc.sum(pc.binary_length(rows["text"])).as_py()
    return pa.table({"first": [pc.min(rows["id"]).as_py()], "records": [rows.num_rows], "letters": [length]})


def chain(*, replay: bool) -> Pipeline:
    params: dict[str, type] = {"events": int, "records": int}
    made = Pipeline("replay_chain", params=params, connections=["warehouse"], fuse=False)
    source = made.source("source", Rows())
    one = made.operator("described", described, source, replay=replay)
    two = made.operator("per_item", per_item, one, window=EveryEvents(EVENTS_PER_SET), replay=replay)
    three = made.operator("longer", longer, two, replay=replay)
    for name in ("left", "right"):
        columns = {"first": "bigint", "records": "bigint", "letters": "bigint"}
        writer = TableWriter("warehouse", name, columns=columns, primary_key=("first",))
        made.writer(f"save_{name}", writer, made.operator(name, sums, three))
        made.group(f"to_{name}", name, f"save_{name}")
    made.lineage("source.out", "longer.out")
    return made


in_the_log = chain(replay=False)
replayed = chain(replay=True)
