"""One snapshot of a PostgreSQL that many sessions read: exported by a transaction that stays open, imported by others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.databases import SNAPSHOT, cause_of, idle_for
from airflow_logio.errors import ExternalUnavailable
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.warehouse import Warehouse

log = logging.getLogger(__name__)

HELD_SECONDS = 60
"""A session that exports is ended by the server if it is silent so long (its process may have stopped); it says something
so often."""
READING_SECONDS = 3600
"""A session that reads is silent while Spark is busy with what it has read."""
_GONE = ("22023", "42704", "55000")
"""SQLSTATE codes of the import of a snapshot whose session has ended: no such file, no such snapshot, no such process."""
LEAST_VERSION = (14,)
"""Before, a range of places was found by a look at every row of the table."""

_STORED = sa.text("""
    SELECT c.oid, c.relkind, m.amname, c.relfilenode, pg_relation_filenode(c.oid) AS file,
        CASE WHEN c.relkind IN ('r', 'm') THEN pg_relation_size(c.oid) / current_setting('block_size')::int END AS blocks
    FROM pg_catalog.pg_class AS c
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    LEFT JOIN pg_catalog.pg_am AS m ON m.oid = c.relam
    WHERE n.nspname = :schema AND c.relname = :table
""")
_FILE = sa.text("SELECT pg_relation_filenode(CAST(:oid AS oid))")


@dataclass(frozen=True, slots=True)
class StoredAs:
    """How the server keeps a table, as long as the whole of it is not written anew (TRUNCATE, VACUUM FULL, CLUSTER)."""

    oid: int
    file: int | None
    """None: it has no file of its own, as views and partitioned tables."""
    blocks: int | None
    """None: its rows have no places by which it could be split."""


@contextmanager
def exported_snapshot(warehouse: Warehouse) -> Iterator[tuple[Connection, str]]:
    """A transaction in which nothing is written, and the id by which others read its snapshot while it is open.

    Use `kept_open` when the connection is used no more. Errors of the block come out as they are. Raises as
    `Warehouse.snapshot`.
    """
    options: dict[str, Any] = idle_for(HELD_SECONDS)
    with ExitStack() as opening:
        connection = opening.enter_context(warehouse.snapshot(postgresql_readonly=True, **options))
        snapshot = connection.execute(sa.select(sa.func.pg_export_snapshot())).scalar_one()
        opened = opening.pop_all()
    try:
        yield connection, str(snapshot)
    finally:
        try:
            opened.close()
        except ExternalUnavailable as error:  # it has nothing to commit
            log.info("a session that held a snapshot had ended: %s", error)


@contextmanager
def imported_snapshot(warehouse: Warehouse, snapshot: str, where: str) -> Iterator[Connection]:
    """A connection that reads an exported snapshot.

    Raises as `Warehouse.snapshot`, and `ExternalUnavailable`, which begins with `where`, if the snapshot has gone with its
    session: then all that is read by it is to be read again, by another one.
    """
    options: dict[str, Any] = {SNAPSHOT: snapshot, **idle_for(READING_SECONDS)}
    with warehouse.snapshot(postgresql_readonly=True, **options) as connection:
        try:
            connection.execute(sa.select(sa.literal(1)))
        except sa.exc.DBAPIError as error:
            if getattr(error.orig, "pgcode", None) not in _GONE:
                raise
            raise ExternalUnavailable(
                f"{where}: the snapshot in which all of it is read is gone, because the session of the driver that held it "
                f"has ended; all of it is read again ({cause_of(error)})"
            ) from None
        yield connection


def check_stored_as(connection: Connection, where: str, stored: StoredAs) -> None:
    """Raises `ExternalUnavailable` if the table was written anew. To be asked when a statement of the transaction has read
    the table, and so keeps others from doing so."""
    if stored.file is not None and connection.execute(_FILE, {"oid": stored.oid}).scalar() != stored.file:
        raise ExternalUnavailable(
            f"{where}: the table was written anew (TRUNCATE, VACUUM FULL, CLUSTER or ALTER TABLE) while it was read; all of "
            "it is read again"
        )


def stored_as(connection: Connection, where: str, name: TableName, locking: sa.Select[Any]) -> StoredAs:
    """How the server keeps a table, which is locked against being written anew until the transaction ends.

    `locking` reads the table. Raises `ExternalUnavailable` if it was written anew since the snapshot was taken.
    """
    connection.execute(locking.limit(0)).close()
    found = connection.execute(_STORED, {"schema": name.schema, "table": name.table}).one()
    if found.blocks is None:
        return StoredAs(found.oid, None, None)
    if found.relfilenode not in (0, found.file):  # the first as the snapshot has it, the second as it is
        raise ExternalUnavailable(f"{where} was written anew when it was to be read; it is read again")
    has_places = found.amname == "heap" and (connection.dialect.server_version_info or ()) >= LEAST_VERSION
    return StoredAs(found.oid, found.file, found.blocks if has_places else None)
