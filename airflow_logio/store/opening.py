"""How everybody opens the log: by URL, with its schema checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_logio.store.rules.patience import Patience
    from airflow_logio.store.sql.store import SqlLogStore


def open_store(
    url: str, *, application: str = "logio", patience: Patience | None = None, create: bool = False
) -> SqlLogStore:
    """Open the log at `url`.

    `create` makes the tables if there are none; older ones are never migrated here, because other runs may be active.
    Raises `ConfigurationError` for an unusable URL, `SchemaMismatch` for a schema of another version, `LogUnavailable` if
    the database does not answer.
    """
    # SQLAlchemy and the drivers of databases are loaded by those who open a log, not by those who import this name.
    from airflow_logio.store.sql import revision
    from airflow_logio.store.sql.store import SqlLogStore

    if create and revision.is_empty(url):
        from airflow_logio.store.sql import migrate  # the migration tool is loaded by those who migrate only

        migrate.upgrade(url)
    else:
        revision.check(url)
    return SqlLogStore.at(url, application=application, patience=patience)
