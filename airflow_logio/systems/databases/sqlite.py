"""SQLite: what its columns keep, which types they have, how records go in and cells come out.

SQLite converts by the affinity of a column, which it derives from letters of its type.

Affinities that keep every value of a declared type (https://sqlite.org/datatype3.html, section 3.1):

=========================================  =====================================================================
bigint                                     INTEGER, NUMERIC, BLOB
int                                        INTEGER, NUMERIC, REAL, BLOB
double                                     REAL, INTEGER, NUMERIC, BLOB (a negative zero loses its sign)
boolean                                    INTEGER, NUMERIC, REAL, BLOB
text, json                                 TEXT, BLOB; NUMERIC all but texts that look like a number
timestamp, timestamptz, date, uuid         all: they are texts that look like no number
binary                                     all: bytes are never converted
decimal                                    TEXT, BLOB; up to 15 digits NUMERIC, REAL, and without a fraction INTEGER
=========================================  =====================================================================
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.systems.databases.conversions import Check, no_nan, no_number, nothing
from airflow_logio.systems.databases.read_values import Reader, text, text_of_json, text_of_uuid
from airflow_logio.systems.databases.sql_types import arrow_type, kind_of_records
from airflow_logio.systems.databases.table_names import TableName, folded, quoted

DIGITS_OF_A_DOUBLE = 15
_EXACT = Context(prec=1_000)
"""Python's own rounds to 28 digits."""

_TEXTS_BY_VALUE = re.compile(r"(DATE|DATETIME|TIMESTAMP|TIME|BOOL|BOOLEAN|JSON|JSONB)\b", re.IGNORECASE)
"""Types of affinity NUMERIC that authors use for texts: these are refused one by one. (For NUMERIC itself: all of them.)"""
_LOSING = {
    "bigint": ("REAL", "TEXT"),
    "int": ("TEXT",),
    "double": ("TEXT",),
    "boolean": ("TEXT",),
    "text": ("INTEGER", "REAL", "NUMERIC"),
    "json": ("INTEGER", "REAL", "NUMERIC"),
}


