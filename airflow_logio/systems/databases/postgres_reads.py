"""PostgreSQL: the types of a result's columns, and how their values are read. What would not be kept is refused.

The server tells the type of every column, of a query as well as of a table, before there is a row. So a column whose type
does not hold what is declared is refused by the names of both. Behind a domain the server tells its base type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.dataflow.column_types import DECIMAL, MOST_DIGITS, ColumnType
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.databases.read_values import FAILURES, Place, Reader, is_no, kept, reader_of
from airflow_logio.systems.databases.sql_types import arrow_type, decimal_kind

DIGITS_OF_A_DOUBLE = 15
"""So many digits of a whole number a double holds, whichever they are."""
MOST_OF_ARROW = 76
"""Digits of a decimal256."""
SCALE_OF_ANY_NUMERIC = 18
"""A NUMERIC without a precision is read as decimal(38,18), as Spark reads it; a number that does not fit is refused."""
_TIMES = {1082: "date", 1114: "timestamp without time zone", 1184: "timestamp with time zone"}
_BUILT_IN: Mapping[int, tuple[str, str]] = {
    16: ("boolean", "boolean"),
    17: ("bytea", "bytes"),
    18: ('"char"', "text"),
    19: ("name", "text"),
    20: ("bigint", "whole"),
    21: ("smallint", "whole"),
    23: ("integer", "whole"),
    25: ("text", "text"),
    26: ("oid", "whole"),
    114: ("json", "json"),
    142: ("xml", "text"),
    650: ("cidr", "text"),
    700: ("real", "single"),
    701: ("double precision", "double"),
    774: ("macaddr8", "text"),
    829: ("macaddr", "text"),
    869: ("inet", "text"),
    1042: ("character", "text"),
    1043: ("character varying", "text"),
    1082: (_TIMES[1082], "date"),
    1114: (_TIMES[1114], "timestamp"),
    1184: (_TIMES[1184], "timestamptz"),
    1560: ("bit", "text"),
    1562: ("bit varying", "text"),
    1700: ("numeric", "numeric"),
    2950: ("uuid", "uuid"),
    3802: ("jsonb", "json"),
}
"""Number of a type, the same in every database → its name, and the sort of its values (`_TAKEN`)."""
_OTHERS = sa.text(
    "SELECT oid, format_type(oid, NULL) AS name, typcategory = 'S' AS is_text, typtype = 'e' AS is_enum "
    "FROM pg_catalog.pg_type WHERE oid = ANY(:numbers)"
)
"""Enumerations are text, and so are types of the category of strings, as citext. Of all others only the name is asked."""
_TAKEN: Mapping[str, tuple[str, ...]] = {
    "whole": ("bigint", "int", "double", DECIMAL),
    "single": ("double", "bigint", "int"),
    "double": ("double", "bigint", "int"),
    "numeric": (DECIMAL, "bigint", "int"),
    "boolean": ("boolean",),
    "date": ("date", "timestamp", "timestamptz"),
    "timestamp": ("timestamp", "timestamptz", "date"),
    "timestamptz": ("timestamptz", "timestamp"),
    "bytes": ("binary",),
    "json": ("json", "text"),
    "uuid": ("uuid", "text"),
    "text": ("text", "json", "uuid"),
}
"""Sort of values → the types as which they can be declared, the first one where nothing is declared. A value that one of them
does not hold is refused by itself."""
_ADVICE: Mapping[tuple[str, str], str] = {
    ("numeric", "double"): "a double rounds it: declare decimal(p,s)",
    ("single", DECIMAL): "it is no exact decimal: declare double",
    ("double", DECIMAL): "it is no exact decimal: declare double",
    ("timestamptz", "date"): "which day it is depends on a zone: say AT TIME ZONE before the cast to date",
}
"""Sort, declared type → what to do beside a cast."""


class ToldType(NamedTuple):
    """The type of a column of a result, as the server tells it."""

    name: str
    sort: str
    """One of `_TAKEN`; empty for a type of another sort, whose values no declared type holds."""
    precision: int = 0
    """Of a NUMERIC that has one."""
    scale: int = 0
    is_enum: bool = False
    may_trim: bool = False
    """Of a text in SQLite: whether it may have the collation RTRIM."""


def read_times_as_text(engine: Engine) -> None:
    """Dates and timestamps come as the server writes them: psycopg2 makes the last day of Python of 'infinity', and fails
    with years that Python does not have."""
    import psycopg2.extensions

    as_text = psycopg2.extensions.new_type(tuple(_TIMES), "TIME_AS_TEXT", lambda value, _cursor: value)

    @sa.event.listens_for(engine, "connect")
    def _on_connect(dbapi: Any, _record: object) -> None:
        psycopg2.extensions.register_type(as_text, dbapi)


def told_types(connection: Connection, description: Iterable[Any]) -> list[ToldType]:
    """The types of the columns of a result, from its cursor's description. Asks the server for those that are its own."""
    columns = list(description)
    others = {column.type_code for column in columns} - _BUILT_IN.keys()
    own = {}
    if others:
        for found in connection.execute(_OTHERS, {"numbers": sorted(others)}):
            sort = "text" if found.is_text or found.is_enum else ""
            own[found.oid] = ToldType(found.name, sort, is_enum=found.is_enum)
    return [own[column.type_code] if column.type_code in own else _built_in(column) for column in columns]


