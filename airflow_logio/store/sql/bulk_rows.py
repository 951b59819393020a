"""Many new rows of one table: COPY in PostgreSQL's binary format, one INSERT for all on SQLite.

Bodies are most of what a commit writes. As parameters of an INSERT they travel as hexadecimal text, twice as long, which
the server has to parse; COPY takes the bytes as they are, in the same transaction (ADR-115).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import psycopg2.extensions
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_logio.postgres_sessions import COPY

# https://www.postgresql.org/docs/current/sql-copy.html, "Binary Format": a header without flags and extension, rows, an end.
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"

_int64 = struct.Struct("!iq")
_float64 = struct.Struct("!id")
LENGTH = struct.Struct("!i")
FIELDS = struct.Struct("!h")

Field = Callable[[Any], tuple[bytes, ...]]
"""A value that is not None → the parts of its field: a length, and so many bytes."""


def insert_rows(connection: Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert `rows`, all of which have the same keys: columns of `table`. Others get their default.

    Raises what SQLAlchemy raises for a statement that fails; `struct.error` for a number that its column cannot hold.
    """
    if not rows:
        return
    if connection.dialect.name != "postgresql":
        connection.execute(sa.insert(table), list(rows))
        return
    names = tuple(rows[0])
    statement = _statement(table, names)
    data = _encoded([table.c[name] for name in names], rows, encoding_of(connection))
    connection.exec_driver_sql(statement, (data,), execution_options={COPY: True})


def _encoded(columns: Sequence[sa.Column[Any]], rows: Sequence[Mapping[str, Any]], encoding: str) -> bytes:
    fields = [(column.name, _field(column, encoding)) for column in columns]
    before = FIELDS.pack(len(fields))
    parts = [HEADER]
    for row in rows:
        parts.append(before)
        for name, field in fields:
            value = row[name]
            if value is None:
                parts.append(_NULL)
            else:
                parts.extend(field(value))
    parts.append(_END)
    return b"".join(parts)


def _field(column: sa.Column[Any], encoding: str) -> Field:
    kind = column.type
    if isinstance(kind, sa.BigInteger):
        return lambda value: (_int64.pack(8, value),)
    if isinstance(kind, sa.Boolean):
        return lambda value: (b"\0\0\0\1\1" if value else b"\0\0\0\1\0",)
    if isinstance(kind, sa.Double):
        return lambda value: (_float64.pack(8, value),)
    if isinstance(kind, sa.LargeBinary):
        return lambda value: (LENGTH.pack(len(value)), value)
    assert isinstance(kind, sa.String), f"{column} has a type that is not copied: {kind!r}"

    def text(value: str) -> tuple[bytes, ...]:
        encoded = value.encode(encoding)
        return LENGTH.pack(len(encoded)), encoded

    return text


def encoding_of(connection: Connection) -> str:
    """Python's name of what the server takes text of this session to be."""
    client: Any = connection.connection.dbapi_connection
    return str(psycopg2.extensions.encodings[client.encoding])


@lru_cache(maxsize=64)
def _statement(table: sa.Table, names: tuple[str, ...]) -> str:
    quote = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    columns = ", ".join(quote.quote(name) for name in names)
    return f"COPY {quote.format_table(table)} ({columns}) FROM STDIN (FORMAT binary)"
