"""Wake-ups for receivers that have nothing to do (design D5). A lost one costs a poll interval, never an event.

PostgreSQL: LISTEN and NOTIFY on autocommit connections of their own. A NOTIFY inside a commit would take a global lock,
so it is sent after the commit, and only to groups that have said that they are parked. The receiver says so, *then*
polls, then waits: a commit in between finds it parked. It stays parked while it polls, so that it need not say so for each
event, until it is busy (ADR-125). Behind a connection pooler nothing can be heard, so
receivers poll. SQLite has no such thing; a pragma tells cheaply that another connection has committed.
"""

from __future__ import annotations

import hashlib
import logging
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Engine

from airflow_logio.databases import AUTOCOMMIT, is_pooled
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import NOT_DURABLE, Statements

log = logging.getLogger(__name__)

SQLITE_POLL_SECONDS = 0.004
POOLED_POLL_SECONDS = 0.05
"""How often a receiver asks a log that it cannot listen to."""
BUSY_LOOKS = 3
"""A receiver that has found something so often in a row, without a wait or with waits that had ended before they began, is
busy: it need not be notified any more."""


class Waker(ABC):
    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Block until something may be new, at most `timeout` seconds; the caller polls after it returns."""

    @abstractmethod
    def will_hear(self) -> bool:
        """As `GroupSession.will_hear`."""

    @abstractmethod
    def announce(self, groups: Sequence[str]) -> None:
        """Tell these groups that something is new."""

    @abstractmethod
    def close(self) -> None: ...


class SqliteWaker(Waker):
    """Watches `PRAGMA data_version`, which changes when another connection has committed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Any = None
        self._seen = -1

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pause = SQLITE_POLL_SECONDS
        while time.monotonic() < deadline:
            version = self._version()
            if version != self._seen:
                self._seen = version
                return
            time.sleep(min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(pause * 1.5, 0.05)

    def _version(self) -> int:
        try:
            if self._connection is None:
                self._connection = self._engine.raw_connection()
            cursor = self._connection.cursor()
            version = int(cursor.execute("PRAGMA data_version").fetchone()[0])
            cursor.close()
            return version
        except Exception as error:  # a hint only: without it the receiver polls
            log.debug("no data_version: %s", error)
            self._connection = None
            return self._seen

    def will_hear(self) -> bool:
        """A wait begins with the version at which the last one has ended."""
        return True

    def announce(self, groups: Sequence[str]) -> None:
        """Nothing to send: a commit is visible in the file."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def announce(engine: Engine, run_id: int, groups: Sequence[str]) -> None:
    """Tell these groups that something is new, from a process that is not a driver. Best effort."""
    if engine.dialect.name != "postgresql":
        return
    try:
        with engine.connect().execution_options(isolation_level=AUTOCOMMIT) as connection:
            connection.execute(_notify_parked(), _said_to(run_id, groups))
    except Exception as error:  # a hint only: receivers poll
        log.debug("no NOTIFY: %s", error)


@cache
def _notify_parked() -> sa.Select[Any]:
    """Takes what `_said_to` gives. Built once, as `_park` is: to build it takes longer than to send it."""
    table = schema.waiting
    channel = sa.bindparam("b_prefix", type_=sa.Text) + sa.func.md5(table.c.group_name)
    named = table.c.group_name == sa.any_(sa.bindparam("b_groups", type_=postgresql.ARRAY(sa.Text)))
    return sa.select(sa.func.pg_notify(channel, "")).where(
        table.c.run_id == sa.bindparam("b_run"), named, table.c.parked
    )


def _said_to(run_id: int, groups: Sequence[str]) -> dict[str, Any]:
    return {"b_run": run_id, "b_prefix": _prefix(run_id), "b_groups": list(groups)}


@cache
def _park() -> sa.Insert:
    """Takes a row of the table."""
    upsert = postgresql.insert(schema.waiting)
    return upsert.on_conflict_do_update(
        index_elements=["run_id", "group_name"], set_={"parked": upsert.excluded.parked}
    )


def _prefix(run_id: int) -> str:
    return f"logio_{run_id}_"


def channel_of(run_id: int, group: str) -> str:
    """A group's channel. PostgreSQL allows 63 bytes, and one name too long silences all of a statement: names are hashed."""
    return _prefix(run_id) + hashlib.md5(group.encode(), usedforsecurity=False).hexdigest()


class PostgresWaker(Waker):
    """LISTEN on one connection, the parked flag and NOTIFY on another; both autocommit, neither waits for the disk.

    Neither goes back to the pool, even if this is never closed: sessions of the pool have transactions and commit
    durably.
    """

    def __init__(self, engine: Engine, ref: GroupRef) -> None:
        self._engine = engine
        self._ref = ref
        self._listening: Any = None
        self._sending = Statements(engine, **NOT_DURABLE)
        self._parked = False
        """Whether it counts on being notified."""
        self._says_parked = False
        """Whether the row may say so, as far as this driver has changed it: then its senders notify it."""
        self._only_polls = False
        self._timed_out = False
        self._found = 0
        """How many looks in a row have found something, since it last had to wait."""

    def wait(self, timeout: float) -> None:
        started = time.monotonic()
        try:
            if not self._parked:
                self._listen()
                if self._only_polls:
                    time.sleep(min(timeout, POOLED_POLL_SECONDS))
                    return
                self._timed_out, self._found = False, 0
                self._set_parked(True)
                return  # poll once more: what was committed before the flag was seen
            self._wait_parked(timeout)
        except Exception as error:  # a hint only: without it the receiver polls
            log.debug("no LISTEN: %s", error)
            self._drop()
            time.sleep(max(0.0, timeout - (time.monotonic() - started)))

    def _wait_parked(self, timeout: float) -> None:
        self._timed_out = False
        if self._notified(0.0):
            return
        self._found = 0
        self._timed_out = not self._notified(timeout)

    def will_hear(self) -> bool:
        """What was found after a wait that has timed out was not announced: another driver of the group, which was replaced
        meanwhile, may have said that it is not parked. So it is said again, by the next wait."""
        self._found += 1
        if self._timed_out:
            self._parked = False
        if self._says_parked and self._found >= BUSY_LOOKS:
            self._unpark()
        return self._parked

    def _unpark(self) -> None:
        try:
            self._set_parked(False)
        except Exception as error:  # a hint only
            log.debug("still parked: %s", error)

    def _listen(self) -> None:
        if self._listening is not None or self._only_polls:
            return
        connection = self._autocommit()
        if is_pooled(connection):
            log.info("the log is behind a connection pooler: group %s polls it", self._ref.group)
            self._only_polls = True
            connection.close()
            return
        with connection.cursor() as cursor:
            cursor.execute(f'LISTEN "{channel_of(self._ref.run_id, self._ref.group)}"')
        self._listening = connection

    def _notified(self, timeout: float) -> bool:
        connection = self._listening
        if not connection.notifies:
            select.select([connection], [], [], timeout)
            connection.poll()
        heard = bool(connection.notifies)
        connection.notifies.clear()
        return heard

    def _set_parked(self, parked: bool) -> None:
        self._send(_park(), {"run_id": self._ref.run_id, "group_name": self._ref.group, "parked": parked})
        self._parked = self._says_parked = parked

    def announce(self, groups: Sequence[str]) -> None:
        try:
            self._send(_notify_parked(), _said_to(self._ref.run_id, groups))
        except Exception as error:  # a hint only: receivers poll, and the next one has another connection
            log.debug("no NOTIFY: %s", error)

    def _send(self, statement: sa.Executable, parameters: dict[str, Any]) -> None:
        with self._sending.connection() as connection:
            connection.execute(statement, parameters)

    def _autocommit(self) -> Any:
        pooled = self._engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        connection.autocommit = True
        return connection

    def _drop(self) -> None:
        listening, self._listening = self._listening, None
        self._parked = False
        self._sending.close()
        if listening is not None:
            try:
                listening.close()
            except Exception as error:
                log.debug("closing a broken connection: %s", error)

    def close(self) -> None:
        self._drop()
