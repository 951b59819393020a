"""Decorated functions as operators, in both modes, without a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_logio.dataflow import (
    EveryEvents,
    FunctionRead,
    InputEvent,
    InputSet,
    ParquetSource,
    Sums,
    TableRead,
    Tumbling,
    generate,
    stateless,
)
from airflow_logio.dataflow.functions.function_operators import FunctionOperator
from airflow_logio.dataflow.functions.several_functions import SeveralFunctions
from airflow_logio.dataflow.functions.windowed_operators import BatchOperator, WindowedOperator, windowed
from airflow_logio.dataflow.operators import BatchGenerator
from airflow_logio.driver.logics.adapters import StepExternal
from airflow_logio.errors import OperatorFailed, PipelineDefinitionError
from airflow_logio.protocol.values import ExecutionMode
from airflow_logio.systems.connections import Connections, WriterIdentity
from tests.unit.dataflow.conftest import FakeExternal

PRODUCTS = TableRead("warehouse", "products", columns=("product", "department"), key="product")


def event(table: pa.Table, event_id: int = 1, port: str = "in") -> InputEvent:
    return InputEvent(port, event_id, table)


def run(function: Any, table: pa.Table, port: str = "in") -> list[tuple[str, list[Any]]]:
    operator = FunctionOperator(function)
    return [(name, t.to_pylist()) for name, t in operator.process(event(table, port=port), FakeExternal())]


def test_stateless() -> None:
    @stateless
    def double(table: pa.Table) -> pa.Table:
        """Twice."""
        return pa.table({"a": [2 * a for a in table["a"].to_pylist()]})

    assert run(double, pa.table({"a": [1, 2]})) == [("out", [{"a": 2}, {"a": 4}])]
    assert run(double, pa.table({"a": pa.array([], pa.int64())})) == [], "an output without records is not sent"
    assert double(pa.table({"a": [3]})).to_pydict() == {"a": [6]}, "authors test their function by calling it"
    assert (double.__name__, double.__doc__) == ("double", "Twice.")  # type: ignore[attr-defined]


def test_stateless_with_ports_and_columns() -> None:
    @stateless(inputs=("left", "right"), outputs=("odd", "even"), columns=("a",))
    def halves(table: pa.Table, port: str) -> Mapping[str, pa.Table | None]:
        assert table.column_names == ["a"]
        return {"even": table, "odd": pa.table({"port": [port]})}

    assert run(halves, pa.table({"b": [1], "a": [2]}), "right") == [("odd", [{"port": "right"}]), ("even", [{"a": 2}])]
    operator = FunctionOperator(halves)
    assert (operator.inputs, operator.outputs) == (("left", "right"), ("odd", "even"))
    with pytest.raises(OperatorFailed, match=r"'a' is needed; the records have \['aa'\]. Did you mean 'aa'"):
        run(halves, pa.table({"aa": [1]}))


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (1, "returned int; return an Arrow table"),
        ([1], "returned int for port 'out'"),
        ("out", "returned str; return an Arrow table"),
        ([("ouz", pa.table({}))], "returned pyarrow.Table for port 'ouz'"),
        ({"out": [pa.table({}), 3]}, "returned int for port 'out'"),
        ({"ouz": pa.table({})}, "returned pyarrow.Table for port 'ouz'"),
        ({"out": 3}, "returned int for port 'out'"),
    ],
)
def test_results_that_are_no_events(result: Any, words: str) -> None:
    with pytest.raises(OperatorFailed) as caught:
        run(stateless(lambda table: result), pa.table({"a": [1]}))
    assert words in str(caught.value)
    assert run(stateless(lambda table: None), pa.table({"a": [1]})) == []


def test_generate_gets_what_it_asks_for() -> None:
    @generate(mode="driver", reads={"products": PRODUCTS}, columns=("product",))
    def facts(
        records: pa.Table, inset_id: str, state: Mapping[str, Any], window_start: datetime, products: pa.Table
    ) -> pa.Table:
        return pa.table(
            {"rows": [records.num_rows], "id": [inset_id], "at": [window_start], "read": [products.num_rows]}
        )

    operator = windowed(facts, Tumbling("1h", on="t"))
    assert type(operator) is WindowedOperator
    assert operator.reads_state
    assert operator.connections() == ("warehouse",)
    state = operator.initial_state()
    times = pa.array([0, 1, 7_200_000_000], pa.timestamp("us"))
    drawn = event(pa.table({"product": [5, 3, 5], "t": times}))
    parts = operator.assign(drawn, state)
    assert {inset: part.to_pydict() for inset, part in parts.items()} == {
        "1970-01-01T00:00": {"product": [5, 3]},
        "1970-01-01T02:00": {"product": [5]},
    }
    assert operator.part(drawn, "1970-01-01T00:00").equals(parts["1970-01-01T00:00"])
    assert operator.triggered(state, list(parts)) == ["1970-01-01T00:00"]
    external = FakeExternal(products=pa.table({"product": [3, 5], "department": ["a", "b"]}))
    held = operator.accumulate(None, parts["1970-01-01T00:00"])
    ((port, table),) = operator.generate(InputSet("1970-01-01T00:00", held), state, external)
    assert port == "out"
    assert table.to_pylist() == [{"rows": 2, "id": "1970-01-01T00:00", "at": datetime(1970, 1, 1), "read": 2}]  # noqa: DTZ001
    assert [(read, keys.to_pylist()) for read, keys in external.reads] == [(PRODUCTS, [3, 5])]


def test_flush_closes_everything_in_order() -> None:
    operator = windowed(generate(lambda records: records), EveryEvents(2))
    assert operator.flush({"events": 3}, ["10", "2"]) == ["2", "10"]
    assert not operator.reads_state


@generate(mode="executors", reads={"products": PRODUCTS}, columns=("product",), many=True)
def joined(records: Any, products: Any) -> Any:
    return ("result of", records, products)


def test_executors_mode_batches_input_sets() -> None:
    operator = windowed(joined, Tumbling("1h", on="t"))
    assert isinstance(operator, BatchOperator)
    assert isinstance(operator, BatchGenerator)
    assert operator.mode is ExecutionMode.EXECUTORS
    assert operator.reads == {"products": PRODUCTS}
    sets = [
        InputSet("1970-01-01T00:00", [pa.table({"product": [1]}), pa.table({"product": [2]})]),
        InputSet("1970-01-01T02:00", [pa.table({"product": [3]})]),
    ]
    tagged = operator.tagged(sets)
    assert tagged["inset_id"].to_pylist() == [0, 0, 1]
    assert [start.hour for start in tagged["window_start"].to_pylist()] == [0, 0, 2]
    assert operator.run(tagged, {"products": "P", "other": "O"}) == ("result of", tagged, "P")
    split = operator.split(pa.table({"inset_id": [2, 0], "n": [7, 8]}), 3)
    assert [[(port, t.to_pydict()) for port, t in outs] for outs in split] == [
        [("out", {"n": [8]})],
        [],
        [("out", {"n": [7]})],
    ]
    with pytest.raises(OperatorFailed, match="runs in Spark jobs"):
        operator.generate(sets[0], {}, FakeExternal())


def test_accumulate_replaces_the_list_of_tables() -> None:
    @generate(accumulate=lambda held, table: (held or 0) + table.num_rows, finish=lambda held: {"rows": held})
    def count(held: Any) -> pa.Table:
        return pa.table({"rows": [held["rows"]]})

    operator = windowed(count, EveryEvents(10))
    held = operator.accumulate(operator.accumulate(None, pa.table({"a": [1, 2]})), pa.table({"a": [3]}))
    assert held == 3
    ((_, table),) = operator.generate(InputSet("1", held), {}, FakeExternal())
    assert table.to_pydict() == {"rows": [3]}


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(-9, 9)), max_size=8), min_size=1, max_size=8))
def test_sums_are_incremental(batches: list[list[tuple[int, int]]]) -> None:
    sums, held = Sums(by=("k",), of=("v",)), None
    expected: dict[int, int] = {}
    for batch in batches:
        columns = {"x": [0] * len(batch), "v": [v for _, v in batch], "k": [k for k, _ in batch]}
        held = sums(held, pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()}))
        for k, v in batch:
            expected[k] = expected.get(k, 0) + v
    assert held is not None
    once = sums.finish(held)
    assert once.column_names == ["k", "v"]
    assert dict(zip(once["k"].to_pylist(), once["v"].to_pylist(), strict=True)) == expected
    assert once["k"].to_pylist() == sorted(expected)
    assert sums.finish(held).equals(once), "a generation that is tried again sees the same"


def test_sums_hold_little() -> None:
    sums, held = Sums(by=("k",), of=("v",)), None
    part = pa.table({"k": pa.array([i % 10 for i in range(1000)]), "v": pa.array([1] * 1000)})
    for _ in range(100):
        held = sums(held, part)
        assert held.rows <= 18_000
    assert held is not None
    assert sums.finish(held)["v"].to_pylist() == [10_000] * 10


def bare(records: Any) -> Any: ...
def with_extra(records: Any, prodcts: Any) -> Any: ...
def keywords_only(*, records: Any) -> Any: ...
def with_read(records: Any, products: Any) -> Any: ...
def with_id(records: Any, inset_id: str) -> Any: ...


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: generate(mode="executor")(bare), "mode 'executor' is not one of"),
        (lambda: generate(mode="executor")(bare), "Did you mean 'executors'?"),
        (lambda: generate(reads={"products": PRODUCTS})(with_extra), "takes 'prodcts', which nothing fills"),
        (lambda: generate(reads={"products": PRODUCTS})(with_extra), "Did you mean 'products'?"),
        (
            lambda: generate(reads={"products": PRODUCTS})(bare),
            "declares the read 'products' but has no such parameter",
        ),
        (
            lambda: generate(reads={"state": PRODUCTS})(lambda r, state: r),
            "must be a TableRead or FunctionRead, and no word of",
        ),
        (lambda: generate(reads={"products": 3})(with_read), "must be a TableRead"),  # type: ignore[dict-item]
        (lambda: generate(reads={"products": PRODUCTS}, columns=("a",))(with_read), "key 'product'"),
        (lambda: generate(keywords_only), "'keywords_only' needs a first parameter"),
        (lambda: stateless(lambda: None), "needs a first parameter"),
        (lambda: stateless(with_id), "takes 'inset_id', which nothing fills"),
        (lambda: generate(mode="executors", many=True)(with_id), "takes 'inset_id', which nothing fills"),
        (lambda: generate(many=True)(bare), "has many=True and mode 'driver'"),
        (lambda: generate(mode="executors", accumulate=max)(bare), "no accumulate="),
        (lambda: generate(mode="executors", outputs=("a", "b"))(bare), "one output port"),
        (lambda: generate(finish=max)(bare), "finish= without accumulate="),
        (lambda: generate(columns="abc")(bare), "columns is the single string 'abc'"),
        (lambda: generate(columns=("a", "a"))(bare), "column 'a' is named twice"),
        (lambda: stateless(outputs="out")(bare), "ports is the single string 'out'"),
        (lambda: stateless(outputs=("Out",))(bare), "port name 'Out' is not allowed"),
        (lambda: windowed(generate(lambda r, window_start: r), EveryEvents(3)), "EveryEvents(count=3) does not have"),
        (lambda: Sums(by=("a",), of=("a",)), "none in both"),
        (lambda: Sums(by=(), of=("a",)), "name columns in both"),
        (lambda: TableRead("Warehouse", "t"), "connection name 'Warehouse' is not allowed"),
        (lambda: TableRead("warehouse", "t.u.drop"), "table name 't.u.drop' is not allowed"),
        (lambda: TableRead("warehouse", "t", ("a\n",)), "column name 'a\\n' is not allowed"),
        (lambda: TableRead("warehouse", "t", ("a",), key="b"), "has key 'b', which is not among its columns"),
    ],
)
def test_refused_at_definition(build: Any, words: str) -> None:
    with pytest.raises(PipelineDefinitionError) as caught:
        build()
    assert words in str(caught.value)


def test_read_restricted_by_a_column_the_records_do_not_have() -> None:
    operator = windowed(generate(reads={"products": PRODUCTS})(with_read), EveryEvents(1))
    with pytest.raises(OperatorFailed, match="restricted by 'product', not a column of the records"):
        operator.generate(InputSet("1", [pa.table({"a": [1]})]), {}, FakeExternal())


def test_a_function_may_ask_for_the_event_ids_of_its_input_set() -> None:
    @generate
    def traced(records: pa.Table, event_ids: list[int]) -> pa.Table:
        return pa.table({"n": [records.num_rows], "ids": [event_ids]})

    operator = windowed(traced, EveryEvents(2))
    state, held = operator.initial_state(), None
    for number in (7, 8):
        ((inset, part),) = operator.assign(event(pa.table({"a": [1]}), number), state).items()
        assert operator.part(event(pa.table({"a": [1]}), number), inset) == part, "a recovery rebuilds the same"
        held = operator.accumulate(held, part)
    ((_, made),) = operator.generate(InputSet("1", held), state, FakeExternal())
    assert made.to_pylist() == [{"n": 2, "ids": [7, 8]}]


def test_event_ids_of_several_ports_and_of_one_event() -> None:
    @generate(inputs=("a", "b"))
    def both(a: pa.Table, b: pa.Table, event_ids: Mapping[str, list[int]]) -> pa.Table:
        return pa.table({"a": [event_ids["a"]], "b": [event_ids["b"]]})

    operator = windowed(both, EveryEvents(2))
    state, held = operator.initial_state(), None
    for number in (3, 4):
        ((_, part),) = operator.assign(event(pa.table({"x": [1]}), number, "b"), state).items()
        held = operator.accumulate(held, part)
    ((_, made),) = operator.generate(InputSet("1", held), state, FakeExternal())
    assert made.to_pylist() == [{"a": [], "b": [3, 4]}]

    @stateless
    def one(table: pa.Table, event_ids: list[int]) -> pa.Table:
        return table.append_column("event", pa.array(event_ids * table.num_rows))

    assert run(one, pa.table({"a": [5]})) == [("out", [{"a": 5, "event": 1}])]


# --- run parameters -----------------------------------------------------------------------------------------------------

ONE_TABLE = pa.table({"a": [1, 2]})


def scaled(table: pa.Table, rate: Any) -> pa.Table:
    return pa.table({"a": [rate * a for a in table["a"].to_pylist()]})


def test_a_function_that_takes_params_gets_those_of_the_run() -> None:
    assert run(stateless(lambda table, params: scaled(table, params["rate"])), ONE_TABLE) == [
        ("out", [{"a": 3}, {"a": 6}])
    ]
    assert run(stateless(lambda table, params=None: scaled(table, params["rate"])), ONE_TABLE), "a default is not used"
    operator = windowed(generate(lambda table, params, inset_id: scaled(table, params["rate"])), EveryEvents(1))
    (output,) = operator.generate(InputSet("1", [ONE_TABLE]), {"events": 1}, FakeExternal())
    assert output == ("out", pa.table({"a": [3, 6]}))


def test_of_several_functions_each_may_take_params() -> None:
    window = EveryEvents(1)
    operator = SeveralFunctions(
        {
            "plain": windowed(generate(lambda table: table), window),
            "scaled": windowed(generate(lambda table, params: scaled(table, params["rate"])), window),
        }
    )
    given = InputSet("scaled:1", ("scaled", [ONE_TABLE]))
    assert list(operator.generate(given, {"scaled": {"events": 1}}, FakeExternal())) == [
        ("scaled", pa.table({"a": [3, 6]}))
    ]


def test_a_function_of_a_spark_job_may_take_params() -> None:
    operator = windowed(generate(mode="executors")(lambda records, params: (records, params["rate"])), EveryEvents(1))
    assert isinstance(operator, BatchGenerator)
    assert operator.run_with("frame", {}, FakeExternal.params) == ("frame", 3)
    without = windowed(generate(mode="executors")(lambda records: records), EveryEvents(1))
    assert isinstance(without, BatchGenerator)
    assert without.run_with("frame", {}, FakeExternal.params) == "frame"


def test_params_cannot_be_changed() -> None:
    connections = Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0, params={"rate": 3})
    with pytest.raises(TypeError):
        StepExternal("op", FunctionOperator(stateless(lambda t: t)), connections).params["rate"] = 4  # type: ignore[index]


def test_what_is_called_params_has_one_meaning() -> None:
    with pytest.raises(PipelineDefinitionError, match="params"):
        generate(lambda table, params: table, reads={"params": PRODUCTS})  # type: ignore[call-overload]
    with pytest.raises(PipelineDefinitionError, match="two meanings"):
        generate(inputs=("params", "other"))(lambda params, other: None)


def test_reads_and_transforms_may_take_params(tmp_path: Path) -> None:
    connections = Connections("p", {"api": "u"}, WriterIdentity("run", 1, 0.0), 1.0, params={"rate": 3})
    read = FunctionRead("api", lambda url, keys, params: scaled(ONE_TABLE, params["rate"]))
    assert connections.read(read, None) == pa.table({"a": [3, 6]})
    pq.write_table(ONE_TABLE, tmp_path / "a.parquet")
    source = ParquetSource(str(tmp_path / "a.parquet"), transform=lambda t, params: scaled(t, params["rate"]))
    params = {"rate": 3}
    assert [batch.table for batch in source.read(params, source.action(params), 0)] == [pa.table({"a": [3, 6]})]