def _built_in(column: Any) -> ToldType:
    name, sort = _BUILT_IN.get(column.type_code, (f"number {column.type_code}", ""))
    precision, scale = column.precision, column.scale
    if sort != "numeric" or precision in (None, 0xFFFF):
        return ToldType(name, sort)
    scale = (scale & 0x7FF ^ 0x400) - 0x400  # eleven bits with a sign
    return ToldType(f"{name}({precision},{scale})", sort, precision, scale)


def kind_of(place: Place, column: str, told: ToldType) -> ColumnType:
    """The type of a column that has no declared type. Raises `ConfigurationError` if no type holds its values."""
    if not told.sort or max(told.precision, told.scale, told.precision - told.scale) > MOST_OF_ARROW:
        raise ConfigurationError(_refused(place, column, told, None))
    if told.sort != "numeric":
        return ColumnType(_TAKEN[told.sort][0])
    if told.precision:
        return decimal_kind(told.precision, told.scale)
    return ColumnType(DECIMAL, MOST_DIGITS, SCALE_OF_ANY_NUMERIC)


def readers(place: Place, told: Sequence[ToldType], kinds: Mapping[str, ColumnType]) -> list[Reader]:
    """How the columns of a result become columns of these types. Raises `ConfigurationError` for a type of the database that
    does not hold what is declared."""
    found = []
    for has, (name, kind) in zip(told, kinds.items(), strict=True):
        if not _is_taken(has, kind):
            raise ConfigurationError(_refused(place, name, has, kind))
        found.append(_READERS.get((has.sort, kind.name)) or _reader(has, kind))
    return found


def _is_taken(has: ToldType, kind: ColumnType) -> bool:
    if kind.name in _TAKEN.get(has.sort, ()):
        return True
    is_small = has.sort == "numeric" and 0 < has.precision <= DIGITS_OF_A_DOUBLE and has.scale == 0
    return is_small and kind.name == "double"


def _refused(place: Place, column: str, told: ToldType, kind: ColumnType | None) -> str:
    said = f"{place.where}, column {column!r}: the database has it as {told.name}, "
    if kind is None or not told.sort:
        return (
            f"{said}which no type of this package holds without loss; leave it out, or cast it, for instance to text, in "
            "the query or in a view"
        )
    advice = _ADVICE.get((told.sort, kind.name), "declare another type")
    return f"{said}and it is declared {kind}: {advice}, or cast it in the query or in a view"


# --- values -----------------------------------------------------------------------------------------------------------


def _reader(has: ToldType, kind: ColumnType) -> Reader:
    if has.sort in ("date", "timestamp", "timestamptz"):
        return _by_value(kind, _python_time)
    if has.sort == "single":
        return _by_value(kind, lambda value: pa.scalar(value, pa.float32()).as_py())
    return reader_of(kind)


def _by_value(kind: ColumnType, first: Callable[[Any], Any]) -> Reader:
    read = reader_of(kind)
    return lambda values: read([None if value is None else first(value) for value in values])


def _python_time(value: str) -> Any:
    """The server writes what it has in ISO: a day alone, or a time with or without an offset."""
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise is_no("time of the years 1 to 9999") from None


def _plain(kind: pa.DataType) -> Reader:
    """Values that the type of the database keeps within those of Arrow's."""
    return lambda values: pa.array(values, kind)


def _widened(values: Sequence[Any]) -> pa.Array:
    """What psycopg2 makes of the digits of a real is a double near it."""
    return pa.array(values, pa.float32()).cast(pa.float64())


def _parsed(kind: ColumnType, zone: str | None = None) -> Reader:
    """Times by Arrow, which takes no other form than the server's usual one: all others one by one."""
    wanted, first = arrow_type(kind), pa.timestamp("us", zone) if kind.name != "date" else pa.date32()
    slowly = _by_value(kind, _python_time)

    def reader(values: Sequence[Any]) -> pa.Array:
        try:
            return kept(pa.array(values, pa.string()).cast(first).cast(wanted))
        except FAILURES:
            return slowly(values)

    return reader


_READERS: Mapping[tuple[str, str], Reader] = {
    ("whole", "bigint"): _plain(pa.int64()),
    ("double", "double"): _plain(pa.float64()),
    ("single", "double"): _widened,
    ("boolean", "boolean"): _plain(pa.bool_()),
    ("text", "text"): _plain(pa.string()),
    ("json", "text"): _plain(pa.string()),
    ("json", "json"): _plain(pa.string()),
    ("date", "date"): _parsed(ColumnType("date")),
    **{("timestamp", name): _parsed(ColumnType(name)) for name in ("timestamp", "timestamptz")},
    **{("timestamptz", name): _parsed(ColumnType(name), "UTC") for name in ("timestamp", "timestamptz")},
}
"""Sort, declared type → the fast way, where types alone tell that nothing is lost."""
