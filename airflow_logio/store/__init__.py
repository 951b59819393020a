"""The log: tables, transactions, fencing, delivery, lineage (SQLAlchemy; SQLite and PostgreSQL).

Open it with `open_store`, and ask it through the port (`airflow_logio/store/port/`). SQLAlchemy and the database drivers
are loaded when a log is opened, not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore
    from airflow_logio.store.records.driver_records import Claim
    from airflow_logio.store.rules.session_rules import Patience


def open_store(
    url: str,
    *,
    application: str = "logio",
    driver: Claim | None = None,
    patience: Patience | None = None,
    create: bool = False,
    connections: int | None = None,
) -> LogStore:
    """Open the log of runs, with its schema checked.

    :param url: a database URL, ``sqlite:///path`` or ``postgresql://user@host/database``.
    :param application: names the database sessions (PostgreSQL).
    :param driver: the claim of the driver that opens it. Its sessions are named for that instead: if it stops inside a
        transaction, they are found and ended by that name.
    :param patience: how long a driver's session waits for a database that does not answer; by default 15 minutes.
    :param create: make the tables if there are none. Older tables are never migrated here, because other runs may be
        active.
    :param connections: the most connections that are open at a time.

    Raises `ConfigurationError` for an unusable URL, `SchemaMismatch` for a schema of another version, `LogUnavailable`
    if the database does not answer.
    """
    from airflow_logio.store.sql import backends, revision
    from airflow_logio.store.sql.store import SqlLogStore

    if create and revision.is_empty(url):
        from airflow_logio.store.sql import migrate  # only a migration loads the migration tool

        migrate.upgrade(url)
    log_id = revision.check(url)
    if driver is not None:
        application = backends.driver_application(log_id, driver.run_id, driver.group, driver.incarnation)
    return SqlLogStore.at(url, application=application, patience=patience, connections=connections)
