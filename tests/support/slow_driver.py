"""A driver process that is slow: it continues, and keeps its sessions and their locks, but its statements take for ever.

A stopped process loses its session to `idle_in_transaction_session_timeout`, and the next one finds no locks; a slow
one is never idle for so long. `LOGIO_SLOW_AT=<folder>;<n>;<statement>`: behind the n-th statement that contains that text
the thread asks its database for nothing again and again, and every other thread stands before its next statement, until
file `go` is in the folder. File `reached` is there from then on.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

VARIABLE = "LOGIO_SLOW_AT"


class Slowness:
    """What a test says to a slow driver, and hears from it."""

    def __init__(self, folder: Path, statement: str, count: int = 1) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._reached, self._go = folder / "reached", folder / "go"
        self.variables = {VARIABLE: f"{folder};{count};{statement}"}

    def is_reached(self) -> bool:
        return self._reached.exists()

    def end(self) -> None:
        """From now on it is as quick as any other."""
        self._go.touch()


def sessions_wait_for_a_lock(url: str) -> bool:
    """Some session of this database waits for the lock of another one."""
    engine = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg2"), poolclass=sa.NullPool)
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with engine.connect() as connection:
        return bool(connection.execute(sa.text(query)).scalar_one())


def install() -> None:
    """In the driver's process: every engine that it will have is slow where the environment says so."""
    if VARIABLE not in os.environ:
        return
    folder, count, text = os.environ[VARIABLE].split(";", 2)
    reached, go = Path(folder, "reached"), Path(folder, "go")
    lock = threading.Lock()
    left = [int(count)]

    @sa.event.listens_for(sa.Engine, "before_cursor_execute")
    def _stand(*_: Any) -> None:
        while reached.exists() and not go.exists():
            time.sleep(0.05)

    @sa.event.listens_for(sa.Engine, "after_cursor_execute")
    def _plod(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if text not in statement:
            return
        with lock:
            left[0] -= 1
            if left[0] != 0:
                return
        reached.touch()
        driver_connection: Any = connection.connection.dbapi_connection
        with driver_connection.cursor() as another:
            while not go.exists():
                another.execute("SELECT pg_sleep(0.1)")
