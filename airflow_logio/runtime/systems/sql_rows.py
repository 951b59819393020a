"""Arrow records in and out of SQL tables: the fast way each database has, and a general one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, WriteRefused

KEYS_PER_QUERY = 5_000
ROWS_PER_STATEMENT = 50_000

SQL_TYPES: dict[str, Any] = {
    "bigint": sa.BigInteger,
    "double": sa.Double,
    "text": sa.Text,
    "boolean": sa.Boolean,
    "timestamp": sa.DateTime,
    "date": sa.Date,
}
ARROW_TYPES: dict[str, pa.DataType] = {
    "bigint": pa.int64(),
    "double": pa.float64(),
    "text": pa.string(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us"),
    "date": pa.date32(),
}
_POSTGRES_ARRAYS = {
    "bigint": "bigint[]",
    "double": "double precision[]",
    "text": "text[]",
    "boolean": "boolean[]",
    "timestamp": "timestamp[]",
    "date": "date[]",
}


def fetch(connection: Connection, read: TableRead, keys: pa.Array | None) -> pa.Table:
    """The rows of a table, or those whose key is among `keys`; column types as the database tells them."""
    try:
        table = sa.Table(read.table, sa.MetaData(), autoload_with=connection)
    except sa.exc.NoSuchTableError:
        raise ConfigurationError(f"table {read.table!r} is not in connection {read.connection!r}") from None
    names = list(read.columns) or [column.name for column in table.columns]
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise ConfigurationError(f"table {read.table!r} of connection {read.connection!r} has no column {missing[0]!r}")
    schema = pa.schema([(name, arrow_type(table.columns[name])) for name in names])
    query = sa.select(*(table.columns[name] for name in names))
    if keys is None or read.key is None:
        found = connection.execute(query).all()
    else:
        values = pc.unique(keys).drop_null().to_pylist()
        restricted = query.where(table.columns[read.key].in_(sa.bindparam("keys", expanding=True)))
        found = []
        for start in range(0, len(values), KEYS_PER_QUERY):
            found += connection.execute(restricted, {"keys": values[start : start + KEYS_PER_QUERY]}).all()
    columns = list(zip(*found, strict=True)) if found else [()] * len(names)
    return pa.table([_array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):  # NUMERIC comes as Decimal
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, kind)


def arrow_type(column: sa.Column[Any]) -> pa.DataType:
    kinds: list[tuple[Any, str]] = [
        (sa.Boolean, "boolean"),
        (sa.Integer, "bigint"),
        (sa.DateTime, "timestamp"),
        (sa.Date, "date"),
        ((sa.Numeric, sa.Float), "double"),  # a Float is no Numeric from SQLAlchemy 2.1 on
    ]
    return next((ARROW_TYPES[name] for kind, name in kinds if isinstance(column.type, kind)), pa.string())


def table_of(connection: Connection, writer: TableWriter, *, create: bool = False) -> sa.Table:
    """The target table: as declared (created if missing and asked for), else as the database has it."""
    metadata = sa.MetaData()
    if writer.columns:
        columns = [
            sa.Column(name, SQL_TYPES[kind], primary_key=name in writer.primary_key, autoincrement=False)
            for name, kind in writer.columns.items()
        ]
        table = sa.Table(writer.table, metadata, *columns)
        if create:
            metadata.create_all(connection, checkfirst=True)
        return table
    try:
        return sa.Table(writer.table, metadata, autoload_with=connection)
    except sa.exc.NoSuchTableError:
        raise WriteRefused(
            f"table {writer.table!r} of connection {writer.connection!r} does not exist, and its writer declares no columns"
        ) from None


def insert(connection: Connection, writer: TableWriter, tables: Sequence[pa.Table]) -> None:
    """Plain INSERTs of the records of several write actions; a duplicate key fails loudly."""
    records = (
        pa.concat_tables([table for table in tables if table.num_rows]) if any(t.num_rows for t in tables) else None
    )
    if records is None:
        return
    if writer.columns:
        records = _as_declared(writer, records)
    dialect = connection.dialect.name
    for start in range(0, records.num_rows, ROWS_PER_STATEMENT):
        chunk = records.slice(start, ROWS_PER_STATEMENT)
        if dialect == "sqlite" and writer.columns:
            _insert_sqlite(connection, writer, chunk)
        elif dialect == "postgresql" and writer.columns:
            _insert_postgres(connection, writer, chunk)
        else:
            connection.execute(sa.insert(table_of(connection, writer)), chunk.to_pylist())


def _as_declared(writer: TableWriter, records: pa.Table) -> pa.Table:
    assert writer.columns is not None
    missing = [name for name in writer.columns if name not in records.column_names]
    unknown = [name for name in records.column_names if name not in writer.columns]
    if missing or unknown:
        raise WriteRefused(
            f"records for table {writer.table!r} have columns {records.column_names}, "
            f"it is declared with {list(writer.columns)}"
        )
    schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in writer.columns.items()])
    try:
        cast = records.select(list(writer.columns)).cast(schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise WriteRefused(f"records for table {writer.table!r} do not fit its columns: {error}") from error
    for field, column in zip(cast.schema, cast.columns, strict=True):
        _refuse_far_times(writer, field, column)
    return cast


_YEARS_1_TO_9999 = {
    pa.timestamp("us"): (-62_135_596_800 * 10**6, 253_402_300_800 * 10**6 - 1),
    pa.date32(): (-719_162, 2_932_896),
}


def _refuse_far_times(writer: TableWriter, field: pa.Field, column: pa.ChunkedArray) -> None:
    """Arrow's years go further than those of the databases' drivers: what is written must be readable again."""
    if field.type not in _YEARS_1_TO_9999:
        return
    first, last = (pa.scalar(bound, field.type) for bound in _YEARS_1_TO_9999[field.type])
    found = pc.min_max(column)
    if found["min"].is_valid and (pc.less(found["min"], first).as_py() or pc.greater(found["max"], last).as_py()):
        raise WriteRefused(
            f"records for table {writer.table!r} have a time in column {field.name!r} outside the years 1 to 9999, which "
            "databases cannot give back"
        )


def _insert_sqlite(connection: Connection, writer: TableWriter, records: pa.Table) -> None:
    """`executemany` without a type processor per value; timestamps as text, the way SQLAlchemy reads them back."""
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(name) for name in records.column_names)
    marks = ", ".join("?" for _ in records.column_names)
    for field, column in zip(records.schema, records.columns, strict=True):
        if pa.types.is_floating(field.type) and pc.any(pc.is_nan(column)).as_py():
            raise WriteRefused(
                f"records for table {writer.table!r} have NaN in column {field.name!r}, which SQLite would turn into NULL; "
                "fill it before the writer"
            )
    columns = [_sqlite_values(column) for column in records.columns]
    connection.exec_driver_sql(
        f"INSERT INTO {quote(writer.table)} ({names}) VALUES ({marks})", list(zip(*columns, strict=True))
    )


def _sqlite_values(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column, format="%Y-%m-%d %H:%M:%S")
    elif pa.types.is_date(column.type):
        column = pc.strftime(column, format="%Y-%m-%d")
    elif pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values: list[Any] = column.to_pylist()
    return values


def _insert_postgres(connection: Connection, writer: TableWriter, records: pa.Table) -> None:
    """One INSERT of parallel arrays: one statement, parsed by the server, no round trip per page of rows."""
    assert writer.columns is not None
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(name) for name in records.column_names)
    casts = ", ".join(f"%s::{_POSTGRES_ARRAYS[writer.columns[name]]}" for name in records.column_names)
    values = tuple(_postgres_array(column) for column in records.columns)
    connection.exec_driver_sql(f"INSERT INTO {quote(writer.table)} ({names}) SELECT * FROM unnest({casts})", values)


def _postgres_array(column: pa.ChunkedArray) -> Any:
    """An array literal for types whose text form needs no quoting; a list, quoted by the driver, for text."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.to_pylist()
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        text = pc.binary_join_element_wise('"', pc.cast(column, pa.string()), '"', "")
    else:
        text = pc.cast(column, pa.string())
    return "{" + ",".join(pc.fill_null(text, "NULL").to_pylist()) + "}"
