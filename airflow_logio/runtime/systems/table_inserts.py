"""Arrow records into SQL tables: the fast way of each database, and a general one for columns of other types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import DECIMAL, ColumnType
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.write_actions import WriteAction
from airflow_logio.errors import WriteRefused
from airflow_logio.runtime.systems import sql_types
from airflow_logio.runtime.systems.conversions import as_declared
from airflow_logio.runtime.systems.lossy_columns import check_columns
from airflow_logio.runtime.systems.table_names import TableName

ROWS_PER_STATEMENT = 50_000

Insert = Callable[[Connection, pa.Table], None]


def check_target(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Raises `WriteRefused` if the table is there and a column does not hold what is declared."""
    declared = writer.column_types()
    if declared is not None:
        try:
            found = sa.Table(name.table, sa.MetaData(), schema=name.schema, autoload_with=connection)
        except sa.exc.NoSuchTableError:
            return
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
        return sa.Table(name.table, metadata, schema=name.schema, autoload_with=connection)
    except sa.exc.NoSuchTableError:
        raise WriteRefused(f"table {writer.table!r} does not exist, and its writer declares no columns") from None


def prepared(
    connection: Connection, writer: TableWriter, name: TableName, actions: Sequence[WriteAction]
) -> tuple[pa.Table, Insert] | None:
    """All records of the actions, which have some, and how rows of them are inserted; None without actions.

    Plain INSERTs: a duplicate key fails loudly. Raises `WriteRefused`, naming what does not fit.
    """
    if not actions:
        return None
    kinds: Mapping[str, ColumnType] | None = writer.column_types()
    if kinds is None:
        table = target_table(connection, writer, name)
        kinds = _found_kinds(table, actions[0].records.column_names)
        if kinds is None:
            records = pa.concat_tables([action.records for action in actions])
            return records, lambda on, rows: _insert_values(on, table, rows)
        decimals = {column: kind for column, kind in kinds.items() if kind.name == DECIMAL}
        check_columns(writer.table, decimals, table, connection.dialect.name)
    is_sqlite = connection.dialect.name == "sqlite"
    declared = kinds
    records = as_declared(writer.table, declared, actions, with_nan=not is_sqlite)
    if is_sqlite:
        return records, lambda on, rows: _insert_sqlite(on, name, rows)
    return records, lambda on, rows: _insert_postgres(on, name, declared, rows)


def insert(connection: Connection, records: pa.Table, into: Insert) -> None:
    """Insert all rows, in statements of bounded size."""
    for start in range(0, records.num_rows, ROWS_PER_STATEMENT):
        into(connection, records.slice(start, ROWS_PER_STATEMENT))


def rehearse(connection: Connection, writer: TableWriter, name: TableName, actions: Sequence[WriteAction]) -> None:
    """Every kind of statement that a run would execute at the table, first of no row, then with the actions' records."""
    table = target_table(connection, writer, name)
    if writer.on_new_run == "replace":
        connection.execute(sa.delete(table).where(sa.false()))
    nothing = sa.select(*(sa.cast(sa.null(), column.type) for column in table.columns)).where(sa.false())
    connection.execute(sa.insert(table).from_select(list(table.columns), nothing))
    if made := prepared(connection, writer, name, [action for action in actions if action.records.num_rows]):
        insert(connection, *made)


def _found_kinds(table: sa.Table, names: Sequence[str]) -> dict[str, ColumnType] | None:
    """The types of the columns in the database; None if one is of a type that only the database's driver knows."""
    kinds = {}
    for name in names:
        found = table.columns.get(name)
        kind = None if found is None or isinstance(found.type, sa.Enum) else sql_types.described(found.type)
        if kind is None:
            return None
        kinds[name] = kind
    return kinds


def _insert_values(connection: Connection, table: sa.Table, rows: pa.Table) -> None:
    for field in rows.schema:
        column = table.columns.get(field.name)
        if pa.types.is_decimal(field.type) and column is not None and isinstance(column.type, sa.Float):
            raise WriteRefused(f"table {table.name!r}, column {field.name!r}: a decimal does not fit into a double")
    connection.execute(sa.insert(table), rows.to_pylist())


def _insert_sqlite(connection: Connection, name: TableName, rows: pa.Table) -> None:
    """`executemany` without a type processor per value; timestamps as text, the way SQLAlchemy reads them back."""
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(column) for column in rows.column_names)
    marks = ", ".join("?" for _ in rows.column_names)
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
    elif pa.types.is_decimal(column.type):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


def _insert_postgres(connection: Connection, name: TableName, kinds: Mapping[str, ColumnType], rows: pa.Table) -> None:
    """One INSERT of parallel arrays: one statement, parsed by the server, no round trip per page of rows."""
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(column) for column in rows.column_names)
    casts = ", ".join(f"%s::{sql_types.postgres_array(kinds[column])}" for column in rows.column_names)
    values = tuple(_postgres_array(rows.column(column), kinds[column]) for column in rows.column_names)
    connection.exec_driver_sql(f"INSERT INTO {name.quoted(connection)} ({names}) SELECT * FROM unnest({casts})", values)


def _postgres_array(column: pa.ChunkedArray, kind: ColumnType) -> Any:
    """An array literal for types whose text form needs no quoting; a list, quoted by the driver, for text and bytes."""
    if kind.name in ("text", "json", "binary"):
        return column.to_pylist()
    text = pc.cast(column, pa.string())
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        text = pc.binary_join_element_wise('"', text, '"' if kind.name != "timestamptz" else '+00"', "")
    return "{" + ",".join(pc.fill_null(text, "NULL").to_pylist()) + "}"
