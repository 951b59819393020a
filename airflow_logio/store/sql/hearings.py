"""Failures announced (PostgreSQL): NOTIFY after the commit that declares a group dead, one LISTEN per log and process.

Like every wake-up of this package, an announcement is a hint: a supervisor that misses it polls.

The connection belongs to a thread, not to an event loop or to a trigger. The first trigger starts the thread, the last
one that leaves ends it, and those in between do not notice. A connection that is lost is made again. Meanwhile nothing
rings, and triggers poll as they always do (ADR-34).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine

from airflow_logio.databases import is_pooled
from airflow_logio.store.port.watch_port import Hearing

CHANNEL = "logio_failures"


log = logging.getLogger(__name__)

THREAD = "logio failures"
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
"""The longest wait after a loss, and between attempts to listen again."""

Ring = Callable[[], None]


class SqlHearing(Hearing):
    """One share in the listener of a log. Closing the last one ends the listener."""

    def __init__(self, listener: _SharedListener, ring: Ring) -> None:
        self._listener = listener
        self.ring = ring

    def close(self) -> None:
        self._listener.leave(self)


def hear(engine: Engine, ring: Ring) -> SqlHearing | None:
    """`LogStore.listen`: `ring` is called in the listener's thread, and once in this one if the listener already
    listens.

    None if no database server announces anything (SQLite), or if there are no files or threads left. `engine` may be
    disposed of before the hearing is closed: it makes a connection whenever it is asked to.
    """
    if engine.dialect.name != "postgresql":
        return None
    with _lock:
        listener = _listeners.get(engine.url)
        try:
            if listener is None:
                listener = _listeners[engine.url] = _SharedListener(engine)
        except (OSError, RuntimeError) as error:  # out of files or threads: polling needs neither
            log.debug("no LISTEN: %s", error)
            return None
        hearing = listener.join(ring)
    if listener.is_listening:
        _rung(ring)
    return hearing


_lock = threading.Lock()
"""Guards `_listeners` and their hearings."""
_listeners: dict[URL, _SharedListener] = {}


class _SharedListener:
    """Joined and left under `_lock`. Only the thread touches the connection."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._hearings: set[SqlHearing] = set()
        self.is_listening = False
        self._wake_read, self._wake_write = os.pipe()
        try:
            threading.Thread(target=self._run, name=THREAD, daemon=True).start()
        except RuntimeError:  # no thread can be started
            os.close(self._wake_read)
            os.close(self._wake_write)
            raise

    def join(self, ring: Ring) -> SqlHearing:
        hearing = SqlHearing(self, ring)
        self._hearings.add(hearing)
        return hearing

    def leave(self, hearing: SqlHearing) -> None:
        with _lock:
            if hearing not in self._hearings:
                return
            self._hearings.remove(hearing)
            if not self._hearings:
                del _listeners[self._engine.url]  # the next one to join starts another
                with contextlib.suppress(OSError):  # its thread has died
                    os.write(self._wake_write, b"0")  # a process that was forked meanwhile keeps the pipe open
                os.close(self._wake_write)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        wait = 0.0
        try:
            while not self._is_over(wait):
                heard = self._listen()
                wait = FIRST_WAIT_SECONDS if heard else min(max(FIRST_WAIT_SECONDS, 2 * wait), LONGEST_WAIT_SECONDS)
        finally:
            os.close(self._wake_read)

    def _listen(self) -> bool:
        """Listen until it is over or the connection is lost. Returns whether there was a connection."""
        listener: FailureListener | None = None
        try:
            listener = FailureListener.open(self._engine)
            if listener is None:  # behind a connection pooler
                return False
            self.is_listening = True
            self._ring()
            while not self._is_over(None, listener):
                if listener.heard():
                    self._ring()
        except Exception as error:  # a hint only: without it triggers poll
            log.debug("no LISTEN: %s", error)
        finally:
            self.is_listening = False
            _close(listener)
        return listener is not None

    def _is_over(self, seconds: float | None, listener: FailureListener | None = None) -> bool:
        """Wait, at most so long, until there is something to hear or the last hearing is closed. Returns whether it is
        closed."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            if listener is not None:
                selector.register(listener.fileno(), selectors.EVENT_READ)
            return any(key.fd == self._wake_read for key, _ in selector.select(seconds))

    def _ring(self) -> None:
        with _lock:
            rings = [hearing.ring for hearing in self._hearings]
        for ring in rings:
            _rung(ring)


def _rung(ring: Ring) -> None:
    try:
        ring()
    except Exception as error:  # an event loop that has ended: its trigger has, too
        log.debug("a listener was not rung: %s", error)


def _close(listener: Any) -> None:
    try:
        if listener is not None:
            listener.close()
    except Exception as error:
        log.debug("a lost connection: %s", error)


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


def announce_failure(engine: Engine) -> None:
    """Tell all listeners that a group has failed. PostgreSQL only."""
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(sa.select(sa.func.pg_notify(CHANNEL, "")))
    except Exception as error:
        log.debug("no listener was told of the failure: %s", error)
