"""PostgreSQL: what its columns keep, which types they have, and the fast way into them.

An assignment rounds, cuts and pads without a word where the types allow it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.systems.databases.conversions import (
    BYTES_OF_A_NAME,
    MICROSECONDS,
    Check,
    Target,
    at_most,
    bytes_at_most,
    converted,
    exactly,
    multiples_of,
    nothing,
    second_digits,
    single_precision,
)
from airflow_logio.systems.databases.sql_types import decimal_kind, kind_of_records
from airflow_logio.systems.databases.table_names import TableName, quoted

_INTEGERS = ("bigint", "integer", "smallint")
_FLOATS = ("real", "double precision")
_TEXTS = ("text", "citext", "character varying", "character", "bpchar", "name", '"char"')
_TIMES = ("timestamp without time zone", "timestamp with time zone", "time without time zone", "time with time zone")
_KINDS = {
    **dict.fromkeys(_INTEGERS, "bigint"),
    **dict.fromkeys(_FLOATS, "double"),
    **dict.fromkeys(_TEXTS, "text"),
    _TIMES[0]: "timestamp",
    _TIMES[1]: "timestamptz",
    "boolean": "boolean",
    "date": "date",
    "json": "json",
    "jsonb": "json",
    "uuid": "uuid",
    "bytea": "binary",
}
_FORM = re.compile(r"(?P<name>[^(]+?)(\((?P<numbers>-?\d+(,-?\d+)?)\))?(?P<rest>[^()\[\]]*)(?P<brackets>\[\])?")


class Found(NamedTuple):
    """A type as PostgreSQL writes it, in parts: ``timestamp(0) without time zone[]``."""

    name: str
    numbers: tuple[int, ...]
    is_array: bool


def parsed(found: str) -> Found:
    """The parts of a type as PostgreSQL writes it."""
    parts = _FORM.fullmatch(found)
    if parts is None:  # a name in quotes, with brackets inside
        return Found(found, (), is_array=False)
    numbers = tuple(int(number) for number in (parts["numbers"] or "").split(",") if number)
    return Found(parts["name"].strip() + parts["rest"], numbers, parts["brackets"] is not None)


def kind_of(found: str) -> ColumnType | None:
    """The type that holds every value of the column; None if this package does not know it."""
    has = parsed(found)
    if has.is_array:
        return None
    if has.name == "numeric":
        return decimal_kind(*has.numbers) if has.numbers else ColumnType("double")
    name = _KINDS.get(has.name)
    return None if name is None else ColumnType(name)


def loses(kind: ColumnType, found: str) -> bool:
    """Whether the type of the column tells that it does not hold every value of `kind`."""
    has = parsed(found)
    if has.is_array:
        return False
    if kind.name not in ("text", "json", "uuid") and has.name in _TEXTS:
        return True
    judge = _LOSING.get(kind.name)
    return judge is not None and judge(has, kind)


def _loses_decimals(has: Found, kind: ColumnType) -> bool:
    return has.name in _FLOATS or _digits_behind_the_point(has, kind.scale) < kind.scale


def _loses_integers(has: Found, kind: ColumnType) -> bool:
    if has.name == "oid" or has.name.startswith("reg"):  # which have no sign
        return True
    floats = _FLOATS if kind.name == "bigint" else ("real",)
    return has.name in floats or _digits_behind_the_point(has, 0) < 0


def _loses_doubles(has: Found, _: ColumnType) -> bool:
    return has.name in (*_INTEGERS, "real", "money") or (has.name == "numeric" and bool(has.numbers))


def _loses_times(has: Found, _: ColumnType) -> bool:
    return has.name in ("date", *_TIMES[2:]) or _cuts(has)


def _loses_texts(has: Found, _: ColumnType) -> bool:
    return has.name == "money" or _cuts(has)


_LOSING: Mapping[str, Callable[[Found, ColumnType], bool]] = {
    DECIMAL: _loses_decimals,
    "bigint": _loses_integers,
    "int": _loses_integers,
    "double": _loses_doubles,
    "timestamp": _loses_times,
    "timestamptz": _loses_times,
    "text": _loses_texts,
}


def _digits_behind_the_point(has: Found, unknown: int) -> int:
    if has.name in _INTEGERS:
        return 0
    return has.numbers[-1] if has.name in ("numeric", "money") and has.numbers else unknown


def _cuts(has: Found) -> bool:
    """Whether fractions of a second, or other parts of a time, are cut."""
    if has.name.startswith("interval ") and not has.name.endswith("second"):
        return True
    return has.name.startswith(("interval", "time")) and bool(has.numbers) and has.numbers[0] < MICROSECONDS


def check_of(kind: ColumnType | None, found: str | None) -> Check:
    """What else is asked of each value; `kind` is None in a column of a type that this package does not know."""
    if found is None:
        return nothing
    has = parsed(found)
    if kind is None:
        return _check_array(found) if has.is_array else _check_unknown(found)
    return _check_text(has) if kind.name in ("text", "json", "uuid") else _check_number_or_time(kind, has)


def _check_number_or_time(kind: ColumnType, has: Found) -> Check:
    if kind.name == "double" and has.name == "real":
        return single_precision
    if has.name in _TIMES and _cuts(has):
        return second_digits(has.numbers[0])
    if kind.name == DECIMAL and has.name == "numeric" and has.numbers and has.numbers[1] < 0:
        return multiples_of(10 ** -has.numbers[1])
    return nothing


def _check_text(has: Found) -> Check:
    if has.name == "character varying" and has.numbers:
        return at_most(has.numbers[0])
    if has.name == "character":
        return exactly(*has.numbers)
    return {"name": bytes_at_most(BYTES_OF_A_NAME), '"char"': bytes_at_most(1)}.get(has.name, nothing)


def _check_unknown(found: str) -> Check:
    """For a type with which values are passed on as the records have them."""
    has = parsed(found)

    def check(values: pa.ChunkedArray) -> None:
        kind = kind_of_records(values.type)
        if kind is None and _cuts(has):
            if has.name.startswith("interval "):
                raise ValueError(f"a column of type {found} cuts what it is given")
            if pa.types.is_time(values.type) or pa.types.is_duration(values.type):
                second_digits(has.numbers[0])(values)
        elif kind is not None and loses(kind, found):
            raise ValueError(f"a column of type {found} does not hold every {kind}")

    return check


def _check_array(found: str) -> Check:
    """For lists: each element is judged like a value in a column of the type of the elements."""
    element = found.removesuffix("[]")

    def check(values: pa.ChunkedArray) -> None:
        kind, flat = kind_of(element), values
        while pa.types.is_list(flat.type) or pa.types.is_large_list(flat.type):
            flat = pa.chunked_array([chunk.flatten() for chunk in flat.chunks], flat.type.value_type)
        if flat is values or element == "numeric":
            if kind_of_records(values.type) is not None and parsed(element) != Found(element, (), is_array=False):
                raise ValueError(f"no list, and a column of type {found} may change what is in it; make it a list")
        elif kind is None:
            _check_unknown(element)(flat)
        else:
            converted(flat, Target(kind, check_of(kind, element)))

    return check


# --- columns that are there -------------------------------------------------------------------------------------------

_COLUMNS = sa.text("""
    SELECT a.attname, base.described
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (
        WITH RECURSIVE inner_type(type, modifier, brackets, depth) AS (
            SELECT a.atttypid, a.atttypmod, '', 0
            UNION ALL
            SELECT
                CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
                CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE i.modifier END,
                CASE t.typtype WHEN 'd' THEN i.brackets ELSE '[]' END,
                i.depth + 1
            FROM inner_type AS i JOIN pg_catalog.pg_type AS t ON t.oid = i.type
            WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
        )
        SELECT format_type(type, modifier)
            || CASE WHEN type = 'money'::regtype THEN '(' || scale('0'::money::numeric) || ')' ELSE '' END
            || brackets AS described
        FROM inner_type ORDER BY depth DESC LIMIT 1
    ) AS base
    WHERE n.nspname = :schema AND c.relname = :table AND a.attnum > 0 AND NOT a.attisdropped
