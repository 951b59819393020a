"""An ordered Merger behind slots of any speed sends what one replica would have sent, in its order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow import Count, Pipeline, RoundRobin, SourceBatch, SourceOperator, stateless
from airflow_logio.dataflow.replication.partition import AllSlots
from airflow_logio.driver.logics.operator_specs import specs_of
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.values import Event, Port
from airflow_logio.systems.connections import Connections, WriterIdentity

SLOTS = 3


class Numbers(SourceOperator):
    def action(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def read(self, params: Mapping[str, Any], action: Mapping[str, Any], offset: int) -> Iterator[SourceBatch]:
        yield from ()


@stateless
def some(table: pa.Table) -> Any:
    """Nothing, the number itself, or its two halves."""
    (number,) = table["n"].to_pylist()
    return [None, table, iter([table, table])][number % 3]


def pipeline(*, ordered: bool) -> Pipeline:
    made = Pipeline("p")
    first = made.operator("first", some, made.source("numbers", Numbers()))
    second = made.operator("second", some, first)
    made.sink("done", Count(), second)
    made.group("work", first, second)
    made.replicate("work", partition=RoundRobin(), max=SLOTS, ordered=ordered)
    return made.freeze()


class Part:
    """Operators that run together, and what they have sent to others."""

    def __init__(self, made: Pipeline, members: set[str]) -> None:
        connections = Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0)
        specs, receivers = specs_of(made, members, connections, lambda _: AllSlots(SLOTS))
        self.protocol = GroupProtocol(specs, receivers)

    def take(self, receiver: Port, event: Event) -> list[Event]:
        self.protocol.deliver(receiver, event)
        return self.sent()

    def sent(self) -> list[Event]:
        return [effect.event for effect in self.protocol.close_step() if hasattr(effect, "event")]


ORDERED = pipeline(ordered=True)


def through(numbers: list[int], order: list[int]) -> list[int]:
    """What comes out behind the Merger if slots send in this order, and the rest in turn."""
    source = Part(ORDERED, {"numbers", "dispatch(first)"})
    work = Part(ORDERED, set(ORDERED.groups["work"].operators))
    merge = Part(ORDERED, {"merge(second)"})
    source.protocol.begin_source("numbers", {})
    waiting: dict[str, deque[Event]] = {}
    for offset, number in enumerate(numbers):
        table = pa.table({"n": [number]})
        source.protocol.emit("numbers", [Emit("out", table, 1)], offset + 1)
    for event in source.sent():
        if event.sender.operator == "dispatch(first)":
            (receiver,) = ORDERED.receivers(event.sender)
            for made in work.take(receiver, event):
                waiting.setdefault(made.sender.operator, deque()).append(made)
    found = []
    slots = sorted(waiting)
    for choice in [*order, *range(sum(map(len, waiting.values())))]:
        ready = [slot for slot in slots if waiting[slot]]
        if ready:
            event = waiting[ready[choice % len(ready)]].popleft()
            (receiver,) = ORDERED.receivers(event.sender)
            found += [n for made in merge.take(receiver, event) for n in made.payload["n"].to_pylist()]
    return found


def expected(numbers: list[int]) -> list[int]:
    """Each function makes 0, 1 or 2 events of a number."""
    return [number for number in numbers for _ in range((number % 3) ** 2)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12), st.lists(st.integers(0, SLOTS - 1), max_size=30))
def test_what_comes_out_has_the_order_of_what_went_in(numbers: list[int], order: list[int]) -> None:
    assert through(numbers, order) == expected(numbers)


def test_events_without_a_place_are_refused() -> None:
    merge = Part(ORDERED, {"merge(second)"})
    event = Event(Port("second[0]", "out"), 1, records=1, payload=pa.table({"n": [1]}))
    with pytest.raises(OperatorFailed, match="has no place in the order: it comes from no Dispatcher that numbers"):
        merge.take(Port("merge(second)", "slot0"), event)
