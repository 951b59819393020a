"""Several generative functions of one operator (Example OP2), and Output Sets of any shape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airflow_logio.dataflow import (
    Count,
    EveryEvents,
    InputEvent,
    InputSet,
    Operator,
    ParquetSource,
    Pipeline,
    Sums,
    Synchronized,
    TableRead,
    Tumbling,
    generate,
    stateless,
)
from airflow_logio.dataflow.operators import StatefulOperator
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.values import Port
from tests.unit.dataflow.conftest import FakeExternal


@generate(accumulate=Sums(by=["item"], of=["amount"]))
def totals(sums: pa.Table, inset_id: str) -> pa.Table:
    return sums.append_column("batch", [[inset_id] * sums.num_rows])


@generate
def extremes(sales: pa.Table) -> pa.Table:
    return sales.group_by("item", use_threads=False).aggregate([("amount", "min"), ("amount", "max")])


@generate(outputs=("hours", "stores"), state_version=3)
def hourly(sales: pa.Table, window_start: datetime, state: Mapping[str, Any]) -> dict[str, pa.Table]:
    watermark = state["watermark"]
    return {"hours": pa.table({"hour": [window_start], "watermark": [watermark], "amount": [pc.sum(sales["amount"])]})}


HOURLY = Tumbling("1h", on="t")


def defined(functions: Any, window: Any = None, name: str = "op2") -> tuple[Pipeline, Operator]:
    pipeline = Pipeline("p")
    source = pipeline.source("src", ParquetSource("x"))
    node = pipeline.operator(name, functions, source, window=window)
    return pipeline, pipeline._definition.operators[node.name]


def sales(event_id: int, hour: int) -> InputEvent:
    table = pa.table(
        {
            "item": ["x", "y"],
            "amount": [event_id, 10 * event_id],
            "t": pa.array([datetime.fromisoformat(f"2024-01-01T{hour:02}:00")] * 2, pa.timestamp("us")),
        }
    )
    return InputEvent("in", event_id, table)


def run(operator: Operator, events: Iterable[InputEvent]) -> list[tuple[str, str, list[Any]]]:
    """(Input Set, port, rows) of every output event."""
    assert isinstance(operator, StatefulOperator)
    state = operator.initial_state()
    held: dict[str, Any] = {}
    outputs: list[tuple[str, str, list[Any]]] = []

    def generate_all(insets: Iterable[str]) -> None:
        for inset_id in insets:
            made = operator.generate(InputSet(inset_id, held.pop(inset_id)), state, FakeExternal())
            outputs.extend((inset_id, port, table.to_pylist()) for port, table in made)

    for event in events:
        for inset_id, part in operator.assign(event, state).items():
            assert repr(operator.part(event, inset_id)) == repr(part)
            held[inset_id] = operator.accumulate(held.get(inset_id), part)
        generate_all(operator.triggered(state, list(held)))
    generate_all(operator.flush(state, list(held)))
    return outputs


def test_two_functions_over_the_same_events() -> None:
    _, operator = defined({"totals": totals, "extremes": extremes}, EveryEvents(2))
    assert operator.outputs == ("totals", "extremes")
    generated = run(operator, [sales(n, 0) for n in (1, 2, 3)])
    assert generated == [
        ("totals:1", "totals", [{"item": "x", "amount": 3, "batch": "1"}, {"item": "y", "amount": 30, "batch": "1"}]),
        (
            "extremes:1",
            "extremes",
            [{"item": "x", "amount_min": 1, "amount_max": 2}, {"item": "y", "amount_min": 10, "amount_max": 20}],
        ),
        ("totals:2", "totals", [{"item": "x", "amount": 3, "batch": "2"}, {"item": "y", "amount": 30, "batch": "2"}]),
        (
            "extremes:2",
            "extremes",
            [{"item": "x", "amount_min": 3, "amount_max": 3}, {"item": "y", "amount_min": 30, "amount_max": 30}],
        ),
    ]


def test_each_function_with_a_window_and_ports_of_its_own() -> None:
    _, operator = defined({"totals": (totals, EveryEvents(3)), "by_hour": (hourly, HOURLY)})
    assert operator.outputs == ("totals", "hours", "stores")
    assert operator.reads_state and operator.state_version == 3
    generated = run(operator, [sales(1, 0), sales(2, 0), sales(3, 1)])
    assert [(inset, port) for inset, port, _ in generated] == [
        ("totals:1", "totals"),
        ("by_hour:2024-01-01T00:00", "hours"),
        ("by_hour:2024-01-01T01:00", "hours"),
    ]
    assert generated[1][2] == [
        {"hour": datetime.fromisoformat("2024-01-01"), "watermark": "2024-01-01T01:00", "amount": 33},
    ], "the state a function sees is that of its own window"


def test_input_sets_of_a_function_close_in_its_own_order() -> None:
    _, operator = defined({"totals": (totals, EveryEvents(3)), "by_hour": (hourly, HOURLY)})
    assert isinstance(operator, StatefulOperator)
    assert (operator.function("totals:12"), operator.order("totals:12")) == ("totals", 12)
    hour = "by_hour:2024-01-01T01:00"
    assert (operator.function(hour), operator.order(hour)) == ("by_hour", "2024-01-01T01:00")


def test_functions_of_different_ports() -> None:
    @generate(inputs=("a", "b"))
    def both(a: pa.Table, b: pa.Table) -> pa.Table:
        return pa.table({"rows": [a.num_rows, b.num_rows]})

    @generate(inputs=("a",))
    def only_a(a: pa.Table) -> pa.Table:
        return a

    pipeline = Pipeline("p")
    source = pipeline.source("src", ParquetSource("x"))
    window = Synchronized(a=1, b=1, ordered=True)
    node = pipeline.operator(
        "op", {"both": (both, window), "only_a": (only_a, EveryEvents(1))}, a=source, b=source, window=EveryEvents(9)
    )
    operator = pipeline._definition.operators["op"]
    assert (operator.inputs, operator.port_order) == (("a", "b"), ("a", "b"))
    generated = run(operator, [InputEvent(port, 1, pa.table({"n": [1]})) for port in ("a", "b")])
    assert generated == [("only_a:1", "only_a", [{"n": 1}]), ("both:1", "both", [{"rows": 1}, {"rows": 1}])]
    assert node.port("both") == Port("op", "both")


def test_the_fingerprint_knows_every_function() -> None:
    functions: Mapping[str, Any] = {"totals": (totals, EveryEvents(3)), "by_hour": (hourly, HOURLY)}
    settings = defined(functions)[1].describe()["settings"]["functions"]
    assert settings["totals"]["window"] == {"window": "EveryEvents", "count": 3}
    assert settings["by_hour"]["function"] == "hourly"
    other = defined({"totals": (totals, EveryEvents(4)), "by_hour": (hourly, HOURLY)})[1].describe()
    assert other != defined(functions)[1].describe()
    assert "def extremes" in defined({"extremes": extremes}, EveryEvents(1))[1].code()


@generate(mode="executors")
def in_spark(records: Any) -> Any:
    return records


@pytest.mark.parametrize(
    ("functions", "window", "words"),
    [
        ({}, EveryEvents(1), "no function is given"),
        ({"totals": totals}, None, r"'op2.totals' generates from Input Sets: give window="),
        ({"totals": (totals, 3)}, None, r"'op2.totals' generates from Input Sets: give window="),
        ({"totals": stateless(lambda table: None)}, EveryEvents(1), "no @generate function"),
        ({"a:b": totals}, EveryEvents(1), "function name 'a:b' is not allowed"),
        ({"jobs": in_spark}, EveryEvents(1), "Make it an operator of its own with the same upstream"),
        ({"hours": totals, "x": (hourly, HOURLY)}, EveryEvents(1), "two ports named 'hours'"),
    ],
)
def test_refusals(functions: Any, window: Any, words: str) -> None:
    with pytest.raises(PipelineDefinitionError, match=words):
        defined(functions, window)


def test_one_operator_has_one_order_over_its_ports() -> None:
    @generate(inputs=("a", "b"))
    def both(a: pa.Table, b: pa.Table) -> None: ...

    windows = [Synchronized(a=1, b=n, ordered=True) for n in (1, 2)]
    with pytest.raises(PipelineDefinitionError, match="'x' and 'y' declare different orders over the input ports"):
        defined({"x": (both, windows[0]), "y": (both, windows[1])})


def test_what_an_error_does_is_said_once_for_the_operator() -> None:
    aside = generate(on_error="quarantine", order_insensitive=True)(lambda records: records)
    failing = generate(order_insensitive=True)(lambda records: records)
    _, operator = defined({"x": aside, "y": aside}, EveryEvents(1))
    assert (operator.on_error, operator.order_insensitive) == ("quarantine", True)
    _, operator = defined({"x": failing, "y": extremes}, EveryEvents(1))
    assert (operator.on_error, operator.order_insensitive) == ("fail", False)
    with pytest.raises(
        PipelineDefinitionError, match="'x' and 'y' of one operator have on_error 'fail' and 'quarantine'"
    ):
        defined({"x": aside, "y": failing}, EveryEvents(1))


def test_connections_and_reads_are_those_of_all_functions() -> None:
    @generate(reads={"stores": TableRead("crm", "stores")})
    def reading(records: pa.Table, stores: pa.Table) -> pa.Table:
        return stores

    pipeline = Pipeline("p", connections=["crm"])
    source = pipeline.source("src", ParquetSource("x"))
    pipeline.operator("op", {"plain": totals, "reading": reading}, source, window=EveryEvents(1))
    operator: Any = pipeline._definition.operators["op"]
    assert operator.connections() == ("crm",)
    assert list(operator.reads) == ["reading.stores"]


# --- Output Sets of any shape -----------------------------------------------------------------------------------------

ONE, TWO, NONE = pa.table({"n": [1]}), pa.table({"n": [2, 2]}), pa.table({"n": pa.array([], pa.int64())})


def shaped(result: Any, outputs: tuple[str, ...]) -> list[tuple[str, int]]:
    """(port, records) of the events that a function's result makes."""

    @generate(outputs=outputs)
    def function(records: pa.Table) -> Any:
        return result

    pipeline, operator = defined(function, EveryEvents(1), "op")
    for port in operator.outputs:
        pipeline.sink(f"done_{port}", Count(), f"op.{port}")
    assert isinstance(operator, StatefulOperator)
    made = operator.generate(InputSet("1", [ONE]), {"events": 1}, FakeExternal())
    return [(port, table.num_rows) for port, table in made]