""")
"""Behind domains, and behind domains in arrays. Money has as many digits as the locale of the database gives it."""


def found_types(connection: Connection, name: TableName) -> dict[str, str] | None:
    """Column → type, such as ``numeric(9,2)`` or ``character(3)[]``; None if there is no such table."""
    found = connection.execute(_COLUMNS, {"schema": name.schema, "table": name.table})
    return {column: kind for column, kind in found} or None


# --- inserts ----------------------------------------------------------------------------------------------------------

_NAMES = {
    "bigint": "bigint",
    "int": "integer",
    "double": "double precision",
    "text": "text",
    "boolean": "boolean",
    "timestamp": "timestamp",
    "timestamptz": "timestamptz",
    "date": "date",
    "json": "json",
    "uuid": "uuid",
    "binary": "bytea",
    DECIMAL: "numeric",
}
"""Type of a column → as PostgreSQL names it."""


def array_type(kind: ColumnType, found: str) -> str:
    """The type as which values are sent. A double that PostgreSQL itself makes a NUMERIC keeps 15 digits only."""
    if kind.name == "double" and found == "numeric":
        return "numeric[]"
    return f"{_NAMES[kind.name]}[]"


_INSERTED_BELOW = sa.text("""
    WITH RECURSIVE below AS (
        SELECT i.inhrelid AS id
        FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
        WHERE i.inhparent = CAST(to_regclass(:table) AS oid) AND c.relkind = 'r'
        UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN below ON i.inhparent = below.id
    )
    SELECT CAST(sum(pg_stat_get_xact_tuples_inserted(id)) AS bigint) FROM below
