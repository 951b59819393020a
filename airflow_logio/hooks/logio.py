"""`LogioHook`: the log database behind a connection of type ``logio``.

Every DAG file imports it, so what opens the log is imported when it is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.providers.common.compat.sdk import BaseHook
from airflow.sdk.log import mask_secret

from airflow_logio.errors import ConfigurationError, LogioError, SchemaMismatch

if TYPE_CHECKING:
    from airflow_logio.store.port import LogStore


class LogioHook(BaseHook):
    """Opens the log. Its URL holds a password: give it to drivers by file, never by argument, XCom or template.

    :param logio_conn_id: the connection of the log.
    """

    conn_name_attr = "logio_conn_id"
    default_conn_name = "logio_default"
    conn_type = "logio"
    hook_name = "LOG.io"

    def __init__(self, logio_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.logio_conn_id = logio_conn_id

    def get_url(self) -> str:
        """SQLAlchemy URL, password included. Raises `ConfigurationError`."""
        from airflow_logio.hooks.connections import database_url

        return database_url(self.logio_conn_id)

    def get_payloads(self) -> str | None:
        """Root of the payload store: field ``payloads`` of the connection's extra, else the default of an SQLite log.

        None if there is no payload store. A URL may hold credentials, as in `get_url`. Raises `ConfigurationError`.
        """
        from airflow_logio.hooks.connections import PAYLOADS
        from airflow_logio.systems.payload_roots import payload_root, secrets_of

        configured = BaseHook.get_connection(self.logio_conn_id).extra_dejson.get(PAYLOADS)
        if configured is not None and not isinstance(configured, str):
            raise ConfigurationError(
                f"connection {self.logio_conn_id!r}: {PAYLOADS!r} in its extra is not text; give a folder or a URL"
            )
        for secret in secrets_of(configured or ""):
            mask_secret(secret)
        return payload_root(self.get_url(), configured)

    def get_store(self, *, create: bool = False, connections: int | None = None) -> LogStore:
        """Open the log. `create` makes the tables in an empty database, but never migrates those of an older version.

        The store makes at most so many `connections` at a time, if that is given; a caller that wants one more waits.

        Raises `ConfigurationError`, `SchemaMismatch`, `LogUnavailable`. The caller disposes of the store.
        """
        from airflow_logio.hooks.kubernetes import access_of
        from airflow_logio.launch.managers.known_managers import resolve_accesses_by
        from airflow_logio.store import open_store

        resolve_accesses_by(access_of)  # who reads launches of Airflow in the log finds ids of its connections there
        return open_store(self.get_url(), application="logio airflow", create=create, connections=connections)

    def get_conn(self) -> LogStore:
        """The store, as from `get_store`."""
        return self.get_store()

    def test_connection(self) -> tuple[bool, str]:
        """For the Test button of the connection form."""
        from airflow_logio.store import open_store
        from airflow_logio.store.sql import revision

        try:
            url = self.get_url()
            if revision.is_empty(url):
                return True, "The database answers. It has no LOG.io tables yet; the first run creates them."
            store = open_store(url, application="logio test")
            try:
                runs = store.list_runs(limit=1)
            finally:
                store.dispose()
        except SchemaMismatch as error:
            return False, str(error)
        except LogioError as error:
            return False, f"{type(error).__name__}: {error}"
        latest = f"the latest run is {runs[0].spec.key}" if runs else "there are no runs yet"
        return True, f"The log answers; {latest}."
