"""Many rows in one statement: COPY in PostgreSQL's binary format, one INSERT or a plain query on SQLite.

Bodies are most of what a commit writes. As parameters of an INSERT, or as results of a query, they travel as hexadecimal
text, twice as long, which has to be parsed; psycopg2 needs five to eight times as long to read it. COPY moves the bytes as
they are, in the same transaction or snapshot (ADR-115).
"""

from __future__ import annotations

import json
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import psycopg2.extensions
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from airflow_logio.databases import COPY, COPY_TO

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


def bytes_of(connection: Connection, text: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """The bytes of a text, as the client would get them: if one has become no text, a look at the others is not refused."""
    if connection.dialect.name == "postgresql":
        return sa.func.textsend(text, type_=sa.LargeBinary)
    return sa.cast(text, sa.LargeBinary)


def text_of(connection: Connection, data: bytes | memoryview) -> str:
    """What `bytes_of` has got; bytes that are no text are lone surrogates."""
    encoding = encoding_of(connection) if connection.dialect.name == "postgresql" else "utf-8"
    return bytes(data).decode(encoding, "surrogateescape")


Reader = Callable[[memoryview], Any]
"""The bytes of a field that is not null → its value."""


def rows_of(
    connection: Connection, query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
) -> Sequence[Any]:
    """All rows of a query of texts, whole numbers and bytes: named tuples, by the names of its columns.

    Raises what SQLAlchemy raises for a statement that fails.
    """
    if connection.dialect.name != "postgresql":
        return connection.execute(query, parameters or {}).all()
    copied = BytesIO()
    connection.execute(query, parameters or {}, execution_options={COPY_TO: copied}).close()
    columns = query.selected_columns
    row = _row_type(tuple(columns.keys()))
    readers = [_reader(column, encoding_of(connection)) for column in columns]
    return [row._make(values) for values in _decoded(copied.getbuffer(), readers)]


def _decoded(data: memoryview, readers: Sequence[Reader]) -> Iterator[list[Any]]:
    place = len(HEADER)
    while (fields := FIELDS.unpack_from(data, place)[0]) >= 0:
        if fields != len(readers):
            raise TypeError(f"a row has {fields} fields, and the query {len(readers)} columns")
        place += FIELDS.size
        values: list[Any] = []
        for reader in readers:
            (length,) = LENGTH.unpack_from(data, place)
            place += LENGTH.size
            if length < 0:
                values.append(None)
            else:
                values.append(reader(data[place : place + length]))
                place += length
        yield values


def _reader(column: sa.ColumnElement[Any], encoding: str) -> Reader:
    kind = column.type
    if isinstance(kind, sa.BigInteger):
        return _number
    if isinstance(kind, sa.LargeBinary):
        return bytes
    if isinstance(kind, sa.String):
        return lambda field: str(field, encoding)
    raise TypeError(f"{column} has a type that is not read so: {kind!r}")


def _number(field: memoryview) -> int:
    """A number that stands in a query has 32 bits, one of a column 64. A sum is a ``numeric``, which has another format."""
    if len(field) not in (4, 8):
        raise TypeError(f"{len(field)} bytes are no integer of PostgreSQL: cast what the query computes to bigint")
    return int.from_bytes(field, "big", signed=True)


@lru_cache(maxsize=64)
def _row_type(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", names)  # its names are those of a query


def among(
    connection: Connection, column: sa.ColumnElement[Any], values: Sequence[int] | Sequence[str]
) -> sa.ColumnElement[bool]:
    """Whether `column` is one of these numbers, or of these texts."""
    if connection.dialect.name == "postgresql":
        texts = bool(values) and isinstance(values[0], str)
        array = postgresql.ARRAY(sa.Text if texts else sa.BigInteger)
        return column == sa.any_(sa.cast(sa.literal(list(values), array), array))
    wanted = sa.func.json_each(json.dumps(list(values))).table_valued("value")
    return column.in_(sa.select(wanted.c.value))
