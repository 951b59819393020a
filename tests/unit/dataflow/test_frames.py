"""What functions may return instead of an Arrow table: frames of pandas and polars, and what is refused by its name."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import EveryEvents, FunctionRead, ParquetSource, SourceBatch, generate, stateless
from airflow_logio.dataflow.arrow_tables import as_table
from airflow_logio.dataflow.functions.function_operators import FunctionOperator
from airflow_logio.dataflow.functions.windowed_operators import windowed
from airflow_logio.dataflow.operators import External, InputEvent, InputSet, StatelessOperator
from airflow_logio.driver.logics.adapters import StatelessLogic, StepExternal
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.systems.connections import Connections, WriterIdentity

at = dt.datetime.fromisoformat

COLUMNS: dict[str, list[Any]] = {
    "store": ["a", None],
    "revenue": [1.5, 2.5],
    "at": [at("2026-01-01T12:00"), at("2026-01-02T00:00")],
    "tags": [["x"], ["y", "z"]],
}
TABLE = pa.table(COLUMNS)
FRAMES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "polars": lambda: pl.DataFrame(COLUMNS),
}
CONNECTIONS = Connections("p", {"api": "http://api"}, WriterIdentity("run", 1, 0.0), 1.0)


@pytest.mark.parametrize("library", FRAMES)
def test_a_frame_is_the_table_with_the_same_records_and_the_types_of_a_source(library: str) -> None:
    assert as_table(FRAMES[library]()) == TABLE
    assert as_table(FRAMES[library]()).schema == TABLE.schema  # type: ignore[union-attr]


def test_categories_and_times_are_as_from_a_source() -> None:
    times = (
        pd.to_datetime(["2026-01-01 12:00", "2026-01-02 00:00"])
        .tz_localize("Europe/Berlin")
        .astype("datetime64[ns, Europe/Berlin]")
    )
    frame = pd.DataFrame({"kind": pd.Categorical(["a", "b"]), "at": times})
    expected = pa.table({"kind": ["a", "b"], "at": [at("2026-01-01T11:00"), at("2026-01-01T23:00")]})
    assert as_table(frame) == expected
    categories = pl.DataFrame({"kind": ["a", "b"]}, schema={"kind": pl.Categorical})
    assert as_table(categories) == expected.select(["kind"])


def test_a_named_index_of_pandas_is_a_column_and_any_other_is_dropped() -> None:
    frame = pd.DataFrame({"store": [1, 1, 2], "revenue": [1.0, 2.0, 4.0]})
    assert as_table(frame.groupby("store").sum()) == pa.table({"store": [1, 2], "revenue": [3.0, 4.0]})
    assert as_table(frame[frame["store"] == 2]) == pa.table({"store": [2], "revenue": [4.0]})


def test_what_arrow_has_no_types_for_is_refused_with_the_column() -> None:
    with pytest.raises(OperatorFailed, match=r"a pandas DataFrame cannot be made an Arrow table: .*mixed"):
        as_table(pd.DataFrame({"mixed": [1, "a", object()]}))


# --- where functions return tables --------------------------------------------------------------------------------------


def outputs(function: Any) -> list[tuple[str, pa.Table]]:
    return list(FunctionOperator(function).process(InputEvent("in", 1, TABLE), StepExternal("op", None, CONNECTIONS)))  # type: ignore[arg-type]


@pytest.mark.parametrize("library", FRAMES)
def test_functions_of_an_event_may_return_frames(library: str) -> None:
    made = FRAMES[library]
    assert outputs(stateless(lambda records: made())) == [("out", TABLE)]
    several = stateless(outputs=("a", "b"))(lambda records: {"b": [made(), made()], "a": made()})
    assert outputs(several) == [("a", TABLE), ("b", TABLE), ("b", TABLE)]
    assert outputs(stateless(lambda records: [made(), ("out", made())])) == [("out", TABLE)] * 2
    assert outputs(stateless(lambda records: made()[:0])) == [], "an empty one is not sent"


@pytest.mark.parametrize("library", FRAMES)
def test_functions_of_an_input_set_may_return_frames(library: str) -> None:
    operator = windowed(generate(lambda records: FRAMES[library]()), EveryEvents(1))
    given = InputSet("1", [TABLE])
    assert list(operator.generate(given, {"events": 1}, StepExternal("op", operator, CONNECTIONS))) == [("out", TABLE)]


@pytest.mark.parametrize("library", FRAMES)
def test_operators_sources_reads_and_writers_may_use_frames(library: str, tmp_path: Path) -> None:
    class Copied(StatelessOperator):
        def writes(self) -> dict[str, str | None]:
            return {"api": "idempotent"}

        def process(self, event: InputEvent, external: External) -> Any:
            external.write("api", FRAMES[library]())
            yield "out", FRAMES[library]()

    logic = StatelessLogic("p", "op", Copied(), CONNECTIONS)
    event = Event(Port("s", "out"), 1, Kind.DATA, 2, payload=TABLE)
    write, sent = logic.generate("1", ("in", event), {})
    assert write.payload == TABLE
    assert isinstance(sent, Emit) and (sent.payload, sent.records) == (TABLE, 2)

    assert SourceBatch(FRAMES[library](), 2).table == TABLE
    assert CONNECTIONS.read(FunctionRead("api", lambda url, keys: FRAMES[library]()), None) == TABLE
    pq.write_table(TABLE, tmp_path / "a.parquet")
    source = ParquetSource(str(tmp_path / "a.parquet"), transform=lambda records: FRAMES[library]())
    assert [batch.table for batch in source.read({}, source.action({}), 0)] == [TABLE]


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "lazy": (lambda: pl.DataFrame(COLUMNS).lazy(), r"returned polars\.LazyFrame \(call \.collect\(\) on it\)"),
    "series": (lambda: pd.Series([1, 2], name="n"), r"returned pandas\.Series \(make a frame of it: \.to_frame\(\)\)"),
    "number": (lambda: 7, "returned int"),
    "text": (lambda: "a", "returned str"),
    "array": (lambda: pa.array([1]), r"returned pyarrow\.Int64Array"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_else_is_refused_by_the_name_of_its_type(what: str) -> None:
    made, words = REFUSED[what]
    with pytest.raises(OperatorFailed, match=words):
        outputs(stateless(lambda records: made()))
    with pytest.raises(OperatorFailed, match=words):
        CONNECTIONS.read(FunctionRead("api", lambda url, keys: made()), None)
    with pytest.raises(OperatorFailed, match="returned"):
        outputs(stateless(lambda records: {"out": [made(), 7]}))


def test_an_operator_of_its_own_that_yields_something_else_is_told() -> None:
    class Odd(StatelessOperator):
        def process(self, event: InputEvent, external: External) -> Any:
            yield "out", pl.DataFrame(COLUMNS).lazy()

    logic = StatelessLogic("p", "op", Odd(), CONNECTIONS)
    event = Event(Port("s", "out"), 1, Kind.DATA, 2, payload=TABLE)
    with pytest.raises(
        OperatorFailed,
        match=r"port 'in', event 1 of s\.out.*: the operator, for output port 'out', returned polars\.LazyFrame",
    ):
        list(logic.generate("1", ("in", event), {}))


def test_addresses_of_python_objects_are_no_data() -> None:
    """polars gives them to Arrow as eight bytes each, without a word."""
    frame = pl.DataFrame({"many": [{1, 2}]}, schema={"many": pl.Object})

    with pytest.raises(
        OperatorFailed, match=r"column 'many' of Python objects, .*; make it text, a number, or a struct"
    ):
        as_table(frame)
