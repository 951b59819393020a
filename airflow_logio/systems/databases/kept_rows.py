"""What of a table keeps a run from replacing rows of it: asked before any is deleted, in the transaction that deletes.
And how they are deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.databases import sqlite
from airflow_logio.systems.databases.table_names import TableName

_FOUND = sa.text("""
    WITH RECURSIVE found AS (
        SELECT c.oid AS id, c.relkind AS kind
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE n.nspname = :schema AND c.relname = :table
    ),
    below AS (
        SELECT id FROM found
        UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN below ON i.inhparent = below.id
    ),
    policies AS (
        SELECT p.polcmd, p.polpermissive, coalesce(pg_get_expr(p.polqual, p.polrelid), 'true') = 'true' AS shows_all
        FROM pg_catalog.pg_policy AS p JOIN found ON p.polrelid = found.id
        WHERE p.polcmd IN ('*', 'r', 'd') AND EXISTS (
            SELECT FROM unnest(p.polroles) AS role WHERE role = 0 OR pg_has_role(role, 'USAGE')
        )
    )
    SELECT
        CAST(kind AS text) AS kind,
        (
            SELECT CAST(CAST(i.inhparent AS regclass) AS text)
            FROM pg_catalog.pg_inherits AS i WHERE i.inhrelid = found.id LIMIT 1
        ) AS parent,
        CASE WHEN row_security_active(id) THEN CAST(current_user AS text) END AS role,
        NOT EXISTS (SELECT FROM policies WHERE NOT polpermissive AND NOT shows_all)
            AND EXISTS (SELECT FROM policies WHERE polpermissive AND shows_all AND polcmd IN ('*', 'r'))
            AND EXISTS (SELECT FROM policies WHERE polpermissive AND shows_all AND polcmd IN ('*', 'd')) AS shows_all,
        (
            SELECT 'foreign key ' || k.conname || ' of table ' || CAST(CAST(k.conrelid AS regclass) AS text)
            FROM pg_catalog.pg_constraint AS k JOIN below ON k.confrelid = below.id
            WHERE k.contype = 'f' AND k.confdeltype IN ('c', 'n', 'd')
                AND (NOT :whole OR k.conrelid NOT IN (SELECT id FROM below))
            ORDER BY k.conrelid, k.conname LIMIT 1
        ) AS changing
    FROM found
""")
"""Of a table of PostgreSQL, if it is there. Policies of a part do not count where the whole is named; foreign keys do, but
for those within a table whose rows all go."""


def check_replaced(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """Raises `WriteRefused` for a table whose rows are not replaced by themselves alone: the role may not see, or not delete,
    each row, so that some would be kept, or rows of other tables would go or change with them."""
    where = _where(writer)
    if connection.dialect.name == "sqlite":
        _check_alone(where, writer, sqlite.changing_key(connection, name, whole=True))
    elif (found := _found(connection, name, whole=True)) is not None:
        _check_all_seen(where, found)
        _check_alone(where, writer, found.changing)


def check_owned_by_value(connection: Connection, writer: TableWriter, name: TableName) -> None:
    """As `check_replaced`, for a writer that owns a part of the table; and for a table that has another name, under which
    runs claim parts of their own."""
    where = _where(writer)
    if connection.dialect.name == "sqlite":
        if sqlite.is_view(connection, name):
            raise WriteRefused(_no_table(where, "a view"))
        check_none_put_away(connection, where, name)
        _check_alone(where, writer, sqlite.changing_key(connection, name, whole=False))
        return
    if (found := _found(connection, name, whole=False)) is None:
        return
    if found.kind not in ("r", "p"):
        raise WriteRefused(_no_table(where, {"v": "a view", "f": "a foreign table"}.get(found.kind, "no table")))
    if found.parent is not None:
        raise WriteRefused(
            f"{where} is a part of table {found.parent}, whose name it has as well: two runs could own one day there. Let "
            f"the writer name {found.parent}"
        )
    _check_all_seen(where, found)
    _check_alone(where, writer, found.changing)


def check_none_put_away(connection: Connection, where: str, name: TableName) -> None:
    """Raises `WriteRefused` for a table of SQLite in which a row goes without a word when another one comes with its key."""
    if sqlite.puts_rows_away(connection, name):
        raise WriteRefused(
            f"{where} has a key with ON CONFLICT REPLACE: a row that another run has written, or one of another key, would "
            "go when this run writes one that has the same value there. Make the table without that clause"
        )


def _where(writer: TableWriter) -> str:
    return f"table {writer.table!r}"


def _found(connection: Connection, name: TableName, *, whole: bool) -> Any:
    if connection.dialect.name != "postgresql":
        return None
    return connection.execute(_FOUND, {"schema": name.schema, "table": name.table, "whole": whole}).one_or_none()


def _check_alone(where: str, writer: TableWriter, changing: str | None) -> None:
    """Raises `WriteRefused` where a foreign key changes rows of others when rows of the table are deleted."""
    if changing is None:
        return
    if writer.closes:  # rows go and come in one transaction
        what = "each new run of a day deletes that day's rows first"
        how = (
            "ON DELETE NO ACTION DEFERRABLE INITIALLY DEFERRED: then rows that come back under their keys keep it, and a run "
            "that leaves one out is refused"
        )
    else:
        what = f"a new run deletes {'the rows of its day' if writer.owns else 'all rows'} first, and its own come later"
        how = "ON DELETE NO ACTION: then a run is refused while rows refer to those that it deletes. Delete these before it"
    raise WriteRefused(
        f"{where}: {changing} deletes or changes rows when those are deleted that it refers to, and {what}. Declare it {how}"
    )


def _check_all_seen(where: str, found: Any) -> None:
    if found.role is None or found.shows_all:
        return
    raise WriteRefused(
        f"{where} has row-level security, which may hide rows from role {found.role!r}: these would stay beside the new "
        f"ones, and nothing would tell. Let the role see all (ALTER ROLE {found.role} BYPASSRLS, or policies FOR SELECT and "
        "FOR DELETE whose USING is true), then retry"
    )


def _no_table(where: str, what: str) -> str:
    return (
        f"{where} is {what}, and runs own days of tables: under another name of the same rows, another run could own one of "
        "them as well. Let the writer name the table itself"
    )


_MOST_DELETES = 10
"""Of the same rows. One finds all that were committed before it began."""


def delete_all(connection: Connection, statement: sa.Delete, is_filled: Callable[[], bool]) -> None:
    """Delete rows, again while `is_filled`: others may have committed some since.

    Rows that are there after that are left: a trigger that puts back what is deleted would have them deleted for ever.
    """
    for _ in range(_MOST_DELETES):
        if connection.execute(statement).rowcount <= 0 or not is_filled():
            return
