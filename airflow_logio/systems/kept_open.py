"""Keeps a transaction open whose client works on something else: the server would take it for one that stands still."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.databases import cause_of

log = logging.getLogger(__name__)

PING_SECONDS = 10.0


@contextmanager
def kept_open(connection: Connection, every: float | None = None) -> Iterator[None]:
    """The transaction of the connection, which is not used in the block, stays open for as long as this process runs.

    A process that is stopped sends nothing, so the server ends the session as it ends any other.
    """
    ended, seconds = threading.Event(), PING_SECONDS if every is None else every

    def ping() -> None:
        while not ended.wait(seconds):
            try:
                connection.execute(sa.select(sa.literal(1)))
            except sa.exc.SQLAlchemyError as error:  # who uses it next notices
                log.warning("a session that was to stay open has ended: %s", cause_of(error))
                return

    pinging = threading.Thread(target=ping, name="logio-ping", daemon=True)
    pinging.start()
    try:
        yield
    finally:
        ended.set()
        pinging.join()
