"""An author's `part` that does not return what `assign` has returned is noticed before anything is committed."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_logio.dataflow.operators import External, InputEvent, InputSet, PortTable, StatefulOperator
from airflow_logio.driver.logics.adapters import StatefulLogic
from airflow_logio.driver.logics.replay_check import is_due, may_be_equal
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.systems.connections import Connections, WriterIdentity

CONNECTIONS = Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0)
CALLS = itertools.count()


class Shared(StatefulOperator):
    """Half of each event goes to one Input Set, half to another; an impure one cuts elsewhere each time it is asked."""

    def __init__(self, *, pure: bool, from_event: int = 1) -> None:
        self._pure = pure
        self._from = from_event
        self.asked = 0

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        return {"a": self._half(event, "a"), "b": self._half(event, "b")}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        self.asked += 1
        return self._half(event, inset_id)

    def _half(self, event: InputEvent, inset_id: str) -> pa.Table:
        cut = 5 if self._pure or event.event_id < self._from else next(CALLS) % event.table.num_rows
        return event.table.slice(0, cut) if inset_id == "a" else event.table.slice(cut)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return []

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        return []


def feed(operator: Shared, events: int) -> None:
    logic = StatefulLogic("p", "op", operator, CONNECTIONS)
    for number in range(1, events + 1):
        event = Event(sender=Port("s", "out"), event_id=number, kind=Kind.DATA, records=10, payload=TABLE)
        logic.assign("in", event, {})


TABLE = pa.table({"n": range(10), "x": [float("nan"), None, *map(float, range(8))]})


def test_a_part_that_is_another_one_each_time_is_refused_with_its_event_and_input_set() -> None:
    with pytest.raises(
        OperatorFailed, match=r"event 1 of s.out, Input Set 'a': part\(\) .* not what assign\(\) returned"
    ):
        feed(Shared(pure=False), 1)


def test_it_is_noticed_later_too() -> None:
    with pytest.raises(OperatorFailed, match=r"event 64 of s\.out"):
        feed(Shared(pure=False, from_event=40), 100)


def test_a_pure_one_is_asked_rarely() -> None:
    operator = Shared(pure=True)
    feed(operator, 1000)
    assert operator.asked == 2 * 10, "for events 1, 2, 4, ..., 512, once per Input Set"
    assert [n for n in range(40) if is_due(n)] == [1, 2, 4, 8, 16, 32]


FLOATS = pa.table({"x": [1.0, float("nan"), None]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FLOATS, pa.table({"x": [1.0, float("nan"), None]})),
        (("in", FLOATS), ("in", FLOATS.slice(0))),
        ({"a": [FLOATS, 1]}, {"a": [FLOATS, 1]}),
        (float("nan"), float("nan")),
        (object(), object()),
        (np.array([1, 2]), np.array([1, 3])),
        (TABLE.filter(pa.array([True] * 5 + [False] * 5)), TABLE.slice(0, 5)),
    ],
    ids=["nan", "pair", "nested", "a nan", "objects without equality", "arrays without truth", "cut otherwise"],
)
def test_what_is_equal_or_cannot_be_compared_is_not_refused(one: Any, other: Any) -> None:
    assert may_be_equal(one, other)


@dataclass
class Amount:
    value: float


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Amount(float("nan")), Amount(float("nan"))),
        ({float("nan")}, {float("nan")}),
        (deque([float("nan")]), deque([float("nan")])),
        (1, 1.0),
        (1, np.int64(1)),
    ],
    ids=["dataclass", "set", "deque", "int and float", "int and numpy"],
)
def test_what_python_calls_different_or_another_type_may_be_equal(one: Any, other: Any) -> None:
    assert may_be_equal(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (FLOATS, pa.table({"x": [2.0, float("nan"), None]})),
        (FLOATS, pa.table({"x": [1.0, None, None]})),
        (FLOATS, FLOATS.slice(1)),
        (FLOATS, pa.table({"y": [1.0, float("nan"), None]})),
        (("in", FLOATS), ("other", FLOATS)),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 1]),
        (1, "1"),
        (1, 2.0),
        ("a", "b"),
    ],
    ids=["value", "null", "rows", "column", "name", "key", "length", "type", "number", "text"],
)
def test_what_differs_is_refused(one: Any, other: Any) -> None:
    assert not may_be_equal(one, other)