""")
"""Rows that this session has put into tables that inherit from one; null if none does. Parts of a partitioned table are none
of these: the database itself counts what it puts there."""


def arrived(connection: Connection, name: TableName, execute: Callable[[Connection], int]) -> int:
    """How many rows an INSERT has put into the table, or into tables that inherit from it: before there was PARTITION BY, a
    trigger passed rows on to these. `execute` returns how many rows the server says that it has inserted."""
    asked = {"table": name.as_value()}
    before = connection.execute(_INSERTED_BELOW, asked).scalar_one()
    inserted = execute(connection)
    if before is None:
        return inserted
    return inserted + int(connection.execute(_INSERTED_BELOW, asked).scalar_one()) - int(before)


def insert(connection: Connection, name: TableName, types: Mapping[str, str], rows: pa.Table) -> int:
    """One INSERT of parallel arrays of `types`: one statement, parsed by the server, no round trip per page of rows. How many
    rows have arrived."""
    names = ", ".join(quoted(connection, column) for column in rows.schema.names)
    casts = ", ".join(f"%s::{types[column]}" for column in rows.schema.names)
    values = tuple(_literal(rows.column(column), types[column]) for column in rows.schema.names)
    statement = f"INSERT INTO {name.quoted(connection)} ({names}) SELECT * FROM unnest({casts})"
    return arrived(connection, name, lambda on: on.exec_driver_sql(statement, values).rowcount)


def _literal(column: pa.ChunkedArray, kind: str) -> Any:
    """An array literal for types whose text form needs no quoting; a list, quoted by the driver, for text and bytes."""
    if pa.types.is_binary(column.type) or kind in ("text[]", "json[]"):
        return column.to_pylist()
    text = pc.cast(column, pa.string())
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        text = pc.binary_join_element_wise('"', text, '"' if kind != "timestamptz[]" else '+00"', "")
    return "{" + ",".join(pc.fill_null(text, "NULL").to_pylist()) + "}"