def affinity(found: str) -> str:
    """The affinity of a column of type `found`, by the rules of SQLite, in their order."""
    name = found.upper()
    if "INT" in name:
        return "INTEGER"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not name or "BLOB" in name:
        return "BLOB"
    return "REAL" if any(part in name for part in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def loses(kind: ColumnType, found: str) -> bool:
    """Whether the type of the column tells that it does not hold every value of `kind`."""
    has = affinity(found)
    if kind.name == DECIMAL:
        is_number = has not in ("TEXT", "BLOB")
        return is_number and (kind.precision > DIGITS_OF_A_DOUBLE or (has == "INTEGER" and kind.scale > 0))
    by_value = kind.name in ("text", "json") and has == "NUMERIC" and _TEXTS_BY_VALUE.match(found)
    return has in _LOSING.get(kind.name, ()) and not by_value


def check_of(kind: ColumnType | None, found: str | None) -> Check:
    """What else is asked of each value; `kind` is None in a column of a type that this package does not know."""
    if kind is None:
        return _check_unknown(found or "")
    if kind.name == "double":
        return no_nan
    if found is not None and kind.name in ("text", "json") and affinity(found) == "NUMERIC":
        return no_number(found)
    return nothing


def _check_unknown(found: str) -> Check:
    def check(values: pa.ChunkedArray) -> None:
        kind = kind_of_records(values.type)
        if kind is None:
            return
        if kind.name == DECIMAL or loses(kind, found):
            raise ValueError(f"a column of type {found or 'no type'} does not hold every {kind}")
        check_of(kind, found)(values)

    return check


# --- columns that are there -------------------------------------------------------------------------------------------


def found_types(connection: Connection, name: TableName) -> dict[str, str] | None:
    """Column, in lower case → type, such as ``VARCHAR(10)``; None if there is no such table."""
    rows = connection.exec_driver_sql(f"PRAGMA table_xinfo({name.quoted(connection)})").all()
    return {folded(row.name): row.type for row in rows} or None


# --- inserts ----------------------------------------------------------------------------------------------------------


def insert(connection: Connection, name: TableName, rows: pa.Table) -> int:
    """`executemany` without a type processor per value; timestamps as text, the way SQLAlchemy reads them back. How many
    rows have arrived: those that a trigger ignores are not counted."""
    statement, values = _insertion(connection, name, rows)
    return connection.exec_driver_sql(statement, values).rowcount


def is_view(connection: Connection, name: TableName) -> bool:
    """Whether rows reach no table of that name, but the triggers of a view."""
    query = "SELECT type = 'view' FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
    return bool(connection.exec_driver_sql(query, (name.table,)).scalar())


_REPLACES = re.compile(r"\bON\s+CONFLICT\s+REPLACE\b", re.IGNORECASE)


def puts_rows_away(connection: Connection, name: TableName) -> bool:
    """Whether a key of the table puts the row away that has it, when another one comes (``ON CONFLICT REPLACE``), and counts
    none for it."""
    query = "SELECT sql FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type = 'table'"
    return _REPLACES.search(str(connection.exec_driver_sql(query, (name.table,)).scalar())) is not None


def changing_key(connection: Connection, name: TableName, *, whole: bool) -> str | None:
    """A foreign key by which rows of other tables are deleted or changed when rows of this one are deleted, in words; if all
    of them are, `whole`, one within the table does not matter. None where foreign keys are not enforced, as SQLite has it
    unless it was built otherwise."""
    if not connection.exec_driver_sql("PRAGMA foreign_keys").scalar():
        return None
    query = """
        SELECT other.name, key."from" FROM sqlite_master AS other JOIN pragma_foreign_key_list(other.name) AS key
        WHERE other.type = 'table' AND key."table" = :table COLLATE NOCASE AND key.on_delete <> 'NO ACTION'
            AND key.on_delete <> 'RESTRICT' AND (NOT :whole OR other.name <> :table COLLATE NOCASE)
        ORDER BY other.name, key.id, key.seq LIMIT 1
    """
    found = connection.execute(sa.text(query), {"table": name.table, "whole": whole}).one_or_none()
    return None if found is None else f"foreign key ({found[1]}) of table {found[0]}"


def insert_into_view(connection: Connection, name: TableName, rows: pa.Table) -> int:
    """As `insert`. SQLite counts no row of a view, so each is asked for by itself: its trigger has come to its end, and it
    was called at all, if it has a condition."""
    statement, values = _insertion(connection, name, rows)
    query = "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE"
    triggers = [_INSTEAD.search(sql) for sql in connection.exec_driver_sql(query, (name.table,)).scalars()]
    if not any(triggers):
        return insert(connection, name, rows)  # is refused; with RETURNING, SQLite takes the rows, and drops them
    is_conditional = any(trigger["condition"] for trigger in triggers if trigger is not None)
    arrived = 0
    for row in values:
        before = _changes(connection)
        is_through = bool(connection.exec_driver_sql(f"{statement} RETURNING 1", row).all())
        arrived += is_through and not (is_conditional and _changes(connection) == before)
    return arrived


_INSTEAD = re.compile(
    r"\bINSTEAD\s+OF\s+INSERT\b(?:(?!\bBEGIN\b).)*?(?P<condition>\bWHEN\b.*?)?\bBEGIN\b", re.IGNORECASE | re.DOTALL
)


def _changes(connection: Connection) -> int:
    return int(connection.exec_driver_sql("SELECT total_changes()").scalar_one())


def _insertion(connection: Connection, name: TableName, rows: pa.Table) -> tuple[str, list[tuple[Any, ...]]]:
    names = ", ".join(quoted(connection, column) for column in rows.schema.names)
    marks = ", ".join("?" for _ in rows.schema.names)
    columns = [_cells(column) for column in rows.columns]
    return f"INSERT INTO {name.quoted(connection)} ({names}) VALUES ({marks})", list(zip(*columns, strict=True))


def _cells(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column, format="%Y-%m-%d %H:%M:%S")
    elif pa.types.is_date(column.type):
        column = pc.strftime(column, format="%Y-%m-%d")
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_time(column.type):
        column = column.cast(pa.time64("us")).cast(pa.string())
    elif pa.types.is_decimal(column.type):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


# --- cells as values of a column's type -------------------------------------------------------------------------------

# Any cell may hold anything: what is no such value is refused. Nothing is rounded or cut: Arrow takes 1.5 for 1 in a column
# of integers, and SQLAlchemy any number but 0 for true.

_CUT = re.compile(r"[.,][0-9]{7}")
"""Python reads six digits of a second, and drops others."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")
"""How a time begins; Python takes others, which sort differently."""


def reader_of(kind: ColumnType) -> Reader:
    """For cells. Raises ValueError for one that is no value of the column's type."""
    wanted, read = arrow_type(kind), _READERS[kind.name]
    return lambda cells: pa.array([None if cell is None else read(cell) for cell in cells], wanted)


def _integer(cell: Any) -> int:
    if isinstance(cell, int) or (isinstance(cell, float) and cell.is_integer()):
        return int(cell)
    raise _is_no("whole number", cell)


def _double(cell: Any) -> float:
    if isinstance(cell, int | float) and float(cell) == cell:
        return float(cell)
    raise _is_no("double", cell)


def _decimal(cell: Any) -> Decimal:
    """Numbers that others have stored as doubles are read as they are written. Python takes 1_0 for 10, and digits of other
    scripts."""
    if isinstance(cell, int | float) or (isinstance(cell, str) and cell.isascii() and "_" not in cell):
        try:
            return Decimal(str(cell))
        except InvalidOperation:
            pass
    raise _is_no("decimal", cell)


def _boolean(cell: Any) -> bool:
    if isinstance(cell, int | float) and cell in (0, 1):
        return bool(cell)
    raise _is_no("boolean (0 or 1)", cell)


def _time(cell: Any) -> datetime:
    if isinstance(cell, str) and _DAY.match(cell) and not _CUT.search(cell):
        try:
            read = datetime.fromisoformat(cell)
        except ValueError:
            pass
        else:
            return read if read.tzinfo is None else read.astimezone(UTC).replace(tzinfo=None)
    raise _is_no("time, such as 2024-02-29 12:00:00", cell)


def _date(cell: Any) -> date:
    if isinstance(cell, str) and _DAY.fullmatch(cell):
        try:
            return date.fromisoformat(cell)
        except ValueError:
            pass
    raise _is_no("date, such as 2024-02-29", cell)


def _bytes(cell: Any) -> bytes:
    if isinstance(cell, bytes):
        return cell
    raise _is_no("bytes", cell)


def _is_no(what: str, cell: Any) -> ValueError:
    return ValueError(f"a cell of type {type(cell).__name__} that is no {what}")


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "bigint": _integer,
    "int": _integer,
    "double": _double,
    "decimal": _decimal,
    "boolean": _boolean,
    "timestamp": _time,
    "timestamptz": _time,
    "date": _date,
    "text": text,
    "json": text_of_json,
    "uuid": text_of_uuid,
    "binary": _bytes,
}


