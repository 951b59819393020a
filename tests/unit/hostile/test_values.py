"""Values that their type cannot have, which Arrow makes and passes on without a word: refused where they are handed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio.dataflow import ParquetSource
from airflow_logio.dataflow.arrow_tables import check_values, needed_table
from airflow_logio.dataflow.operators import (
    BatchGenerator,
    External,
    InputEvent,
    PortTable,
    SourceBatch,
    StatelessOperator,
)
from airflow_logio.driver.logics.adapters import StatelessLogic
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.systems.arrow import decode, digest_of, encode
from airflow_logio.systems.connections import Connections, WriterIdentity

CONNECTIONS = Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0)

UTF8 = "it is not UTF-8. Decode the bytes with the encoding that they have, or keep them as binary"


def column(kind: pa.DataType, length: int, *buffers: bytes | None) -> pa.Array:
    return pa.Array.from_buffers(kind, length, [None if one is None else pa.py_buffer(one) for one in buffers])


def numbers(*values: int, kind: Any = np.int32) -> bytes:
    return np.array(values, kind).tobytes()


def whole(value: int, width: int) -> bytes:
    return value.to_bytes(width, "little", signed=True)


STRING = pa.string()


def text(kind: pa.DataType = STRING) -> pa.Array:
    """``a``, and a byte of Latin-1."""
    return column(kind, 2, None, numbers(0, 1, 2, kind=np.int64 if kind == pa.large_string() else np.int32), b"a\xe9")


BAD: dict[str, tuple[Callable[[], pa.Array], int, str]] = {
    "text": (text, 1, UTF8),
    "large text": (lambda: text(pa.large_string()), 1, UTF8),
    "a view of text": (lambda: column(pa.string_view(), 1, b"\x01", b"\x02\0\0\0a\xff" + bytes(10)), 0, UTF8),
    "a letter cut in two": (lambda: column(pa.string(), 3, None, numbers(0, 1, 2, 3), "aé".encode()), 1, UTF8),
    "text in a dictionary": (lambda: pa.DictionaryArray.from_arrays(pa.array([0, 0, 1]), text()), 2, UTF8),
    "text in a slice": (lambda: pa.ListArray.from_arrays(numbers_of(0, 1, 1, 2), text()).slice(1), 1, UTF8),
    "text in lists of structs": (lambda: lists_of_structs(0, 0, 1, 2), 2, UTF8),
    "text in a list": (lambda: pa.ListArray.from_arrays(numbers_of(0, 1, 2), text()), 1, UTF8),
    "text in a struct": (lambda: pa.StructArray.from_arrays([text()], names=["x"]), 1, UTF8),
    "text in a map": (lambda: pa.MapArray.from_arrays(numbers_of(0, 1, 2), pa.array([1, 2]), text()), 1, UTF8),
    "text as JSON": (lambda: pa.ExtensionArray.from_storage(pa.json_(), text()), 1, UTF8),
    "decimal": (lambda: column(pa.decimal128(3, 1), 2, None, whole(5, 16) + whole(-12345, 16)), 1, "larger precision"),
    "wide decimal": (lambda: column(pa.decimal256(3, 1), 1, None, whole(12345, 32)), 0, "larger precision"),
    "narrow decimal": (lambda: column(pa.decimal32(3, 1), 1, None, whole(12345, 4)), 0, "larger precision"),
    "24:00": (lambda: column(pa.time32("s"), 2, None, numbers(0, 86_400)), 1, "ends before 24:00"),
    "24:00 in ms": (lambda: column(pa.time32("ms"), 1, None, numbers(86_400_000)), 0, "ends before 24:00"),
    "before 0:00": (lambda: column(pa.time64("us"), 1, None, numbers(-1, kind=np.int64)), 0, "ends before 24:00"),
    "24:00 in ns": (lambda: column(pa.time64("ns"), 1, None, whole(86_400 * 10**9, 8)), 0, "ends before 24:00"),
    "half a day": (lambda: column(pa.date64(), 1, None, whole(43_200_000, 8)), 0, "whole number of days"),
    "an index beyond": (
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, 5]), ["a"], safe=False),
        1,
        "out of bounds",
    ),
    "an index before": (lambda: pa.DictionaryArray.from_arrays(pa.array([-1]), ["a"], safe=False), 0, "out of bounds"),
    "an offset that goes back": (lambda: column(pa.string(), 2, None, numbers(0, -1, 1), b"a"), 0, "Offset invariant"),
    "an offset beyond": (lambda: column(pa.binary(), 2, None, numbers(0, 9, 3), b"abc"), 0, "Offset invariant"),
    "a list beyond": (lambda: lists(0, 5, 2), 0, "ffset"),
    "a list that goes back": (lambda: lists(0, 1, 2, 1), 2, "ffset"),
}


def lists_of_structs(*offsets: int) -> pa.Array:
    return pa.ListArray.from_arrays(numbers_of(*offsets), pa.StructArray.from_arrays([text()], names=["x"]))


def numbers_of(*values: int) -> pa.Array:
    return pa.array(values, pa.int32())


def lists(*offsets: int) -> pa.Array:
    buffers = [None, pa.py_buffer(numbers(*offsets))]
    return pa.Array.from_buffers(pa.list_(pa.int64()), len(offsets) - 1, buffers, children=[pa.array([1, 2])])


@pytest.mark.parametrize("what", BAD)
def test_a_value_that_its_type_cannot_have_is_refused_with_column_and_row(what: str) -> None:
    made, place, why = BAD[what]
    table = pa.table({"n": pa.nulls(len(made())), "né": made()})
    with pytest.raises(OperatorFailed) as refused:
        needed_table(table, "the operator")
    said = f"the operator returned values that are none: column 'né', row {place} (counted from 0): "
    assert str(refused.value).startswith(said) and why in str(refused.value)


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_the_row_is_the_one_in_the_whole_table(rows: int) -> None:
    """Wherever it lies among the rows, and in which piece of the column."""
    good = pa.array(["ä"] * rows)
    table = pa.table({"s": pa.chunked_array([good, pa.array([], pa.string()), text(), good, text()])})
    with pytest.raises(OperatorFailed, match=rf"lake/a\.parquet has .* column 's', row {7 + rows + 1:,} "):
        check_values(table, "lake/a.parquet has", 7)


def test_what_is_under_a_null_is_no_value() -> None:
    """Nothing reads it, and Arrow's own functions leave anything there."""
    hidden = column(pa.string(), 2, b"\x01", numbers(0, 1, 2), b"a\xff")
    table = pa.table({"s": hidden})
    assert decode("event 1", encode(needed_table(table, "it"))).to_pydict() == {"s": ["a", None]}


