"""Hearing of failures at once, where the log is in PostgreSQL: LISTEN in the event loop of the triggerer.

A bell that is not heard costs a poll interval, nothing else. Nothing here blocks the loop: the connection is made in a
thread, and only what has arrived is read in the loop.
"""

from __future__ import annotations

import asyncio
import logging

from airflow_logio.store.sql.bell import FailureListener
from airflow_logio.store.sql.store import SqlLogStore

log = logging.getLogger(__name__)


class FailureBell:
    """`wait` returns after `seconds`, or when a failure was announced. One event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._rung = asyncio.Event()
        self._listener: FailureListener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1

    async def listen(self, store: SqlLogStore) -> None:
        """Begin to listen, if the log can be listened to and nobody does yet."""
        if self._listener is not None:
            return
        try:
            listener = await asyncio.to_thread(FailureListener.open, store.engine)
        except Exception as error:  # a hint only: without it the trigger polls
            log.debug("no LISTEN: %s", error)
            return
        if listener is None:
            return
        self._listener, self._loop = listener, asyncio.get_running_loop()
        self._descriptor = listener.fileno()
        self._loop.add_reader(self._descriptor, self._readable)

    async def wait(self) -> None:
        """Until the bell rings, at most so many seconds."""
        try:
            await asyncio.wait_for(self._rung.wait(), self._seconds)
        except TimeoutError:
            return
        self._rung.clear()

    def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None and self._loop is not None:
            self._loop.remove_reader(self._descriptor)
            listener.close()

    def _readable(self) -> None:
        if self._listener is None:
            return
        try:
            heard = self._listener.heard()
        except Exception as error:  # the server has gone: the next look finds out, and listens again
            log.debug("no LISTEN any more: %s", error)
            self.close()
            return
        if heard:
            self._rung.set()