# --- keys: one text for all cells that are equal ----------------------------------------------------------------------


TIME_KEY, DECIMAL_KEY = "logio_time", "logio_decimal"
"""Functions of a cell. Texts of times are in their order."""
DECIMAL_ORDER = "logio_decimal_order"
"""A collation of the texts of decimals."""


def know_keys(engine: Engine) -> None:
    """Let statements of an engine compare times and decimals by what they are, in whichever form a cell has them."""

    @sa.event.listens_for(engine, "connect")
    def _on_connect(dbapi: Any, _record: object) -> None:
        dbapi.create_function(TIME_KEY, 1, partial(_key, _time), deterministic=True)
        dbapi.create_function(DECIMAL_KEY, 1, partial(_key, _decimal), deterministic=True)
        dbapi.create_collation(DECIMAL_ORDER, _order_of_decimals)


def _order_of_decimals(one: str, other: str) -> int:
    first, second = Decimal(one), Decimal(other)
    return (first > second) - (first < second)


def _key(read: Callable[[Any], Any], cell: Any) -> Any:
    """None, which is equal to nothing, for a cell that is no such value."""
    try:
        return None if cell is None else cell_of_key(read(cell))
    except (ValueError, OverflowError):
        return None


def may_trim(connection: Connection) -> bool:
    """Whether a column of the database may compare texts without the blanks at their ends, in a version of SQLite that
    loses rows in joins by such columns: from 3.38 on its filter for an index of its own tells texts by their lengths."""
    if not _loses_texts_of_other_lengths():
        return False
    asked = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE sql LIKE '%RTRIM%')"
    return bool(connection.exec_driver_sql(asked).scalar_one())


@cache
def _loses_texts_of_other_lengths() -> bool:
    """Tried out, because the releases do not say which of them does."""
    keys = ", ".join(["('a  ')", *(f"('{number}   ')" for number in range(500))])
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE t (k TEXT COLLATE RTRIM)")
        database.execute("INSERT INTO t VALUES ('a')")
        found = database.execute(f"SELECT count(*) FROM t JOIN (SELECT column1 AS v FROM (VALUES {keys})) ON t.k = v")
        return bool(found.fetchone() != (1,))


def cell_of_key(value: Any) -> Any:
    """A value as a cell of a key."""
    if isinstance(value, datetime):
        return value.isoformat(" ", "microseconds")
    if isinstance(value, Decimal):
        return format(value.normalize(_EXACT) or Decimal(0), "f") if value.is_finite() else None
    if isinstance(value, date):
        return value.isoformat()
    return value