def many() -> Iterator[tuple[str, pa.Table]]:
    """Dynamic batching: as many events as the records are worth, in the order in which they are to be sent."""
    yield "b", ONE
    yield "a", TWO
    yield "a", NONE
    yield "b", TWO


@pytest.mark.parametrize(
    ("result", "outputs", "events"),
    [
        (None, ("a",), []),
        (NONE, ("a",), []),
        ({}, ("a", "b"), []),
        ([ONE, TWO, NONE, ONE], ("a",), [("a", 1), ("a", 2), ("a", 1)]),
        ({"b": [TWO, ONE], "a": ONE}, ("a", "b"), [("a", 1), ("b", 2), ("b", 1)]),
        ({"b": None, "a": []}, ("a", "b"), []),
        (many(), ("a", "b"), [("b", 1), ("a", 2), ("b", 2)]),
        ([("a", ONE)] * 70, ("a", "b"), [("a", 1)] * 70),
    ],
)
def test_output_sets(result: Any, outputs: tuple[str, ...], events: list[tuple[str, int]]) -> None:
    assert shaped(result, outputs) == events


def test_a_table_without_a_port_where_there_are_several() -> None:
    with pytest.raises(OperatorFailed, match=r"returned pyarrow\.Table; return a dict of port to table"):
        shaped(ONE, ("a", "b"))
    with pytest.raises(OperatorFailed, match=r"returned pyarrow\.Table for port None"):
        shaped([ONE], ("a", "b"))
