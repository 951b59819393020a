"""Functions of several input ports: synchronized windows, counted windows, and what each refuses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_logio.dataflow import EveryEvents, InputEvent, InputSet, Synchronized, TableRead, Tumbling, generate
from airflow_logio.dataflow.functions.windowed_operators import WindowedOperator, windowed
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from tests.unit.dataflow.conftest import FakeExternal


@generate(inputs=("a", "b"))
def pairs(b: pa.Table, a: pa.Table, inset_id: str) -> pa.Table:
    """Parameters are matched by name, so their order is free."""
    return pa.table({"set": [inset_id], "a": [a["n"].to_pylist()], "b": [b["n"].to_pylist()]})


def event(port: str, event_id: int, *values: int) -> InputEvent:
    return InputEvent(port, event_id, pa.table({"n": pa.array(values or (event_id,), pa.int64())}))


def used(operator: WindowedOperator, arrivals: Sequence[str], *, flush: bool = True) -> list[list[dict[str, Any]]]:
    """The Output Sets, as rows, of events that arrive on these ports; values are event ids."""
    state = operator.initial_state()
    held: dict[str, Any] = {}
    sent = dict.fromkeys(operator.inputs, 0)
    generated: list[list[dict[str, Any]]] = []

    def generate_all(insets: Sequence[str]) -> None:
        for inset_id in insets:
            outputs = operator.generate(InputSet(inset_id, held.pop(inset_id)), state, FakeExternal())
            generated.append([row for _, table in outputs for row in table.to_pylist()])

    for port in arrivals:
        sent[port] += 1
        given = event(port, sent[port])
        for inset_id, part in operator.assign(given, state).items():
            assert operator.part(given, inset_id) == part, "on recovery, the same part"
            held[inset_id] = operator.accumulate(held.get(inset_id), part)
        generate_all(operator.triggered(state, list(held)))
    if flush:
        generate_all(operator.flush(state, list(held)))
        assert not held
    return generated


@given(st.permutations("a" * 7 + "b" * 9))
def test_the_order_of_arrival_changes_no_result(arrivals: list[str]) -> None:
    generated = used(windowed(pairs, Synchronized(a=2, b=3)), arrivals)
    assert generated == [
        [{"set": "1", "a": [1, 2], "b": [1, 2, 3]}],
        [{"set": "2", "a": [3, 4], "b": [4, 5, 6]}],
        [{"set": "3", "a": [5, 6], "b": [7, 8, 9]}],
        [{"set": "4", "a": [7], "b": []}],
    ]


def test_an_input_set_is_complete_when_both_ports_have_brought_their_share() -> None:
    operator = windowed(pairs, Synchronized(a=1, b=2))
    assert used(operator, "aaab", flush=False) == []
    assert used(operator, "aaabb", flush=False) == [[{"set": "1", "a": [1], "b": [1, 2]}]]


def test_the_rest_may_be_dropped_or_refused() -> None:
    complete = [[{"set": "1", "a": [1], "b": [1]}]]
    assert used(windowed(pairs, Synchronized(a=1, b=1, incomplete="drop")), "abaa") == [*complete, [], []]
    assert used(windowed(pairs, Synchronized(a=1, b=1, incomplete="error")), "ab") == complete
    with pytest.raises(OperatorFailed, match="'2' is incomplete: it has 1 of 3 events of port 'a' and 2 of 2 events"):
        used(windowed(pairs, Synchronized(a=3, b=2, incomplete="error")), "aaaabbbb")


def test_a_port_without_events_gives_a_table_with_its_columns_or_an_empty_one() -> None:
    seen: list[Any] = []

    @generate(inputs=("a", "b"))
    def note(a: pa.Table, b: pa.Table) -> None:
        seen.append((a.num_rows, a.column_names, b.num_rows, b.column_names))

    used(windowed(note, Synchronized(a=1, b=1)), "aba")
    used(windowed(note, Synchronized(a=1, b=1)), "a")
    assert seen == [(1, ["n"], 1, ["n"]), (1, ["n"], 0, ["n"]), (1, ["n"], 0, [])]


def test_ports_named_by_a_mapping() -> None:
    window = Synchronized({"ordered": 1, "received": 2}, ordered=True)
    assert window.ports() == ("ordered", "received")
    assert window.port_order() == ("ordered", "received", "received")
    assert Synchronized(a=1, b=1).port_order() == ()


def test_the_operator_takes_ports_and_their_order_from_function_and_window() -> None:
    operator = windowed(pairs, Synchronized(a=2, b=1, ordered=True))
    assert operator.inputs == ("a", "b")
    assert operator.port_order == ("a", "a", "b")
    assert operator.describe()["settings"]["window"] == {
        "window": "Synchronized",
        "counts": [["a", 2], ["b", 1]],
        "incomplete": "generate",
        "ordered": True,
    }


def test_counting_windows_take_events_of_several_ports_as_they_come() -> None:
    generated = used(windowed(pairs, EveryEvents(3)), "abbbb")
    assert generated == [[{"set": "1", "a": [1], "b": [1, 2]}], [{"set": "2", "a": [], "b": [3, 4]}]]


def test_a_read_is_restricted_by_the_keys_of_every_port_that_has_them() -> None:
    stores = pa.table({"n": [1, 2, 3], "city": ["x", "y", "z"]})

    @generate(inputs=("a", "b"), reads={"stores": TableRead("crm", "stores", key="n")})
    def looked_up(a: pa.Table, b: pa.Table, stores: pa.Table) -> pa.Table:
        return stores

    operator = windowed(looked_up, Synchronized(a=1, b=1))
    state = operator.initial_state()
    held: Any = None
    for one in (event("a", 1, 3, 2), event("b", 1, 2, 1)):
        held = operator.accumulate(held, operator.assign(one, state)["1"])
    external = FakeExternal(stores=stores)
    assert list(operator.generate(InputSet("1", held), state, external)) == [("out", stores)]
    assert [keys.to_pylist() for _, keys in external.reads] == [[1, 2, 3]]


def one_port(records: pa.Table) -> pa.Table:
    return records


def both(a: pa.Table, b: pa.Table) -> pa.Table:
    return a


@pytest.mark.parametrize(
    ("define", "words"),
    [
        (lambda: Synchronized(a=5), "at least two input ports"),
        (lambda: Synchronized(a=5, b=0), "Synchronized: b is 0"),
        (lambda: Synchronized(a=5, b=1, incomplete="dropp"), "Did you mean 'drop'"),
        (lambda: Synchronized({"A": 5, "b": 1}), "port name 'A' is not allowed"),
        (lambda: windowed(generate(one_port), Synchronized(a=1, b=1)), r"write @generate\(inputs=\('a', 'b'\)\)"),
        (lambda: windowed(pairs, Synchronized(a=1, c=1)), r"is for ports \['a', 'c'\]"),
        (lambda: windowed(pairs, Tumbling("1h", on="t")), "Tumbling is a window of one port"),
        (lambda: generate(inputs=("a", "c"))(both), "takes 'b', which nothing fills; it may take 'a', 'c'"),
        (lambda: generate(inputs=("a",))(lambda: None), "declares the input port 'a' but has no such parameter"),
        (lambda: generate(inputs=("a", "b"), mode="executors")(both), "mode='executors' is for the one table"),
        (lambda: generate(inputs=("a", "b"), accumulate=max)(both), "accumulate= is for the one table"),
        (lambda: generate(inputs=("a", "b"), columns=("n",))(both), "columns= is for the one table"),
        (lambda: generate(inputs=())(both), r"has inputs=\(\)"),
        (lambda: generate(inputs=("a", "state"))(lambda a, state: None), "'state' would have two meanings"),
        (lambda: generate(inputs="ab")(both), "is the single string 'ab'"),
    ],
)
def test_refusals(define: Any, words: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=words):
        define()