def test_every_value_that_a_type_has_passes() -> None:
    """At the edges: what was logged before is logged now."""
    table = pa.table(
        {
            "s": ["", "\0", "\U0010ffff"],
            "d": pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38), None], pa.decimal128(38, 0)),
            "t": pa.array([0, 86_399, None], pa.time32("s")),
            "at": pa.array([-(2**63), 2**63 - 1, None], pa.timestamp("us")),
            "day": pa.array([-(2**31), 2**31 - 1, None], pa.date32()),
            "f": [float("nan"), float("-inf"), None],
            "b": [b"\xff", b"", None],
        }
    )
    found = decode("event 1", encode(needed_table(table, "it")))
    assert digest_of(found) == digest_of(table)


# --- where they are handed over ---------------------------------------------------------------------------------------


def test_a_source_that_hands_them_over_is_refused() -> None:
    with pytest.raises(OperatorFailed, match=r"the source returned values that are none: column 's', row 1 "):
        SourceBatch(pa.table({"s": text()}), 2)
    with pytest.raises(OperatorFailed, match="the source returned values that are none"):
        SourceBatch(pa.RecordBatch.from_arrays([text()], names=["s"]), 2)


@pytest.mark.parametrize("transform", [None, lambda table: table.append_column("n", pa.array(range(table.num_rows)))])
def test_a_parquet_file_is_named_with_row_and_column(tmp_path: Path, transform: Any) -> None:
    """Neither the reader of Parquet nor its writer looks at text. What comes before that row is an event as ever."""
    path = tmp_path / "names.parquet"
    good = pa.array(["ok"] * 10)
    pq.write_table(pa.table({"s": pa.chunked_array([good, good, text()])}), path)
    source = ParquetSource(str(path), records_per_event=10, transform=transform)
    read = source.read({}, source.action({}), 0)
    assert [next(read).next_offset, next(read).next_offset] == [10, 20]
    with pytest.raises(
        OperatorFailed, match=r"names\.parquet has .* column 's', row 21 \(counted from 0\): it is not UTF-8"
    ):
        next(read)


def test_a_transform_of_a_source_may_mend_them(tmp_path: Path) -> None:
    """It gets what is in the file, and knows the encoding."""
    path = tmp_path / "names.parquet"
    pq.write_table(pa.table({"s": text()}), path)

    def decoded(table: pa.Table) -> pa.Table:
        raw = table["s"].cast(pa.binary()).to_pylist()
        return pa.table({"s": [value.decode("latin-1") for value in raw]})

    source = ParquetSource(str(path), transform=decoded)
    (batch,) = source.read({}, source.action({}), 0)
    assert batch.table.to_pydict() == {"s": ["a", "é"]}


def test_a_function_that_returns_them_is_refused_with_operator_port_and_event() -> None:
    class Latin(StatelessOperator):
        def process(self, event: InputEvent, external: External) -> Iterable[PortTable]:
            return [("out", pa.table({"s": text()}))]

    logic = StatelessLogic("p", "latin", Latin(), CONNECTIONS)
    event = Event(Port("orders", "out"), 3, Kind.DATA, 1, pa.table({"n": [1]}))
    with pytest.raises(OperatorFailed) as refused:
        list(logic.generate("3", ("in", event), {}))
    said = "pipeline 'p', operator 'latin', port 'in', event 3 of orders.out, Input Set '3': "
    said += "the operator, for output port 'out', returned "
    assert str(refused.value).startswith(
        said + "values that are none: column 's', row 1 (counted from 0): it is not UTF-8"
    )


def test_a_function_of_executors_that_returns_them_is_refused() -> None:
    """Spark casts any bytes to a string, and hands them over as they are."""

    class Cast(BatchGenerator):
        def run(self, tagged: Any, reads: Any) -> Any:
            return tagged

    tagged = pa.table({"inset_id": [0, 1], "s": text()})
    with pytest.raises(OperatorFailed, match=r"the Spark function returned values that are none: column 's', row 1 "):
        Cast().split(tagged, 2)
