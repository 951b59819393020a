"""The pipeline of a shape, in Arrow and as an author would write it."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow import (
    ByKey,
    EveryEvents,
    Node,
    ParquetSource,
    Pipeline,
    RoundRobin,
    Synchronized,
    TableWriter,
    generate,
    stateless,
)
from tests.support.storm.shape import MODULUS, Double, Scale, Shape, Spread, Step, Sums, Thin, drawn

COLUMNS = {"id": "bigint", "key": "bigint", "amount": "bigint"}
SECONDS_PER_EVENT = 0.01
"""So that a run lasts long enough for something to happen to it."""


def pipeline_of(seed: int) -> Pipeline:
    return _Builder(drawn(seed)).built()


class _Builder:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        parameters = {chain.source: str for chain in shape.chains} | {"trouble": str}
        self._pipeline = Pipeline(f"storm{shape.seed}", params=parameters, connections=["warehouse"])
        self._line: list[Node] = []
        """Operators in the order of the data; neighbours may share a group."""

    def built(self) -> Pipeline:
        last = self._last()
        self._write("results", last)
        if self._shape.noise:
            noise = self._operator("noisy", noisy, last, window=EveryEvents(1))
            for table in ("noises", "copies"):
                self._write(table, noise, {**COLUMNS, "noise": "bigint"})
        if self._shape.picky:
            self._write("picked", self._operator("picky", picky, last))
        end = self._spread(self._shape.spread, last) if self._shape.spread is not None else last
        for chain in self._shape.chains:
            if end.name != chain.source:
                self._pipeline.lineage(f"{chain.source}.out", f"{end.name}.out")
        self._packed()
        return self._pipeline

    def _last(self) -> Node:
        ends = []
        for chain in self._shape.chains:
            source = ParquetSource(f"{{{chain.source}}}", records_per_event=chain.records_per_event)
            node = self._pipeline.source(chain.source, source)
            self._line.append(node)
            for number, step in enumerate(chain.steps):
                more = {"window": EveryEvents(step.events)} if isinstance(step, Sums) else {}
                node = self._operator(f"{chain.source}{number}", function_of(step), node, **more)
            ends.append(node)
        if self._shape.meet is None:
            return ends[0]
        left, right = self._shape.meet
        window = Synchronized(left=left, right=right, ordered=self._shape.in_order)
        return self._operator("met", met, left=ends[0], right=ends[1], window=window)

    def _spread(self, spread: Spread, last: Node) -> Node:
        node = self._pipeline.operator("spread", function_of(spread.step, SECONDS_PER_EVENT), last)
        partition = ByKey("key", slots=spread.slots) if spread.by_key else RoundRobin(slots=spread.slots)
        most = min(3, spread.slots)
        self._pipeline.replicate(node, partition=partition, max=most, initial=1, ordered=spread.ordered)
        self._write("published", node)
        return node

    def _operator(self, name: str, function: Any, *inputs: Node, **more: Any) -> Node:
        node = self._pipeline.operator(name, function, *inputs, **more)
        self._line.append(node)
        return node

    def _write(self, table: str, node: Node, columns: Mapping[str, str] = COLUMNS) -> None:
        self._pipeline.writer(
            f"save_{table}", TableWriter("warehouse", table, dict(columns), on_new_run="replace"), node
        )

    def _packed(self) -> None:
        """Some neighbours share a group; all others, and the writers, are groups of their own."""
        dice = random.Random(f"groups {self._shape.seed}")
        packs: list[list[Node]] = []
        for node in self._line:
            if packs and node.name not in self._sources and dice.random() < self._shape.together:
                packs[-1].append(node)
            else:
                packs.append([node])
        for number, pack in enumerate(packs):
            if len(pack) > 1:
                self._pipeline.group(f"pack{number}", *pack)

    @property
    def _sources(self) -> set[str]:
        return {chain.source for chain in self._shape.chains}


def function_of(step: Step, seconds: float = SECONDS_PER_EVENT) -> Any:
    match step:
        case Scale(factor, term):

            @stateless
            def scaled(records: pa.Table) -> pa.Table:
                time.sleep(seconds)
                amounts = [(amount * factor + term) % MODULUS for amount in records["amount"].to_pylist()]
                return _with(records, amount=amounts)

            return scaled
        case Thin():
            return thinned
        case Double():
            return doubled
        case Sums():
            return summed


@stateless
def thinned(records: pa.Table) -> pa.Table:
    time.sleep(SECONDS_PER_EVENT)
    keep = [place == 0 or number % 3 != 0 for place, number in enumerate(records["id"].to_pylist())]
    return records.filter(pa.array(keep))


@stateless
def doubled(records: pa.Table) -> pa.Table:
    time.sleep(SECONDS_PER_EVENT)
    first = _with(records, id=[2 * number for number in records["id"].to_pylist()])
    second = _with(first, id=pc.add(first["id"], 1), amount=pc.add(first["amount"], 1))
    return pa.concat_tables([first, second])


@generate
def summed(records: pa.Table, inset_id: str) -> pa.Table:
    return _sums(records, inset_id)


@generate(inputs=("left", "right"))
def met(left: pa.Table, right: pa.Table, inset_id: str) -> pa.Table:
    return _sums(pa.concat_tables([table.select(list(COLUMNS)) for table in (left, right) if table.num_rows]), inset_id)


@generate
def noisy(records: pa.Table) -> pa.Table:
    """Another result at every call: whoever got one must have got the same."""
    noise = [random.SystemRandom().randrange(1 << 40) for _ in range(records.num_rows)]
    return records.append_column("noise", pa.array(noise, pa.int64()))


@stateless(on_error="quarantine")
def picky(records: pa.Table, params: Mapping[str, Any]) -> pa.Table:
    if records["id"][0].as_py() % 2 == 0 and Path(params["trouble"]).exists():
        raise ValueError("there is trouble")
    return records


def _sums(records: pa.Table, inset_id: str) -> pa.Table:
    amounts: dict[int, int] = {}
    for key, amount in zip(records["key"].to_pylist(), records["amount"].to_pylist(), strict=True):
        amounts[key] = amounts.get(key, 0) + amount
    keys = sorted(amounts)
    return pa.table(
        {"id": [int(inset_id) * 10 + key for key in keys], "key": keys, "amount": [amounts[k] for k in keys]}
    )


def _with(records: pa.Table, **columns: Any) -> pa.Table:
    for name, values in columns.items():
        array = values if isinstance(values, pa.ChunkedArray) else pa.array(values, pa.int64())
        records = records.set_column(records.schema.get_field_index(name), name, array)
    return records
