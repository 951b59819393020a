"""Rows of SQL tables as Arrow records, in the types that the database tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.errors import ConfigurationError
from airflow_logio.runtime.systems import sql_types, sqlite_cells

KEYS_PER_QUERY = 5_000
TEXT = ColumnType("text")
_FAILURES = (pa.ArrowException, ValueError, OverflowError)


def described_table(connection: Connection, table: str, where: str) -> sa.Table:
    """A table as the database describes it. Raises `ConfigurationError`, which ends with `where`, if there is none."""
    schema, name = schema_and_table(table)
    try:
        return sa.Table(name, sa.MetaData(), schema=schema, autoload_with=connection)
    except sa.exc.NoSuchTableError:
        raise ConfigurationError(f"table {table!r} {where}") from None


def fetch(connection: Connection, read: TableRead, keys: pa.Array | None) -> pa.Table:
    """The rows of a table, or those whose key is among `keys`.

    Raises `ConfigurationError`, naming table and column, for what is not there and for values that Arrow cannot hold.
    """
    table = described_table(connection, read.table, f"is not in connection {read.connection!r}")
    names = list(read.columns) or [column.name for column in table.columns]
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise ConfigurationError(f"table {read.table!r} of connection {read.connection!r} has no column {missing[0]!r}")
    kinds = {name: column_kind(table.columns[name]) for name in names}
    is_sqlite = connection.dialect.name == "sqlite"
    query = sa.select(*(_read_as(table.columns[name], kind, is_sqlite=is_sqlite) for name, kind in kinds.items()))
    if keys is None or read.key is None:
        found = connection.execute(query).all()
    else:
        values = pc.unique(keys).drop_null().to_pylist()
        restricted = query.where(table.columns[read.key].in_(sa.bindparam("keys", expanding=True)))
        found = []
        for start in range(0, len(values), KEYS_PER_QUERY):
            found += connection.execute(restricted, {"keys": values[start : start + KEYS_PER_QUERY]}).all()
    columns = list(zip(*found, strict=True)) if found else [()] * len(names)
    where = f"table {read.table!r} of connection {read.connection!r}"
    return arrow_table(where, kinds, columns, as_cells=is_sqlite)


def column_kind(column: sa.Column[Any]) -> ColumnType:
    """The type of a column of a database; text if this package does not know it."""
    return sql_types.described(column.type) or TEXT


def arrow_table(
    where: str, kinds: dict[str, ColumnType], columns: Sequence[Sequence[Any]], *, as_cells: bool, first_row: int = 0
) -> pa.Table:
    """Columns of values as an Arrow table; `as_cells` if they are as SQLite has stored them, whatever they are.

    Raises `ConfigurationError`, naming `where`, column and row (counted from 0; `first_row` is that of the first one).
    """
    arrays = {}
    for (name, kind), values in zip(kinds.items(), columns, strict=True):
        try:
            arrays[name] = _array(kind, values, as_cells=as_cells)
        except _FAILURES as error:
            row = next(row for row, value in enumerate(values) if not _fits(kind, value, as_cells=as_cells))
            raise ConfigurationError(
                f"{where}, column {name!r}, row {first_row + row} of those read (counted from 0): the value is no "
                f"{sql_types.arrow_type(kind)}: {error}"
            ) from error
    return pa.table(arrays, schema=pa.schema([(name, sql_types.arrow_type(kind)) for name, kind in kinds.items()]))


def _read_as(column: sa.Column[Any], kind: ColumnType, *, is_sqlite: bool) -> sa.ColumnElement[Any]:
    if is_sqlite:
        return sa.type_coerce(column, sa.types.NullType()).label(column.name)
    if kind.name not in (DECIMAL, "json", "uuid"):
        return column
    return sa.type_coerce(column, sql_types.read_type(kind)).label(column.name)


def _array(kind: ColumnType, values: Sequence[Any], *, as_cells: bool) -> pa.Array:
    if as_cells:
        values = [sqlite_cells.value_of(kind, value) for value in values]
    elif kind.name == "double":  # NUMERIC without a precision comes as Decimal
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, sql_types.arrow_type(kind))


def _fits(kind: ColumnType, value: Any, *, as_cells: bool) -> bool:
    try:
        _array(kind, [value], as_cells=as_cells)
    except _FAILURES:
        return False
    return True
