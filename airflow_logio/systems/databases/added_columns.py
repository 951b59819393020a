"""Columns that a writer declares as ``text null`` and that its table lacks: a run adds them, once.

They are added in the transaction of a run's first write action, behind all its other locks: the statement waits for all
transactions that have touched the table, so what is locked behind it could be what one of those waits for.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.column_types import NULL, ColumnType
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.databases import sql_types
from airflow_logio.systems.databases.table_names import TableName, folded, in_double_quotes

_DIALECTS: Mapping[str, sa.Dialect] = {
    "postgresql": postgresql.dialect(),  # type: ignore[no-untyped-call]
    "sqlite": sqlite.dialect(),
}
_MAY_ADD = sa.text("""
    SELECT
        c.relkind IN ('r', 'p') AS is_table,
        pg_has_role(c.relowner, 'USAGE') AS is_owner,
        pg_get_userbyid(c.relowner) AS owner
    FROM pg_class AS c WHERE c.oid = to_regclass(:name)
""")
_IS_TABLE = sa.text(
    "SELECT type = 'table' FROM sqlite_master WHERE name = :name COLLATE NOCASE AND type IN ('table', 'view')"
)
_REQUIRED = sa.text("""
    SELECT a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
    WHERE c.oid = to_regclass(:name) AND c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped
        AND a.attnotnull AND NOT a.atthasdef AND a.attidentity = ''
        AND (SELECT t.typdefault FROM pg_type AS t WHERE t.oid = a.atttypid) IS NULL
        AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgtype & 2 = 2)
        AND NOT EXISTS (SELECT FROM pg_rewrite AS r WHERE r.ev_class = c.oid)
    ORDER BY a.attnum
""")
"""Columns that a row must give a value for. A trigger before it, or a rule, may give it."""


def missing(writer: TableWriter, found: Mapping[str, str], dialect: str) -> dict[str, ColumnType]:
    """The columns that a run adds: their types. `found` are those that the table has."""
    kinds = writer.column_types() or {}
    has = {name: (folded(name) if dialect == "sqlite" else name) in found for name in writer.may_add}
    return {name: kinds[name] for name in kinds if has.get(name) is False}


def statement(table: str, columns: Mapping[str, ColumnType], dialect: str, *, once: bool = False) -> str:
    """What adds the columns to a table, whose name is as it stands in SQL. SQLite takes them one by one."""
    if_missing = "IF NOT EXISTS " if once else ""
    what = ", ".join(f"ADD COLUMN {if_missing}{_declared(name, kind, dialect)}" for name, kind in columns.items())
    return f"ALTER TABLE {table} {what}"


def add(connection: Connection, writer: TableWriter, name: TableName, found: Mapping[str, str]) -> None:
    """Add the columns that are missing; of several runs that do so at once, one does. Raises `WriteRefused`."""
    dialect = connection.dialect.name
    columns = missing(writer, found, dialect)
    if not columns:
        return
    check_may_add(connection, writer, name, found)
    if dialect == "postgresql":
        sent = [statement(name.quoted(connection), columns, dialect, once=True)]
    else:
        sent = [statement(name.quoted(connection), {one: kind}, dialect) for one, kind in columns.items()]
    for one in sent:
        connection.exec_driver_sql(one)


def check_may_add(connection: Connection, writer: TableWriter, name: TableName, found: Mapping[str, str]) -> None:
    """Raises `WriteRefused`, with the statement, if columns are missing that this role may not add."""
    dialect = connection.dialect.name
    columns = missing(writer, found, dialect)
    if not columns:
        return
    where = f"table {writer.table!r} has no column{'s' if len(columns) > 1 else ''} {', '.join(map(repr, columns))}"
    if dialect == "sqlite":
        if not connection.execute(_IS_TABLE, {"name": name.table}).scalar():
            raise WriteRefused(
                f"{where}, and is a view, to which none can be added: change the view, or name its table"
            )
        return
    may = connection.execute(_MAY_ADD, {"name": name.as_value()}).one()
    if not may.is_table:
        raise WriteRefused(f"{where}, and is no table, so that none can be added: change the view, or name its table")
    if not may.is_owner:
        raise WriteRefused(
            f"{where}, which a run adds, and its owner is role {may.owner!r}: no other role may. Let that role do it, then "
            f"retry: {statement(name.as_value(), columns, dialect)}"
        )


def check_required(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Raises `WriteRefused` if rows must have a value in a column that the writer does not declare."""
    if writer.columns is None:
        return
    if connection.dialect.name == "sqlite":
        rows = connection.exec_driver_sql(f"PRAGMA table_xinfo({name.quoted(connection)})").all()
        declared = {folded(one) for one in writer.columns}
        required = [
            row.name for row in rows if row.notnull and row.dflt_value is None and not row.pk and not row.hidden
        ]
        left = [one for one in required if folded(one) not in declared]
        way_out = "Declare it; SQLite can give it no default afterwards"
    else:
        required = list(connection.execute(_REQUIRED, {"name": name.as_value()}).scalars())
        left = [one for one in required if one not in writer.columns]
        way_out = f"If it is needed no more: ALTER TABLE {name.as_value()} " + ", ".join(
            f"ALTER COLUMN {in_double_quotes(one)} DROP NOT NULL" for one in left
        )
    if left:
        raise WriteRefused(
            f"table {writer.table!r} has column {left[0]!r}, which is NOT NULL and has no default, and its writer does not "
            f"declare it: no row would get in. {way_out}"
        )


def how_to_add(table: str, name: str, kind: ColumnType, dialect: str, *, is_declared: bool) -> str:
    """What an author does about a column that a table lacks; one that is not declared is the lineage column."""
    by_hand = f"add it yourself: {statement(table, {name: kind}, dialect)}"
    if not is_declared:
        return f". It is the lineage column: {by_hand}"
    return (
        f". If it is new, declare it {f'{kind} {NULL}'!r}: the next run adds it, and rows from before have null there. Or "
        f"{by_hand}"
    )


def how_to_change(table: str, name: str, kind: ColumnType, dialect: str) -> str:
    """What makes a column of another type hold a declared one."""
    if dialect != "postgresql":
        return ""
    return f": ALTER TABLE {table} ALTER COLUMN {in_double_quotes(name)} TYPE {_sql(kind, dialect)}"


def _declared(name: str, kind: ColumnType, dialect: str) -> str:
    return f"{in_double_quotes(name)} {_sql(kind, dialect)}"


def _sql(kind: ColumnType, dialect: str) -> str:
    return sql_types.sql_type(kind).compile(dialect=_DIALECTS[dialect])
