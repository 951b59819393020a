"""Rows of SQL tables as Arrow records, in the types that the database tells."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.databases import postgres_reads, sql_types, sqlite
from airflow_logio.systems.databases.read_values import Place, Reader, arrow_table, reader_of, schema_of_kinds
from airflow_logio.systems.databases.table_names import reflected

KEYS_PER_QUERY = 5_000
KEYS = "keys"
"""The parameter of a statement that has so many of them, or fewer."""
FIRST_ROWS = 16
ROWS_PER_PIECE = 10_000
BYTES_PER_PIECE = 8 * 2**20
"""What is taken from a cursor at a time: few rows first, then as many as are likely to stay within both bounds."""
TEXT = ColumnType("text")
_COMPARED: tuple[tuple[Callable[[pa.DataType], bool], tuple[type[Any], ...]], ...] = (
    (pa.types.is_integer, (sa.Integer, sa.Numeric)),
    (pa.types.is_decimal, (sa.Integer, sa.Numeric)),
    (pa.types.is_boolean, (sa.Boolean,)),
    (pa.types.is_date, (sa.Date,)),
    (pa.types.is_timestamp, (sa.DateTime,)),
)
"""Arrow type of keys → types of columns for which different keys are different."""


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
    tables, before = [chosen.schema.empty_table()], 0
    for statement, values in _asked(chosen, read, keys):
        result = connection.execute(statement, values)
        readers, rows = _readers(connection, chosen.place, result, chosen.kinds), result.all()
        tables.append(arrow_table(chosen.place, chosen.kinds, readers, rows, first_row=before))
        before += len(rows)
    return pa.concat_tables(tables)


def fetched(connection: Connection, read: TableRead, keys: pa.Array | None) -> Generator[pa.Table, None, None]:
    """As `fetch`, in pieces: the first one has no rows."""
    chosen = _selected(connection, read)
    yield chosen.schema.empty_table()
    before = 0
    for statement, values in _asked(chosen, read, keys):
        for table in pieces(connection, chosen.place, statement, chosen.kinds, values, first_row=before):
            yield table
            before += table.num_rows


def _selected(connection: Connection, read: TableRead) -> Selection:
    chosen = selection(connection, read.connection, read.table, read.columns)
    place = chosen.place if read.key is None else replace(chosen.place, key=(read.key,))
    return replace(chosen, place=replace(place, where=f"the read of {place.where}"))


def _asked(
    chosen: Selection, read: TableRead, keys: pa.Array | None
) -> Iterator[tuple[sa.Select[Any], dict[str, Any]]]:
    """The statements of a read, with their values."""
    if keys is None or read.key is None:
        yield chosen.statement, {}
        return
    statement, distinct = chosen.by_keys(read.key), pc.unique(keys).drop_null()
    for values in in_portions(distinct, KEYS_PER_QUERY if chosen.may_portion(read.key, keys.type) else len(distinct)):
        yield statement, {KEYS: values}


def in_portions(keys: Any, most: int) -> Iterator[list[Any]]:
    """Keys for one statement each."""
    for start in range(0, len(keys), max(1, most)):
        yield keys.slice(start, most).to_pylist()


class InUtc(sa.types.TypeDecorator[Any]):
    """A time that is compared with a column of times: the database would take one without a zone to be of its own zone."""

    impl = sa.DateTime
    cache_ok = True

    def __init__(self, timezone: bool) -> None:
        super().__init__(timezone=timezone)
        self.timezone = timezone

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> Any:
        if isinstance(value, date) and not isinstance(value, datetime):
            value = datetime.combine(value, time())
        if not isinstance(value, datetime):
            return value
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return moment if self.timezone else moment.replace(tzinfo=None)


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
    is_sqlite: bool = False

    @property
    def schema(self) -> pa.Schema:
        return schema_of_kinds(self.kinds)

    def by_keys(self, key: str) -> sa.Select[Any]:
        """The rows whose key is among the values `KEYS`. Raises `ConfigurationError` if there is no such column."""
        if key not in self.table.columns:
            raise ConfigurationError(f"{self.place.where} has no column {key!r}, by which it is read")
        column = self.table.columns[key]
        asked: sa.BindParameter[Any] = sa.bindparam(KEYS, expanding=True)
        if isinstance(column.type, sa.DateTime) and not self.is_sqlite:
            asked = sa.bindparam(KEYS, expanding=True, type_=InUtc(column.type.timezone))
        return self.statement.where(column.in_(asked))

    def may_portion(self, key: str, kind: pa.DataType) -> bool:
        """Whether several statements may share keys of an Arrow type: the database takes no two different ones for equal.

        Otherwise (text padded with blanks or without case, text for numbers) two statements could find one row. SQLite
        tells no collation, and takes no more keys in a statement.
        """
        found = self.table.columns[key].type
        if self.is_sqlite:
            return True
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return type(found) in (sa.TEXT, sa.VARCHAR) and found.collation is None  # type: ignore[attr-defined]
        plain = (kinds for is_one, kinds in _COMPARED if is_one(kind))
        return isinstance(found, next(plain, ())) and not isinstance(found, sa.Float)


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
    kinds = kinds_of(connection, where_it_is, described, names)
    restricted = statement if where is None else statement.where(where(described))
    return Selection(where_it_is, described, restricted, kinds, connection.dialect.name == "sqlite")


def _as_it_is(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """Without what SQLAlchemy makes of values by the type of the column."""
    return sa.type_coerce(column, sa.types.NullType()).label(column.name)


def kinds_of(connection: Connection, place: Place, table: sa.Table, names: Sequence[str]) -> dict[str, ColumnType]:
    """Columns of a table with their types, as the database tells them.

    Raises `ConfigurationError` for a column of PostgreSQL whose values no type holds.
    """
    if connection.dialect.name != "postgresql":
        return {name: column_kind(table.columns[name]) for name in names}
    nothing = sa.select(*(_as_it_is(table.columns[name]) for name in names)).limit(0)
    with connection.execute(nothing) as result:
        told = postgres_reads.told_types(connection, result.cursor.description)
    return {name: postgres_reads.kind_of(place, name, has) for name, has in zip(names, told, strict=True)}


def pieces(
    connection: Connection,
    place: Place,
    statement: sa.Executable,
    kinds: dict[str, ColumnType],
    values: Mapping[str, Any] | None = None,
    *,
    first_row: int = 0,
) -> Iterator[pa.Table]:
    """The rows of a statement by a cursor of the server, in pieces of at most `ROWS_PER_PIECE` rows and about
    `BYTES_PER_PIECE` bytes; `first_row` is the number of those read before.

    Raises `ConfigurationError` as `arrow_table`, and what the database raises.
    """
    before, rows = first_row, FIRST_ROWS
    with connection.execute(statement, dict(values or {}), execution_options={"stream_results": True}) as result:
        readers = _readers(connection, place, result, kinds)
        while found := result.fetchmany(rows):
            table = arrow_table(place, kinds, readers, found, first_row=before)
            yield table
            before += len(found)
            rows = max(1, min(4 * rows, ROWS_PER_PIECE, len(found) * BYTES_PER_PIECE // max(1, table.nbytes)))


def column_kind(column: sa.Column[Any]) -> ColumnType:
    """The type of a column of a database; text if this package does not know it."""
    return sql_types.described(column.type) or TEXT


def _readers(
    connection: Connection, place: Place, result: sa.CursorResult[Any], kinds: Mapping[str, ColumnType]
) -> list[Reader]:
    """How the columns of a result become columns of these types.

    Raises `ConfigurationError` where the database tells that they are of types that would lose something.
    """
    if connection.dialect.name == "postgresql":
        told = postgres_reads.told_types(connection, result.cursor.description)
        return postgres_reads.readers(place, told, kinds)
    return [(sqlite.reader_of if connection.dialect.name == "sqlite" else reader_of)(kind) for kind in kinds.values()]
