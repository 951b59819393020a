"""Statements that are a transaction each, on a connection of their own: for what is asked or said with every event.

That spares the begin and the end of a transaction, which are round trips. The connection is not one of the pool: to switch
autocommit on and off again, psycopg2 changes a setting of the server's session each time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy.engine import Connection, Engine

from airflow_logio.postgres_sessions import AUTOCOMMIT
from airflow_logio.store.sql.engines import translated

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0


class Statements:
    """On PostgreSQL; one thread at a time. `options` are execution options of the connection."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self._engine = engine
        self._options = options
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Raises errors of this package; then the next one is another connection."""
        with self._lock, translated(self._engine):
            try:
                if self._connection is None:
                    self._connection = self._opened()
                yield self._connection
                self._connection.commit()  # of SQLAlchemy's transaction: the server has none
            except BaseException:
                self._drop()
                raise

    def _opened(self) -> Connection:
        connection = self._engine.connect().execution_options(isolation_level=AUTOCOMMIT, **self._options)
        connection.detach()
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.close()
        except Exception as error:
            log.debug("closing a broken connection: %s", error)

    def close(self) -> None:
        """A statement that does not end is not waited for: its connection goes with the process."""
        if self._lock.acquire(timeout=CLOSE_SECONDS):
            try:
                self._drop()
            finally:
                self._lock.release()
