"""Writers whose write actions are applied as one: where a pipeline takes them, and what is said of those that it does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import (
    CheckableWriter,
    ConditionalWriter,
    Count,
    EveryEvents,
    External,
    IdempotentWriter,
    InputEvent,
    ManualOperator,
    Marker,
    ParquetSource,
    Pipeline,
    PortTable,
    RoundRobin,
    StatelessOperator,
    TableRead,
    TableSource,
    TableWriter,
    WriteAction,
    generate,
    stateless,
)
from airflow_logio.errors import PipelineDefinitionError


class Connected:
    def connect(self, url: str) -> AbstractContextManager[None]:
        return nullcontext()


class Day(Connected, ConditionalWriter[None]):
    closes = True
    outputs: tuple[str, ...] = ()

    def apply(self, client: None, marker: Marker, actions: Sequence[WriteAction]) -> None:
        pass

    def apply_held(self, client: None, marker: Marker, held: Any, closing: WriteAction, pages: Iterable[Any]) -> None:
        pass


class Names(Connected, IdempotentWriter[None]):
    closes = True
    outputs = ()

    def write(self, client: None, action: WriteAction) -> None:
        pass

    def close_group(self, client: None, closing: WriteAction, records: int, pages: Iterable[Any]) -> None:
        pass


class Open(Day):
    """As writers of one action after another are."""

    outputs = ("out",)


class Maybe(Day):
    closes = "yes"  # type: ignore[assignment]


class Sending(Day):
    sends_after_writes = True


class NotHeld(Connected, ConditionalWriter[None]):
    closes = True
    outputs = ()

    def apply(self, client: None, marker: Marker, actions: Sequence[WriteAction]) -> None:
        pass


class NoGroup(Names):
    close_group = None  # type: ignore[assignment]


class Asked(Connected, CheckableWriter[None]):
    closes = True
    outputs = ()

    def is_applied(self, client: None, action: WriteAction) -> bool:
        return False

    def write(self, client: None, action: WriteAction) -> None:
        pass


class NoWriter(StatelessOperator):
    closes = True

    def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
        yield "out", event.table


class ByHand(ManualOperator):
    closes = True
    inputs = ("in",)
    outputs = ()

    def run(self, context: Any) -> None:
        pass


class ClosingTable(TableWriter):
    closes = True
    outputs = ()


@stateless
def same(records: pa.Table) -> pa.Table:
    return records


@generate(reads={"seen": TableRead("wh", "day", key="a")})
def compared(records: pa.Table, seen: pa.Table) -> pa.Table:
    return records


def pipeline() -> Pipeline:
    made = Pipeline("p", connections=["wh"])
    made.operator("work", same, made.source("read", ParquetSource("x.parquet")))
    return made


@pytest.mark.parametrize(
    "writer", [Day("wh"), Names("wh"), ClosingTable("wh", "day")], ids=lambda one: type(one).__name__
)
def test_conditional_and_idempotent_ones_are_taken(writer: Any) -> None:
    made = pipeline()
    made.writer("day", writer, "work")
    made.freeze()


WAITS = r"writer 'day' closes \(closes=True\): its write actions wait in the log until all of them are there"
REFUSED = {
    "checkable": (
        Asked("wh"),
        rf"{WAITS}.* They are checkable, .*derive it from ConditionalWriter or IdempotentWriter",
    ),
    "a port": (
        Open("wh"),
        rf"{WAITS}, so what reads behind it .*output ports \('out'\): say outputs = \(\) in its class",
    ),
    "no bool": (Maybe("wh"), r"closes of operator 'day' is 'yes'; give True or False"),
    "sends": (Sending("wh"), rf"{WAITS}, and it sends nothing: leave sends_after_writes=True out"),
    "conditional": (NotHeld("wh"), rf"{WAITS}, and NotHeld has no apply_held\(\), which applies them"),
    "idempotent": (NoGroup("wh"), rf"{WAITS}, and NoGroup has no close_group\(\), which applies them"),
    "no writer": (NoWriter(), r"operator 'day' declares closes=True, and is no ConditionalWriter or IdempotentWriter"),
    "by hand": (ByHand(), r"operator 'day' declares closes=True, and is no ConditionalWriter or IdempotentWriter"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_others_are_refused_with_the_way_out(kind: str) -> None:
    writer, says = REFUSED[kind]
    with pytest.raises(PipelineDefinitionError, match=says):
        pipeline().operator("day", writer, "work")


def test_nothing_can_be_behind_one() -> None:
    made = pipeline()
    made.writer("day", Day("wh"), "work")
    with pytest.raises(PipelineDefinitionError, match="'day'"):
        made.sink("done", Count(), "day")
        made.freeze()


def test_one_in_a_replicated_group_is_refused() -> None:
    made = pipeline()
    made.writer("day", Day("wh"), "work")
    made.group("writing", "work", "day")
    made.replicate("writing", partition=RoundRobin(), max=2)
    says = r"group 'writing' is replicated, but its operator 'day' closes .*no transaction spans .*a group of its own, behind"
    with pytest.raises(PipelineDefinitionError, match=says):
        made.freeze()


def test_one_behind_a_replicated_group_is_not() -> None:
    made = pipeline()
    made.writer("day", Day("wh"), "work")
    made.group("working", "work")
    made.group("closing", "day")
    made.replicate("working", partition=RoundRobin(), max=2)
    made.freeze()


def test_one_behind_a_source_without_an_end_is_refused_wherever_it_is() -> None:
    made = Pipeline("p", connections=["wh"])
    raw = made.source("raw", TableSource("wh", "clicks", append_only=True, unbounded=True))
    made.writer("log", ClosingTable("wh", "seen"), made.operator("work", same, raw))
    with pytest.raises(PipelineDefinitionError, match=r"source 'raw' is unbounded, and writer 'log' behind it closes"):
        made.freeze()


def test_a_read_of_its_connection_in_its_group_is_refused() -> None:
    made = Pipeline("p", connections=["wh"])
    read = made.source("read", ParquetSource("x.parquet"))
    made.writer("day", Day("wh"), made.operator("compare", compared, read, window=EveryEvents(1)))
    made.group("all", "read", "compare", "day")
    with pytest.raises(
        PipelineDefinitionError, match="'compare' reads connection 'wh', which 'day' writes in the same"
    ):
        made.freeze()
