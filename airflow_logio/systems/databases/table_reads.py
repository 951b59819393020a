"""Rows of SQL tables as Arrow records, in the types that the database tells."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.arrow_tables import plain_type
from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.databases import encodings, postgres_reads, sql_types, sqlite
from airflow_logio.systems.databases.key_lookups import KeyColumn, Lookup, told_of_kind
from airflow_logio.systems.databases.postgres_reads import ToldType
from airflow_logio.systems.databases.read_values import Place, Reader, arrow_table, reader_of, schema_of_kinds
from airflow_logio.systems.databases.table_names import reflected

KEYS_PER_QUERY = 5_000
FIRST_ROWS = 16
ROWS_PER_PIECE = 10_000
BYTES_PER_PIECE = 8 * 2**20
"""What is taken from a cursor at a time: few rows first, then as many as are likely to stay within both bounds."""
TEXT = ColumnType("text")


def described_table(connection: Connection, table: str, where: str) -> sa.Table:
    """A table as the database describes it. Raises `ConfigurationError`, which ends with `where`, if there is none."""
    schema, name = schema_and_table(table)
    try:
        return reflected(connection, name, schema)
    except sa.exc.NoSuchTableError:
        raise ConfigurationError(f"table {table!r} {where}") from None


def fetch(connection: Connection, read: TableRead, keys: pa.Array | None) -> pa.Table:
    """The rows of a table, or those whose key is among `keys`.

    Raises `ConfigurationError`, naming table and column, for what is not there and for values that Arrow cannot hold.
    """
    chosen = _selected(connection, read)
    found = _found(connection, chosen, read, keys, streams=False)
    return pa.concat_tables([chosen.schema.empty_table(), *found])


def fetched(connection: Connection, read: TableRead, keys: pa.Array | None) -> Generator[pa.Table, None, None]:
    """As `fetch`, in pieces: the first one has no rows."""
    chosen = _selected(connection, read)
    yield chosen.schema.empty_table()
    yield from _found(connection, chosen, read, keys, streams=True)


def _found(
    connection: Connection, chosen: Selection, read: TableRead, keys: pa.Array | None, *, streams: bool
) -> Iterator[pa.Table]:
    if keys is None or read.key is None:
        yield from pieces(connection, chosen.place, chosen.statement, chosen.kinds, streams=streams)
        return
    distinct = pc.unique(keys.cast(plain_type(keys.type))).drop_null()
    if len(distinct):
        lookup = chosen.lookup(read.key, distinct.type, connection.dialect.name)
        yield from found_by_keys(connection, lookup, chosen.kinds, distinct, KEYS_PER_QUERY, streams=streams)


def found_by_keys(
    connection: Connection,
    lookup: Lookup,
    kinds: Mapping[str, ColumnType],
    keys: pa.Array,
    most: int,
    *,
    streams: bool = True,
) -> Iterator[pa.Table]:
    """The rows of distinct keys, by statements of at most `most` keys each; the column of the key has what was asked for."""
    before, with_place = 0, {**kinds, lookup.place_name: ColumnType("bigint")}
    keys = encodings.findable(connection, lookup.place, lookup.key.column.name, keys)
    for asked, statement, values in lookup.statements(keys, most):
        for table in pieces(connection, lookup.place, statement, with_place, values, first_row=before, streams=streams):
            yield lookup.answered(table, asked)
            before += table.num_rows


def _selected(connection: Connection, read: TableRead) -> Selection:
    chosen = selection(connection, read.connection, read.table, read.columns)
    place = chosen.place if read.key is None else replace(chosen.place, key=(read.key,))
    return replace(chosen, place=replace(place, where=f"the read of {place.where}"))


@dataclass(frozen=True)
class Selection:
    """What is read of a table."""

    place: Place
    """The table and its connection."""
    table: sa.Table
    statement: sa.Select[Any]
    """Its columns, as they are taken from the database: all rows, in no order."""
    kinds: dict[str, ColumnType]
    """Column → type."""
    told: Mapping[str, ToldType]
    """Column → its type in the database."""

    @property
    def schema(self) -> pa.Schema:
        return schema_of_kinds(self.kinds)

    def lookup(self, key: str, keys: pa.DataType, dialect: str) -> Lookup:
        """How rows are found by keys of an Arrow type.

        Raises `ConfigurationError` if there is no such column, and if it cannot be compared with such keys.
        """
        if key not in self.table.columns:
            raise ConfigurationError(f"{self.place.where} has no column {key!r}, by which it is read")
        found = Lookup(self.place, self.statement, KeyColumn(self.table.columns[key], self.told[key]), dialect, keys)
        found.check()
        return found


def selection(
    connection: Connection,
    name: str,
    table: str,
    columns: Sequence[str] = (),
    where: Callable[[sa.Table], sa.ColumnElement[bool]] | None = None,
) -> Selection:
    """Columns of a table of connection `name`, all of them where none is named; `where` restricts the rows.

    Raises `ConfigurationError` for what is not there.
    """
    described = described_table(connection, table, f"is not in connection {name!r}")
    names = list(columns) or [str(column.name) for column in described.columns]
    place = f"table {table!r} of connection {name!r}"
    missing = [one for one in names if one not in described.columns]
    if missing:
        raise ConfigurationError(f"{place} has no column {missing[0]!r}")
    statement = sa.select(*(_as_it_is(described.columns[one]) for one in names))
    where_it_is = Place(place, tuple(column.name for column in described.primary_key.columns))
    told, kinds = told_and_kinds(connection, where_it_is, described, names)
    restricted = statement if where is None else statement.where(where(described))
    return Selection(where_it_is, described, restricted, kinds, told)


def _as_it_is(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Without what SQLAlchemy makes of values by the type of the column."""
    return sa.type_coerce(column, sa.types.NullType()).label(column.name)


