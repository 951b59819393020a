"""Fresh databases for each measured run, durable as in production."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import psycopg2

from airflow_logio.store.sql import migrate
from demo.data import load_products
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

SETTINGS = {
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    "unix_socket_directories": "",
    "timezone": "UTC",
    "track_commit_timestamp": "on",
}
"""As the tests have them, and the times of commits by the server's clock. `fsync` is on, and can be changed."""


class Databases(ABC):
    """Where log and warehouse of the measured runs are."""

    name: str

    @abstractmethod
    def fresh(self, folder: Path) -> tuple[str, str]:
        """URLs of a new log with its tables and of a new warehouse with products."""

    @abstractmethod
    def close(self) -> None:
        """End whatever serves them."""


class Sqlite(Databases):
    name = "sqlite"

    def fresh(self, folder: Path) -> tuple[str, str]:
        log, warehouse = f"sqlite:///{folder / 'log.db'}", f"sqlite:///{folder / 'warehouse.db'}"
        migrate.upgrade(log)
        load_products(warehouse)
        return log, warehouse

    def close(self) -> None:
        """Files, in the folder of their run."""


class Postgres(Databases):
    """One server, fsync on, that ends with us; two databases per run."""

    name = "postgres"

    def __init__(self) -> None:
        self._server = PostgresServer(settings=SETTINGS)
        self._made: list[str] = []
        try:
            self._server.create()
            self._server.start()
        except BaseException:
            self._server.destroy()
            raise

    def fresh(self, folder: Path) -> tuple[str, str]:
        while self._made:
            self._server.drop_database(self._made.pop())
        self._made = [self._server.new_database(), self._server.new_database(migrated=False)]
        log, warehouse = self._made
        load_products(warehouse)
        return log, warehouse

    def another(self) -> str:
        """One more database, empty, until the next run's are made."""
        self._made.append(self._server.new_database(migrated=False))
        return self._made[-1]

    def configure(self, **settings: str) -> None:
        """Settings of the server that need no restart; from now on, new sessions have them."""
        self._server.configure(**settings)
        eventually(lambda: self._settings_of(settings) == settings, what=f"new sessions have {settings}", timeout=30.0)

    def _settings_of(self, names: Iterable[str]) -> dict[str, str]:
        with closing(psycopg2.connect(self._server.url("postgres"))) as connection, connection.cursor() as cursor:
            found = {}
            for name in names:
                cursor.execute("SELECT current_setting(%s)", (name,))
                (found[name],) = cursor.fetchone()
            return found

    def close(self) -> None:
        self._server.destroy()


def server_pid(url: str) -> int:
    """The pid of a PostgreSQL server on this machine, the parent of the processes that answer."""
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT pg_read_file('postmaster.pid')")
        (text,) = cursor.fetchone() or ("",)
        return int(text.splitlines()[0])


DATABASES: dict[str, type[Databases]] = {"sqlite": Sqlite, "postgres": Postgres}
