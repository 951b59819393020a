"""By which columns rows of a table can be updated: asked before a run writes, and in each transaction that does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import ColumnType
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.dataflow.writers.upserts import VERSION_TYPES, no_version
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.databases import kept_rows, postgres, sqlite, table_inserts
from airflow_logio.systems.databases.sql_types import described
from airflow_logio.systems.databases.table_names import TableName, folded, in_double_quotes, quoted

_FOUND = sa.text("""
    SELECT
        CAST(c.relkind AS text) AS kind,
        c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = c.oid) AS has_children,
        EXISTS (
            SELECT FROM pg_catalog.pg_index AS x
            WHERE x.indrelid = c.oid AND x.indisunique AND x.indisvalid AND x.indimmediate
                AND x.indpred IS NULL AND x.indexprs IS NULL AND x.indnkeyatts = cardinality(CAST(:columns AS text[]))
                AND NOT EXISTS (
                    SELECT FROM generate_series(0, x.indnkeyatts - 1) AS place
                    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = x.indkey[place]
                    WHERE CAST(a.attname AS text) <> ALL (CAST(:columns AS text[])) OR x.indcollation[place] <> a.attcollation
                )
        ) AS is_keyed
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = :schema AND c.relname = :table
""")
"""An index that compares texts otherwise than their column does would call rows one that are two for the statement."""
_UNIQUE_IN_SQLITE = sa.text("""SELECT name FROM pragma_index_list(:name) WHERE "unique" AND NOT partial""")
_PARTS_IN_SQLITE = sa.text("SELECT name, coll FROM pragma_index_xinfo(:index) WHERE key ORDER BY seqno")
_KEY_IN_SQLITE = sa.text("SELECT name FROM pragma_table_xinfo(:name) WHERE pk")
_TRIMS = "RTRIM"


def check_keyed(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Raises `WriteRefused` if the table is there, and rows of it cannot be updated by the key, or compared by the version,
    that the writer names."""
    if not writer.upserts or (found := table_inserts.found_types(connection, name)) is None:
        return
    key_of(connection, writer, name)
    if writer.version is None:
        return
    table_inserts.check_columns(writer.table, {writer.version: None}, found, connection.dialect.name)
    if (kind := _kind(connection, writer, name, found)) is None or kind.name not in VERSION_TYPES:
        column = folded(writer.version) if connection.dialect.name == "sqlite" else writer.version
        raise WriteRefused(f"table {writer.table!r}: {no_version(writer.version, kind or found[column])}")


def _kind(connection: Connection, writer: TableWriter, name: TableName, found: Mapping[str, str]) -> ColumnType | None:
    """The type of the version."""
    assert writer.version is not None
    if (declared := writer.column_types()) is not None:
        return declared[writer.version]
    if connection.dialect.name == "postgresql":
        return postgres.kind_of(found[writer.version])
    table = table_inserts.target_table(connection, writer, name)
    types = {folded(column.name): column.type for column in table.columns}
    return described(types[folded(writer.version)])


def key_of(connection: Connection, writer: TableWriter, name: TableName) -> Mapping[str, str]:
    """The columns of the key → what is written behind one where two values are compared. The table is there.

    Raises `WriteRefused` if rows of it cannot be updated by that key.
    """
    where = f"table {writer.table!r}"
    if connection.dialect.name == "sqlite":
        return _key_in_sqlite(connection, where, writer, name)
    asked = {"schema": name.schema, "table": name.table, "columns": list(writer.primary_key)}
    found = connection.execute(_FOUND, asked).one()
    if found.kind not in ("r", "p"):
        raise WriteRefused(_no_table(where, {"v": "a view", "f": "a foreign table"}.get(found.kind, "no table")))
    if found.has_children:
        raise WriteRefused(
            f"{where} has tables that inherit from it, and no index of it knows their keys: let the writer name one of "
            "them, or partition the table (PARTITION BY)"
        )
    if not found.is_keyed:
        raise WriteRefused(_not_keyed(where, writer.primary_key, name, "CREATE UNIQUE INDEX ON"))
    return dict.fromkeys(writer.primary_key, "")


def _key_in_sqlite(connection: Connection, where: str, writer: TableWriter, name: TableName) -> Mapping[str, str]:
    if sqlite.is_view(connection, name):
        raise WriteRefused(_no_table(where, "a view"))
    kept_rows.check_none_put_away(connection, where, name)
    wanted = {folded(column): column for column in writer.primary_key}
    for index in connection.execute(_UNIQUE_IN_SQLITE, {"name": name.table}).scalars():
        parts = connection.execute(_PARTS_IN_SQLITE, {"index": index}).all()
        if {None if part.name is None else folded(part.name) for part in parts} != set(wanted):
            continue
        if any(part.coll.upper() == _TRIMS for part in parts):
            raise WriteRefused(
                f"{where}: its key compares texts without the blanks at their ends (COLLATE {_TRIMS}), and some versions of "
                "SQLite lose rows by that: declare it otherwise"
            )
        return {wanted[folded(part.name)]: f" COLLATE {quoted(connection, part.coll)}" for part in parts}
    if {folded(column) for column in connection.execute(_KEY_IN_SQLITE, {"name": name.table}).scalars()} == set(wanted):
        return dict.fromkeys(writer.primary_key, "")  # an INTEGER PRIMARY KEY, which needs no index
    statement = f"CREATE UNIQUE INDEX {in_double_quotes(f'{name.table}_key')} ON"
    raise WriteRefused(_not_keyed(where, writer.primary_key, name, statement))


def _not_keyed(where: str, key: Sequence[str], name: TableName, statement: str) -> str:
    columns = ", ".join(in_double_quotes(column) for column in key)
    return (
        f"{where} has no unique index of exactly {', '.join(key)}, by which rows are updated (one that is partial, "
        f"deferrable or of expressions does not do): {statement} {name.as_value()} ({columns})"
    )


def _no_table(where: str, what: str) -> str:
    return f"{where} is {what}, which has no keys: let the writer name the table whose rows it shows"
