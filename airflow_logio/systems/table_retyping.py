"""An empty table of a run whose author has given columns other types since it was made (ADR-73).

All of it happens under the marker and the owner of the table, in one transaction, by the driver that writes first: what
it finds done already it leaves, so it may die anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.schema import CreateTable
from sqlalchemy.types import TypeEngine

from airflow_logio.dataflow.column_types import column_type
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.write_actions import Marker
from airflow_logio.protocol.warehouse_rules import OPENING_WRITE, check_token
from airflow_logio.systems import table_inserts, warehouse_rows
from airflow_logio.systems.sql_types import sql_type
from airflow_logio.systems.table_names import TableName, reflected

_HANGS_ON_IT = sa.text(
    "SELECT 1 FROM sqlite_master WHERE lower(tbl_name) = :name AND type IN ('index', 'trigger') AND sql IS NOT NULL LIMIT 1"
)
_MADE_BY = sa.text("SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = :name")

FormerTypes = Mapping[str, Sequence[str]]
"""Column → types that it was declared with before."""


def retype(connection: Connection, writer: TableWriter, name: TableName, marker: Marker, former: FormerTypes) -> bool:
    """Give columns of a table their declared types where they still have a former one; True if one was changed.

    Only if the run has applied nothing but its first write action, owns the table, and the table is empty. In SQLite, which
    cannot change a type, the table is made anew, if it is as the run has made it and nothing hangs on it. What is left as it
    is, is judged like any table that was there before. A table that a person has removed is made again. Raises `Fenced`.
    """
    before = warehouse_rows.lock_marker(connection, marker)
    check_token(marker.operator, marker.connection, marker.token, before)
    if before.number != OPENING_WRITE:
        return False
    owner = warehouse_rows.read_owner(connection, name, for_update=True)
    declared = table_inserts.target_table(connection, writer, name)
    if owner is None or owner.run_uid != marker.run_uid:
        return False
    stale = _stale(connection, declared, name, former)
    if not stale or _is_filled(connection, declared, name):
        return False
    if connection.dialect.name == "sqlite":
        return _made_anew(connection, declared, name, stale)
    quote = connection.dialect.identifier_preparer.quote
    for column in stale:
        kind = _ddl(connection, declared.c[column].type)
        connection.exec_driver_sql(
            f"ALTER TABLE {name.quoted(connection)} ALTER COLUMN {quote(column)} TYPE {kind} USING NULL::{kind}"
        )
    return True


def _stale(
    connection: Connection, declared: sa.Table, name: TableName, former: FormerTypes
) -> dict[str, TypeEngine[Any]]:
    """Column → its type in the database, where that is a former one, and not the declared one."""
    found = reflected(connection, name.table, name.schema)
    has = {column.name: _ddl(connection, column.type) for column in found.columns}
    stale = {}
    for column, types in former.items():
        if has.get(column) == _ddl(connection, declared.c[column].type):
            continue
        for kind in (sql_type(column_type(f"column {column!r}", one)) for one in types):
            if has.get(column) == _ddl(connection, kind):
                stale[column] = kind
    return stale


def _ddl(connection: Connection, kind: TypeEngine[Any]) -> str:
    """A type as in a CREATE TABLE."""
    return str(kind.compile(dialect=connection.dialect))


def _is_filled(connection: Connection, table: sa.Table, name: TableName) -> bool:
    if connection.dialect.name == "postgresql":  # what is empty stays so until the commit
        connection.exec_driver_sql(f"LOCK TABLE {name.quoted(connection)} IN ACCESS EXCLUSIVE MODE")
    return connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None


def _made_anew(
    connection: Connection, declared: sa.Table, name: TableName, stale: Mapping[str, TypeEngine[Any]]
) -> bool:
    """Whether the table was as the run had made it, with the types `stale`, and nothing was lost with it."""
    columns = [
        sa.Column(one.name, stale.get(one.name, one.type), primary_key=one.primary_key, autoincrement=False)
        for one in declared.columns
    ]
    made = str(CreateTable(sa.Table(name.table, sa.MetaData(), *columns)).compile(dialect=connection.dialect))
    found = connection.execute(_MADE_BY, {"name": name.key}).scalar_one()
    if found.split() != made.split() or connection.execute(_HANGS_ON_IT, {"name": name.key}).first():
        return False
    declared.drop(connection)
    declared.create(connection)
    return True
