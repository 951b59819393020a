"""Rows with bodies: COPY in PostgreSQL's binary format, a plain query on SQLite.

As a result of a query a body travels as hexadecimal text, twice as long, and psycopg2 needs five to eight times as long to
read it; COPY sends the bytes as they are, from the same snapshot (ADR-115).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.postgres_sessions import COPY_TO
from airflow_logio.store.sql.bulk_rows import FIELDS, HEADER, LENGTH, encoding_of

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
