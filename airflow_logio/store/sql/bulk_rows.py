"""Many new rows of one table: COPY in PostgreSQL's binary format, one INSERT for all on SQLite.

Bodies are most of what a commit writes. As parameters of an INSERT they travel as hexadecimal text, twice as long, which
the server has to parse; COPY takes the bytes as they are, in the same transaction (ADR-115).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
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
    """Column by column: most columns of many rows have few values, and each of them is encoded once."""
    parts: list[Iterable[bytes]] = [repeat(FIELDS.pack(len(columns)), len(rows))]
    for column in columns:
        name = str(column.name)  # the plain one: a look-up by SQLAlchemy's own kind of string takes twice as long
        parts += _fields(column, list(map(itemgetter(name), rows)), encoding)
    return b"".join(chain((HEADER,), chain.from_iterable(zip(*parts, strict=True)), (_END,)))


def _fields(column: sa.Column[Any], values: Sequence[Any], encoding: str) -> list[list[bytes]]:
    """The fields of these values, as one list or as two whose items follow each other: a length, and so many bytes."""
    kind = column.type
    if isinstance(kind, sa.LargeBinary):
        lengths = [_NULL if value is None else LENGTH.pack(len(value)) for value in values]
        return [lengths, [b"" if value is None else value for value in values]]
    encoded = {value: _NULL if value is None else _field(kind, value, encoding) for value in set(values)}
    return [[encoded[value] for value in values]]


def _field(kind: sa.types.TypeEngine[Any], value: Any, encoding: str) -> bytes:
    if isinstance(kind, sa.BigInteger):
        return _int64.pack(8, value)
    if isinstance(kind, sa.Boolean):
        return b"\0\0\0\1\1" if value else b"\0\0\0\1\0"
    if isinstance(kind, sa.Double):
        return _float64.pack(8, value)
    assert isinstance(kind, sa.String), f"a type that is not copied: {kind!r}"
    text: bytes = value.encode(encoding)
    return LENGTH.pack(len(text)) + text


def encoding_of(connection: Connection) -> str:
    """Python's name of what the server takes text of this session to be."""
    client: Any = connection.connection.dbapi_connection
    return str(psycopg2.extensions.encodings[client.encoding])


@lru_cache(maxsize=64)
def _statement(table: sa.Table, names: tuple[str, ...]) -> str:
    quote = postgresql.dialect().identifier_preparer  # type: ignore[no-untyped-call]
    columns = ", ".join(quote.quote(name) for name in names)
    return f"COPY {quote.format_table(table)} ({columns}) FROM STDIN (FORMAT binary)"
