"""The pipeline of a shape, as an author would build it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from airflow_logio.dataflow import (
    ByKey,
    EveryEvents,
    LeastLoaded,
    Node,
    Pipeline,
    RoundRobin,
    Synchronized,
    TableWriter,
)
from airflow_logio.dataflow.operators import SourceOperator
from tests.support.storm.functions import function_of, met, noisy, picky, timed
from tests.support.storm.outlets import writer_to
from tests.support.storm.shape import COLUMNS, Chain, Kind, Minutes, Shape, Spread, Step, drawn
from tests.support.storm.sources import HeldFile, HeldTable, Polls

EVENT = "event"
"""The lineage column of the results, if they have one."""


def pipeline_of(seed: int) -> Pipeline:
    return _Builder(drawn(seed)).built()


class _Builder:
    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        parameters = {chain.source: str for chain in shape.chains} | {"trouble": str, "over": str}
        self._pipeline = Pipeline(
            f"storm{shape.seed}", params=parameters, connections=["warehouse", "outlet"], fuse=False
        )
        self._line: list[Node] = []
        """Operators in the order of the data; neighbours may share a group."""
        self._writers: list[Node] = []

    def built(self) -> Pipeline:
        made, table = self._last(), self._shape.table
        self._writers.append(self._pipeline.writer("outlet", writer_to(self._shape.outlet), made))
        written = self._write(
            "results",
            made,
            on_new_run=table.on_new_run,
            sends_after_writes=table.sends_after_writes,
            lineage_column=EVENT if table.lineage_column else None,
        )
        last = written if table.sends_after_writes else made
        if self._shape.noise:
            noise = self._operator("noisy", noisy, last, window=EveryEvents(1))
            for name in ("noises", "copies"):
                self._write(name, noise, {**COLUMNS, "noise": "bigint"})
        if self._shape.picky:
            self._write("picked", self._operator("picky", picky, last))
        end = made if self._shape.spread is None else self._spread(self._shape.spread, last)
        for chain in self._shape.chains:
            self._pipeline.lineage(f"{chain.source}.out", f"{end.name}.out")
        self._packed()
        return self._pipeline

    def _last(self) -> Node:
        ends = [self._chain(chain) for chain in self._shape.chains]
        if self._shape.meet is None:
            return ends[0]
        left, right = self._shape.meet
        window = Synchronized(left=left, right=right, ordered=self._shape.in_order)
        return self._operator("met", met, left=ends[0], right=ends[1], window=window)

    def _chain(self, chain: Chain) -> Node:
        node = self._pipeline.source(chain.source, self._source(chain))
        self._line.append(node)
        if chain.kind is Kind.POLLS:
            self._write(f"polled_{chain.source}", node)
        for number, step in enumerate(chain.steps):
            node = self._step(f"{chain.source}{number}", step, node)
        return node

    def _source(self, chain: Chain) -> SourceOperator:
        match chain.kind:
            case Kind.FILE:
                return HeldFile(chain)
            case Kind.TABLE:
                return HeldTable(chain)
            case Kind.POLLS:
                return Polls(chain, self._shape.seed)

    def _step(self, name: str, step: Step, node: Node) -> Node:
        if isinstance(step, Minutes):
            node = self._operator(f"{name}_timed", timed, node)
        function, window = function_of(step)
        return self._operator(name, function, node, window=window)

    def _spread(self, spread: Spread, last: Node) -> Node:
        if isinstance(spread.step, Minutes):
            last = self._operator("spread_timed", timed, last)
        function, window = function_of(spread.step)
        node = self._pipeline.operator("spread", function, last, window=window)
        whole = LeastLoaded(slots=spread.slots) if spread.least_loaded else RoundRobin(slots=spread.slots)
        partition = ByKey("key", slots=spread.slots) if spread.by_key else whole
        most = min(3, spread.slots)
        self._pipeline.replicate(node, partition=partition, max=most, initial=1, ordered=spread.ordered)
        self._write("published", node)
        return node

    def _operator(self, name: str, function: Any, *inputs: Node, **more: Any) -> Node:
        node = self._pipeline.operator(name, function, *inputs, **more)
        self._line.append(node)
        return node

    def _write(
        self, table: str, node: Node, columns: Mapping[str, str] = COLUMNS, on_new_run: str = "replace", **more: Any
    ) -> Node:
        writer = TableWriter("warehouse", table, dict(columns), on_new_run=on_new_run, **more)
        self._writers.append(self._pipeline.writer(f"save_{table}", writer, node))
        return self._writers[-1]

    def _packed(self) -> None:
        """Some neighbours share a group; all others are groups of their own. Where all share one, so do the writers."""
        dice = random.Random(f"groups {self._shape.seed}")
        packs: list[list[Node]] = []
        for node in self._line:
            if packs and node.name not in self._alone and dice.random() < self._shape.together:
                packs[-1].append(node)
            else:
                packs.append([node])
        if self._shape.together == 1.0:
            packs.append(self._writers)
        for number, pack in enumerate(packs):
            if len(pack) > 1:
                self._pipeline.group(f"pack{number}", *pack)

    @property
    def _alone(self) -> set[str]:
        """What shares no group with what is before it: sources, and what comes behind a writer, which is in another group."""
        behind = {"noisy", "picky", "spread_timed"} if self._shape.table.sends_after_writes else set()
        return {chain.source for chain in self._shape.chains} | behind
