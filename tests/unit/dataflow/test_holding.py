"""Holdings: the event state of an Input Set, from its first part to the arguments of a function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow import EveryEvents, InputEvent, InputSet, Sums, generate
from airflow_logio.dataflow.functions.decorators import GenerativeFunction
from airflow_logio.dataflow.functions.function_operators import keys_of
from airflow_logio.dataflow.functions.windowed_operators import windowed
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.errors import OperatorFailed
from tests.unit.dataflow.conftest import FakeExternal

STORED_SCHEMA = bytes.fromhex(
    "ffffffff780000001000000000000a000c000600050008000a000000000104000c000000080008000000040008000000040000000100000014000000"
    "100014000800060007000c00000010001000000000000102100000001c0000000400000000000000010000007800000008000c000800070008000000"
    "0000000140000000"
)
"""A column ``x`` of int64, as version 0.1.0 has stored it."""


@generate
def rows(records: pa.Table) -> pa.Table:
    return pa.table({"rows": [records.num_rows]})


@generate
def numbers(records: pa.Table, event_ids: list[int]) -> pa.Table:
    return pa.table({"rows": [records.num_rows], "ids": [event_ids]})


@generate(accumulate=Sums(["x"], ["n"]))
def sums(records: pa.Table, event_ids: list[int]) -> pa.Table:
    return records.append_column("ids", pa.array([event_ids] * records.num_rows))


@generate(inputs=("a", "b"))
def ports(a: pa.Table, b: pa.Table) -> pa.Table:
    return pa.table({"a": [a.num_rows], "b": [b.num_rows], "columns": [b.column_names]})


@generate(inputs=("a", "b"))
def numbered_ports(a: pa.Table, b: pa.Table, event_ids: Mapping[str, list[int]]) -> pa.Table:
    return pa.table({"rows": [a.num_rows + b.num_rows], "a": [event_ids["a"]], "b": [event_ids["b"]]})


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (rows, [{"rows": 2}]),
        (numbers, [{"rows": 2, "ids": [1, 2]}]),
        (sums, [{"x": 1, "n": 5, "ids": [1, 2]}]),
        (ports, [{"a": 2, "b": 0, "columns": []}]),
        (numbered_ports, [{"rows": 2, "a": [1, 2], "b": []}]),
    ],
    ids=["tables", "with event ids", "accumulated", "by port", "by port with event ids"],
)
def test_a_recovery_rebuilds_what_a_function_gets(function: GenerativeFunction, expected: list[dict[str, Any]]) -> None:
    operator = windowed(function, EveryEvents(2))
    events = [InputEvent(function.inputs[0], number, pa.table({"x": [1], "n": [number + 1]})) for number in (1, 2)]
    state, held, rebuilt = operator.initial_state(), None, None
    for event in events:
        (part,) = operator.assign(event, state).values()
        held = operator.accumulate(held, part)
        rebuilt = operator.accumulate(rebuilt, operator.part(event, "1"))
    for one in (held, rebuilt):
        ((port, table),) = operator.generate(InputSet("1", one), state, FakeExternal())
        assert (port, table.to_pylist()) == ("out", expected)


def test_global_states_keep_the_form_that_earlier_versions_have_stored() -> None:
    operator = windowed(ports, EveryEvents(2))
    assert operator.initial_state() == {"events": 0, "schemas": {}}
    state = {"events": 0, "schemas": {"b": STORED_SCHEMA}}
    held: Any = None
    for number in (1, 2):
        (part,) = operator.assign(InputEvent("a", number, pa.table({"x": [1]})), state).values()
        held = operator.accumulate(held, part)
    assert state == {"events": 2, "schemas": {"b": STORED_SCHEMA, "a": STORED_SCHEMA}}
    ((_, table),) = operator.generate(InputSet("1", held), state, FakeExternal())
    assert table.to_pylist() == [{"a": 2, "b": 0, "columns": ["x"]}]


def test_keys_of_a_read_are_found_in_what_an_accumulate_has_made() -> None:
    """It may return a mapping of tables, in which any one may have the key."""
    read = TableRead("wh", "prices", key="id")
    made = {"orders": pa.table({"id": [2, 1, 2]}), "count": 3}
    keys = keys_of([made], read)
    assert keys is not None and keys.to_pylist() == [1, 2]
    with pytest.raises(OperatorFailed, match="not a column of the records"):
        keys_of([{"orders": pa.table({"a": [1]})}], read)