def told_and_kinds(
    connection: Connection, place: Place, table: sa.Table, names: Sequence[str]
) -> tuple[dict[str, ToldType], dict[str, ColumnType]]:
    """Columns of a table with their types, as the database tells them, and as they are read.

    Raises `ConfigurationError` for a column of PostgreSQL whose values no type holds.
    """
    if connection.dialect.name != "postgresql":
        kinds = {name: column_kind(table.columns[name]) for name in names}
        may_trim = connection.dialect.name == "sqlite" and sqlite.may_trim(connection)
        return {name: told_of_kind(kind)._replace(may_trim=may_trim) for name, kind in kinds.items()}, kinds
    nothing = sa.select(*(_as_it_is(table.columns[name]) for name in names)).limit(0)
    with connection.execute(nothing) as result:
        told = dict(zip(names, postgres_reads.told_types(connection, result.cursor.description), strict=True))
    return told, {name: postgres_reads.kind_of(place, name, has) for name, has in told.items()}


def pieces(
    connection: Connection,
    place: Place,
    statement: sa.Executable,
    kinds: Mapping[str, ColumnType],
    values: Mapping[str, Any] | None = None,
    *,
    first_row: int = 0,
    streams: bool = True,
) -> Iterator[pa.Table]:
    """The rows of a statement, by a cursor of the server if it `streams`, in pieces of at most `ROWS_PER_PIECE` rows and
    about `BYTES_PER_PIECE` bytes; `first_row` is the number of those read before.

    Raises `ConfigurationError` as `arrow_table`, and what the database raises.
    """
    before, rows = first_row, FIRST_ROWS
    with connection.execute(statement, dict(values or {}), execution_options={"stream_results": streams}) as result:
        readers = _readers(connection, place, result, kinds)
        while found := result.fetchmany(rows):
            table = arrow_table(place, kinds, readers, found, first_row=before)
            yield table
            before += len(found)
            rows = max(1, min(4 * rows, ROWS_PER_PIECE, len(found) * BYTES_PER_PIECE // max(1, table.nbytes)))


def column_kind(column: sa.Column[Any]) -> ColumnType:
    """The type of a column of a database; text if this package does not know it."""
    behind = getattr(column.type, "data_type", column.type)  # of a domain
    return sql_types.described(behind) or TEXT


def _readers(
    connection: Connection, place: Place, result: sa.CursorResult[Any], kinds: Mapping[str, ColumnType]
) -> list[Reader]:
    """How the columns of a result become columns of these types.

    Raises `ConfigurationError` where the database tells that they are of types that would lose something.
    """
    if connection.dialect.name == "postgresql":
        told = postgres_reads.told_types(connection, result.cursor.description)
        return encodings.told(connection, postgres_reads.readers(place, told, kinds))
    return [(sqlite.reader_of if connection.dialect.name == "sqlite" else reader_of)(kind) for kind in kinds.values()]
