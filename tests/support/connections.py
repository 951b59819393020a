"""Which database connections are open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa


@contextmanager
def connections_made() -> Iterator[list[Any]]:
    """The driver connections that all pools make inside."""
    made: list[Any] = []

    def see(connection: Any, _: object) -> None:
        made.append(connection)

    sa.event.listen(sa.Pool, "connect", see)
    try:
        yield made
    finally:
        sa.event.remove(sa.Pool, "connect", see)


def is_open(connection: Any) -> bool:
    if not isinstance(connection, sqlite3.Connection):
        return not connection.closed
    try:
        return connection.total_changes >= 0
    except sqlite3.ProgrammingError:
        return False
