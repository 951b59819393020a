"""What a database returns, as columns of declared types: the same values, or refused by table, column, row and key.

Arrow takes 1.5 for 1 in a column of integers and drops the time of a date without a word. Here a value is converted only if
nothing is lost, whichever database it comes from, and however it is read.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isnan
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.databases.conversions import check_json, is_uuid, refuse_far_times
from airflow_logio.systems.databases.sql_types import arrow_type

FAILURES = (pa.ArrowException, ValueError, OverflowError, RecursionError)
MOST_SHOWN = 60
"""Characters of a value in an error."""

Reader = Callable[[Sequence[Any]], pa.Array]
"""Values of a column as the database's driver gives them → an array of the column's type. Raises one of `FAILURES`."""


@dataclass(frozen=True)
class Place:
    """What is read, for errors."""

    where: str
    """The table or query, in words."""
    key: tuple[str, ...] = ()
    """The columns that tell one row from another, as far as they are known."""


def schema_of_kinds(kinds: Mapping[str, ColumnType]) -> pa.Schema:
    return pa.schema([(name, arrow_type(kind)) for name, kind in kinds.items()])


def arrow_table(
    place: Place,
    kinds: Mapping[str, ColumnType],
    readers: Sequence[Reader],
    rows: Sequence[Sequence[Any]],
    *,
    first_row: int = 0,
) -> pa.Table:
    """Rows of values as an Arrow table, each column by its reader.

    Raises `ConfigurationError`, naming `place`, column, row (counted from 0; `first_row` is that of the first one) and key.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(kinds)
    arrays = {}
    for (name, kind), reader, values in zip(kinds.items(), readers, columns, strict=True):
        try:
            arrays[name] = reader(values)
        except FAILURES:
            row, error = next(found for found in enumerate(_failures(reader, values)) if found[1] is not None)
            raise ConfigurationError(
                f"{place.where}, column {name!r}, row {first_row + row} of those read (counted from 0)"
                f"{_told_by(place, list(kinds), rows[row], name)}: {_shown(values[row])} is no {kind}: {error}; "
                "declare another type, or change the value in the table, in the query or in a view"
            ) from error
    return pa.table(arrays, schema=schema_of_kinds(kinds))


def _failures(reader: Reader, values: Sequence[Any]) -> Any:
    for value in values:
        try:
            reader([value])
        except FAILURES as error:
            yield error
        else:
            yield None


def _told_by(place: Place, names: Sequence[str], row: Sequence[Any], failing: str) -> str:
    """The key of a row, in words; where no key is known, its first column, which often is one."""
    key = [name for name in place.key if name in names] or [name for name in names if name != failing][:1]
    return f", where {' and '.join(f'{name} = {_shown(row[names.index(name)])}' for name in key)}" if key else ""


def _shown(value: Any) -> str:
    text = str(value) if isinstance(value, Decimal | date) else repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


# --- values of a driver, each by itself -------------------------------------------------------------------------------


def reader_of(kind: ColumnType) -> Reader:
    """For Python values of any database's driver."""
    wanted, read = arrow_type(kind), _READERS[kind.name]

    def reader(values: Sequence[Any]) -> pa.Array:
        return kept(pa.array([None if value is None else read(value) for value in values], wanted))

    return reader


def kept(array: pa.Array) -> pa.Array:
    """Raises ValueError for times that the databases' drivers cannot give back, as for those that are written."""
    refuse_far_times(pa.chunked_array([array]))
    return array


def whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float | Decimal) and value == value.__trunc__():
        return int(value)
    raise is_no("whole number")


def double(value: Any) -> float:
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        found = float(value)
        if found == value or isnan(found):
            return found
    raise is_no("double without loss")


def decimal(value: Any) -> Decimal:
    if isinstance(value, Decimal) and value.is_finite():
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Decimal(value)
    raise is_no("decimal")


def time_in_utc(value: Any) -> datetime:
    """A time without a zone is UTC."""
    if isinstance(value, datetime):
        return value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    if isinstance(value, date):
        return datetime.combine(value, time())
    raise is_no("time of the years 1 to 9999")


def bound(dialect: str, value: Any) -> Any:
    """A value as the database gets it. Only PostgreSQL knows instants; to others, times without a zone are in UTC.

    SQLite compares texts: one without a fraction lies before all that begin with it, so that ``at >= :day_start AND at <
    :day_end`` holds for what a `TableWriter` has stored, ``2026-02-28 23:00:00.000000``, and for ``datetime(at)``.
    """
    if not isinstance(value, datetime) or value.tzinfo is None or dialect == "postgresql":
        return value
    in_utc = time_in_utc(value)
    return in_utc.isoformat(" ") if dialect == "sqlite" else in_utc


def day(value: Any) -> date:
    if isinstance(value, datetime) and value.tzinfo is None and value.time() == time():
        return value.date()
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise is_no("day of the years 1 to 9999 without a time")


def _boolean(value: Any) -> bool:
    if isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise is_no("boolean")


def text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise is_no("text")


def text_of_json(value: Any) -> str:
    check_json(text(value))
    return str(value)


def text_of_uuid(value: Any) -> str:
    if isinstance(value, bytes | bytearray) and len(value) == 16:
        return str(uuid.UUID(bytes=bytes(value)))
    found = str(value) if isinstance(value, uuid.UUID) else text(value)
    if not is_uuid(found):
        raise is_no("uuid, such as 7f3c1a50-0d5e-4b0a-9c57-1f2d3e4b5a6c")
    return found


def _bytes(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise is_no("bytes")


def is_no(what: str) -> ValueError:
    """The error for a value that is not `what`."""
    return ValueError(f"it is no {what}")


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "bigint": whole,
    "int": whole,
    "double": double,
    "decimal": decimal,
    "boolean": _boolean,
    "timestamp": time_in_utc,
    "timestamptz": time_in_utc,
    "date": day,
    "text": text,
    "json": text_of_json,
    "uuid": text_of_uuid,
    "binary": _bytes,
}
