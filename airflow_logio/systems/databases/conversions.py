"""Records of write actions as columns of declared types: the same values, or refused by action, row and column.

Arrow converts some values with a loss and without a word (a decimal to a double, 5 to true, a time to its date). Here a
value is converted only if nothing is lost.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.databases.sql_types import arrow_type, kind_of_records

_FAILURES = (pa.ArrowException, ValueError, OverflowError, RecursionError)
_YEARS_1_TO_9999 = {
    pa.timestamp("us"): (-62_135_596_800 * 10**6, 253_402_300_800 * 10**6 - 1),
    pa.date32(): (-719_162, 2_932_896),
}
_UUID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"

Check = Callable[[pa.ChunkedArray], None]


def nothing(_: pa.ChunkedArray) -> None:
    """Every value is kept."""


class Target(NamedTuple):
    """A column that values go into."""

    kind: ColumnType | None
    """None: of a type that this package does not know; values stay as the records have them."""
    check: Check = nothing
    """Raises ValueError for a value that the column would change."""

    def __str__(self) -> str:
        return "" if self.kind is None else f" ({self.kind})"


def as_declared(table: str, targets: Mapping[str, Target], actions: Sequence[WriteAction]) -> pa.Table:
    """The records of the actions, those of the first one first, with the columns and types of `targets`.

    Raises `WriteRefused`, naming table, column, write action and row.
    """
    for action in actions:
        _check_names(table, list(targets), action)
    columns = {}
    for name, target in targets.items():
        try:
            columns[name] = converted(_whole(name, actions, target.kind), target)
        except _FAILURES as error:
            raise WriteRefused(f"{_place(table, name, target, actions)}: {_told(error)}") from error
    return pa.table(columns)


def row_of(row: int, actions: Sequence[WriteAction]) -> str:
    """Where a row of all records of the actions, counted from 0, stands: write action, and row in its records."""
    for action in actions:
        if row < action.records.num_rows:
            return f"write action {action.number}, row {action.first_row + row} (counted from 0)"
        row -= action.records.num_rows
    raise IndexError(row)


def _check_names(table: str, columns: Sequence[str], action: WriteAction) -> None:
    found = action.records.schema.names
    if missing := [name for name in columns if name not in found]:
        problem = f"have no column {missing[0]!r}"
    elif unknown := [name for name in found if name not in columns]:
        problem = f"have column {unknown[0]!r}"
    else:
        return
    raise WriteRefused(
        f"records for table {table!r}, write action {action.number}, {problem}: they have {found}, and the table "
        f"{columns}"
    )


def _whole(name: str, actions: Sequence[WriteAction], kind: ColumnType | None) -> pa.ChunkedArray:
    """One column of all actions; where its types differ, each is converted by itself."""
    columns = [action.records.column(name) for action in actions]
    if kind is not None and len({column.type for column in columns}) > 1:
        columns = [_cast(column, kind) for column in columns]
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)


def _place(table: str, name: str, target: Target, actions: Sequence[WriteAction]) -> str:
    """Where a conversion fails: found by halves, of the first action that has such a value."""
    where = f"records for table {table!r}, column {name!r}{target}"
    for action in actions:
        column = action.records.column(name)
        if _fails(column, target):
            first, last = 0, len(column)
            while last - first > 1:
                middle = (first + last) // 2
                if _fails(column.slice(first, middle - first), target):
                    last = middle
                else:
                    first = middle
            return f"{where}, write action {action.number}, row {action.first_row + first} (counted from 0)"
    return where


def _fails(column: pa.ChunkedArray, target: Target) -> bool:
    try:
        converted(column, target)
    except _FAILURES:
        return True
    return False


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())


# --- one column -------------------------------------------------------------------------------------------------------


def converted(column: pa.ChunkedArray, target: Target) -> pa.ChunkedArray:
    """Raises ValueError, or an error of Arrow, for a value that would not come back as it was."""
    values = column if target.kind is None else _cast(column, target.kind)
    refuse_far_times(values)
    target.check(values)
    return values


def _cast(column: pa.ChunkedArray, kind: ColumnType) -> pa.ChunkedArray:
    found, wanted = column.type, arrow_type(kind)
    if isinstance(found, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], found.storage_type)
    elif pa.types.is_dictionary(found):
        column = column.cast(found.value_type)
    found = column.type
    _refuse_types(found, kind)
    if special := _SPECIAL.get(kind.name):
        return special(column, wanted)
    converted = column.cast(wanted)
    if (pa.types.is_timestamp(found) and kind.name == "date") or (
        kind.name == "boolean" and kind_of_records(found) in (ColumnType("bigint"), ColumnType("double"))
    ):
        _refuse_other(column, converted.cast(found))
    return converted


def _refuse_types(found: pa.DataType, kind: ColumnType) -> None:
    if kind.name == "double" and pa.types.is_decimal(found):
        raise ValueError(
            f"a {found} does not fit into a double without loss; declare decimal(p,s), or cast it before the writer"
        )
    if kind.name == DECIMAL and pa.types.is_floating(found):
        raise ValueError(f"a {found} is no exact decimal; round and cast it to decimal128 before the writer")
    if kind.name in ("json", "uuid") and not _is_one_of(found, kind):
        raise ValueError(
            f"{found} is no {kind}; make it {'text' if kind.name == 'json' else 'text or 16 bytes'} before the writer"
        )


def _is_one_of(found: pa.DataType, kind: ColumnType) -> bool:
    is_text = pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_null(found)
    return is_text or (kind.name == "uuid" and (found == pa.binary(16) or pa.types.is_binary(found)))


def _refuse_other(before: pa.ChunkedArray, after: pa.ChunkedArray) -> None:
    if pc.any(pc.not_equal(before, after)).as_py():
        raise ValueError(f"a {before.type} that loses a part of it")


def _to_decimal(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Arrow refuses integers by their type, not by their value."""
    if pa.types.is_integer(column.type):
        column = column.cast(pa.decimal128(20, 0))
    return column.cast(wanted)


