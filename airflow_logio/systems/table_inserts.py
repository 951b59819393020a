"""Arrow records into SQL tables: the fast way of each database, and a general one for columns of other types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems import sql_types
from airflow_logio.systems.conversions import Target, as_declared
from airflow_logio.systems.found_kinds import found_kinds
from airflow_logio.systems.found_types import found_types
from airflow_logio.systems.lossy_columns import check_columns, targets
from airflow_logio.systems.table_names import TableName, reflected

ROWS_PER_STATEMENT = 50_000


@dataclass(frozen=True, slots=True)
class Insertion:
    """How records of some columns are inserted into a table. Plain INSERTs: a duplicate key fails loudly."""

    table: str
    targets: Mapping[str, Target]
    into: Callable[[Connection, pa.Table], None]

    def converted(self, actions: Sequence[WriteAction]) -> pa.Table:
        """All records of the actions. Raises `WriteRefused`, naming what does not fit."""
        return as_declared(self.table, self.targets, actions)

    def insert(self, connection: Connection, records: pa.Table) -> None:
        """Insert converted records, in statements of bounded size."""
        for start in range(0, records.num_rows, ROWS_PER_STATEMENT):
            self.into(connection, records.slice(start, ROWS_PER_STATEMENT))


def check_target(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Raises `WriteRefused` if the table is there and a column does not hold what is declared."""
    declared = writer.column_types()
    if declared is not None and (found := found_types(connection, name)) is not None:
        check_columns(writer.table, declared, found, connection.dialect.name)


def target_table(connection: Connection, writer: TableWriter, name: TableName) -> sa.Table:
    """The table, as declared, made if it is missing; or as the database has it.

    Raises `WriteRefused` if it is missing and not declared.
    """
    metadata = sa.MetaData()
    declared = writer.column_types()
    if declared is not None:
        columns = [
            sa.Column(column, sql_types.sql_type(kind), primary_key=column in writer.primary_key, autoincrement=False)
            for column, kind in declared.items()
        ]
        table = sa.Table(name.table, metadata, *columns, schema=name.schema)
        metadata.create_all(connection, checkfirst=True)
        return table
    try:
        return reflected(connection, name.table, name.schema)
    except sa.exc.NoSuchTableError:
        raise WriteRefused(f"table {writer.table!r} does not exist, and its writer declares no columns") from None


def prepared(connection: Connection, writer: TableWriter, name: TableName, actions: Sequence[WriteAction]) -> Insertion:
    """How the records of the actions are inserted, by their columns; there is one at least. Raises `WriteRefused`."""
    dialect, declared = connection.dialect.name, writer.column_types()
    # Asked for each time: the table may be another one than when the writer began, or of another writer's making.
    found = found_types(connection, name) or {}
    kinds: Mapping[str, ColumnType | None] = declared or found_kinds(
        writer.table, target_table(connection, writer, name), found, actions, dialect
    )
    if declared or dialect == "sqlite":
        check_columns(writer.table, kinds, found, dialect)
    return Insertion(writer.table, targets(kinds, found, dialect), _way(connection, writer, name, kinds, found))


def _way(
    connection: Connection,
    writer: TableWriter,
    name: TableName,
    kinds: Mapping[str, ColumnType | None],
    found: Mapping[str, str],
) -> Callable[[Connection, pa.Table], None]:
    """The fastest one for columns of these types."""
    if connection.dialect.name == "sqlite":
        return lambda on, rows: _insert_sqlite(on, name, rows)
    if None in kinds.values():
        table = target_table(connection, writer, name)
        return lambda on, rows: _insert_values(on, table, kinds, rows)
    types = {column: _array_type(kind, found[column]) for column, kind in kinds.items() if kind is not None}
    return lambda on, rows: _insert_postgres(on, name, types, rows)


def rehearse(connection: Connection, writer: TableWriter, name: TableName, actions: Sequence[WriteAction]) -> None:
    """Every kind of statement that a run would execute at the table, first of no row, then with the actions' records."""
    table = target_table(connection, writer, name)
    if writer.on_new_run == "replace":
        connection.execute(sa.delete(table).where(sa.false()))
    nothing = sa.select(*(sa.cast(sa.null(), column.type) for column in table.columns)).where(sa.false())
    connection.execute(sa.insert(table).from_select(list(table.columns), nothing))
    if filled := [action for action in actions if action.records.num_rows]:
        made = prepared(connection, writer, name, filled)
        made.insert(connection, made.converted(filled))


def _array_type(kind: ColumnType, found: str) -> str:
    """The type as which values are sent. A double that PostgreSQL itself makes a NUMERIC keeps 15 digits only."""
    if kind.name == "double" and found == "numeric":
        return "numeric[]"
    return sql_types.postgres_array(kind)


def _insert_values(
    connection: Connection, table: sa.Table, kinds: Mapping[str, ColumnType | None], rows: pa.Table
) -> None:
    """Values as the driver passes them on, to columns of a type that only it knows."""
    columns: list[Any] = []
    for place, (name, kind) in enumerate(kinds.items()):
        columns.append(sa.column(name, table.columns[name].type if kind is None else sql_types.read_type(kind)))
        if kind is not None and kind.name == "timestamptz":
            rows = rows.set_column(place, name, rows.column(name).cast(pa.timestamp("us", "UTC")))
    target = sa.table(table.name, *columns, schema=table.schema)
    connection.execute(sa.insert(target), rows.to_pylist())


def _insert_sqlite(connection: Connection, name: TableName, rows: pa.Table) -> None:
    """`executemany` without a type processor per value; timestamps as text, the way SQLAlchemy reads them back."""
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(column) for column in rows.schema.names)
    marks = ", ".join("?" for _ in rows.schema.names)
    columns = [_sqlite_values(column) for column in rows.columns]
    connection.exec_driver_sql(
        f"INSERT INTO {name.quoted(connection)} ({names}) VALUES ({marks})", list(zip(*columns, strict=True))
    )


def _sqlite_values(column: pa.ChunkedArray) -> list[Any]:
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


def _insert_postgres(connection: Connection, name: TableName, types: Mapping[str, str], rows: pa.Table) -> None:
    """One INSERT of parallel arrays of `types`: one statement, parsed by the server, no round trip per page of rows."""
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(column) for column in rows.schema.names)
    casts = ", ".join(f"%s::{types[column]}" for column in rows.schema.names)
    values = tuple(_postgres_array(rows.column(column), types[column]) for column in rows.schema.names)
    connection.exec_driver_sql(f"INSERT INTO {name.quoted(connection)} ({names}) SELECT * FROM unnest({casts})", values)


def _postgres_array(column: pa.ChunkedArray, kind: str) -> Any:
    """An array literal for types whose text form needs no quoting; a list, quoted by the driver, for text and bytes."""
    if pa.types.is_binary(column.type) or kind in ("text[]", "json[]"):
        return column.to_pylist()
    text = pc.cast(column, pa.string())
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        text = pc.binary_join_element_wise('"', text, '"' if kind != "timestamptz[]" else '+00"', "")
    return "{" + ",".join(pc.fill_null(text, "NULL").to_pylist()) + "}"
