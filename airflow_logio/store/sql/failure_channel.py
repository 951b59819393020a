"""Announcing failures to supervisors (PostgreSQL): NOTIFY after the commit that declares a group dead.

Like every wake-up of this package, it is a hint: a supervisor that misses it polls.
"""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_logio.postgres_sessions import is_pooled

log = logging.getLogger(__name__)

CHANNEL = "logio_failures"


def ring(engine: Engine) -> None:
    """Tell all listeners that a group has failed."""
    if engine.dialect.name != "postgresql":
        return
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))
    except Exception as error:
        log.debug("no listener was told of the failure: %s", error)


class FailureListener:
    """A connection of its own that listens. Not thread-safe."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    def open(cls, engine: Engine) -> FailureListener | None:
        """A listener, or None if the log cannot be listened to: in a file, or behind a connection pooler.

        Its connection is a new one, as `engine` makes them: one of the pool may have lain idle while the server
        restarted.
        """
        if engine.dialect.name != "postgresql":
            return None
        pooled = engine.pool.recreate().connect()
        connection: Any = pooled.driver_connection
        pooled.detach()
        try:
            connection.autocommit = True
            if is_pooled(connection):
                connection.close()
                return None
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def fileno(self) -> int:
        return int(self._connection.fileno())

    def heard(self) -> bool:
        """Whether a failure was announced since the last call. Reads what has arrived, and never blocks."""
        self._connection.poll()
        heard = bool(self._connection.notifies)
        self._connection.notifies.clear()
        return heard

    def close(self) -> None:
        self._connection.close()