def _to_uuid(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """In the form in which PostgreSQL gives it back: lower case, with hyphens."""
    if not pa.types.is_null(column.type) and (column.type == pa.binary(16) or pa.types.is_binary(column.type)):
        values = [None if value is None else str(uuid.UUID(bytes=value)) for value in column.to_pylist()]
        return pa.chunked_array([values], wanted)
    column = pc.utf8_lower(column.cast(wanted))
    if pc.any(pc.invert(pc.match_substring_regex(column, _UUID))).as_py():
        raise ValueError("not a uuid, such as 7f3c1a50-0d5e-4b0a-9c57-1f2d3e4b5a6c")
    return column


def _to_json(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    column = column.cast(wanted)
    for value in column.to_pylist():
        if value is not None:
            check_json(value)
    return column


def check_json(value: str) -> None:
    """Raises ValueError, or RecursionError, for a text that is no JSON."""
    json.loads(value, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def is_uuid(value: str) -> bool:
    """Whether a text is a uuid with hyphens, in lower or upper case."""
    return re.fullmatch(_UUID, value) is not None


_SPECIAL: Mapping[str, Callable[[pa.ChunkedArray, pa.DataType], pa.ChunkedArray]] = {
    DECIMAL: _to_decimal,
    "uuid": _to_uuid,
    "json": _to_json,
}


def refuse_far_times(column: pa.ChunkedArray) -> None:
    """Arrow's years go further than those of the databases' drivers: what is written must be readable again.

    Raises ValueError.
    """
    if column.type not in _YEARS_1_TO_9999:
        return
    first, last = (pa.scalar(bound, column.type) for bound in _YEARS_1_TO_9999[column.type])
    found: Any = pc.min_max(column)
    if found["min"].is_valid and (pc.less(found["min"], first).as_py() or pc.greater(found["max"], last).as_py()):
        raise ValueError("a time outside the years 1 to 9999, which databases cannot give back")


MICROSECONDS = 6
"""Digits of a second."""
BYTES_OF_A_NAME = 63
_SQLITE_BLANKS = r"[\t\n\v\f\r ]*"
_A_NUMBER = rf"\A{_SQLITE_BLANKS}[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?{_SQLITE_BLANKS}\z"


# --- what a column would change without a word: refused value by value ------------------------------------------------

# A check takes converted values and raises ValueError, or an error of Arrow, for one that the column would change.


def no_nan(values: pa.ChunkedArray) -> None:
    """SQLite turns NaN into NULL."""
    if pa.types.is_floating(values.type) and _any(pc.is_nan(values)):
        raise ValueError("NaN, which SQLite would turn into NULL; fill it before the writer")


def no_number(found: str) -> Check:
    """A text that SQLite would take for a number."""

    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.match_substring_regex(values, _A_NUMBER)):
            raise ValueError(f"a text that looks like a number, which a column of type {found} turns into one")

    return check


def at_most(length: int) -> Check:
    """A longer text, which would lose the blanks that there is no room for."""

    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.greater(pc.utf8_length(values), length)):
            raise ValueError(f"a text of more than {length} characters")

    return check


def exactly(length: int) -> Check:
    """A shorter text would be filled with blanks."""

    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.not_equal(pc.utf8_length(values), length)):
            raise ValueError(f"a text that has not {length} characters, as character({length}) wants it; use varchar")

    return check


def bytes_at_most(length: int) -> Check:
    """A longer text would be cut."""

    def check(values: pa.ChunkedArray) -> None:
        if _any(pc.greater(pc.binary_length(values), length)):
            raise ValueError(f"a text of more than {length} bytes, which would be cut")

    return check


def single_precision(values: pa.ChunkedArray) -> None:
    """A ``real`` rounds doubles."""
    rounded = values.cast(pa.float32(), safe=False).cast(values.type)
    if _any(pc.and_(pc.not_equal(rounded, values), pc.invert(pc.is_nan(values)))):
        raise ValueError("a double that a real would round")


def second_digits(digits: int) -> Check:
    """For timestamps, times and durations."""

    def check(values: pa.ChunkedArray) -> None:
        step = 10 ** (MICROSECONDS - digits)
        numbers = values.cast(_in_microseconds(values.type)).cast(pa.int64())
        if _any(pc.not_equal(pc.multiply(pc.divide(numbers, step), step), numbers)):
            raise ValueError(f"a time with more than {digits} digits of a second, which would be rounded")

    return check


def multiples_of(step: int) -> Check:
    """For whole numbers."""

    def check(values: pa.ChunkedArray) -> None:
        if any(value is not None and value % step for value in values.to_pylist()):
            raise ValueError(f"a number that is no multiple of {step:,}, to which it would be rounded")

    return check


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return pa.time64("us")
    return pa.duration("us") if pa.types.is_duration(kind) else pa.timestamp("us", getattr(kind, "tz", None))


def _any(found: pa.ChunkedArray) -> bool:
    return bool(pc.any(found).as_py())
