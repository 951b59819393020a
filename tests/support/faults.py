"""Faults at a chosen statement of a chosen store: pauses, lost connections, lost acknowledgements."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import psycopg2
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.testing.memory_log import MemoryLogStore

PATIENCE_SECONDS = 30
STANDS_SECONDS = 0.06
"""How long one stands still while another tries: longer than the other needs if nothing is in its way."""


class Database(Protocol):
    """A store over SQL, or a warehouse."""

    @property
    def engine(self) -> Engine: ...


class Pause:
    """Where a thread stands still until it may continue, as a stopped process does."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._released = threading.Event()

    def __call__(self, *_: object) -> None:
        self._reached.set()
        assert self._released.wait(PATIENCE_SECONDS), "the pause was not released"

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_SECONDS), "the pause was never reached"

    def release(self) -> None:
        self._released.set()

    def is_released(self) -> bool:
        return self._released.is_set()

    def is_reached_before(self, action: Future[Any]) -> bool:
        """False if the action ends without it: there are not that many statements."""
        while not self._reached.wait(0.005):
            if action.done():
                return self._reached.is_set()
        return True


class Injected(Exception):
    """A failure that is not the database's, so that nothing is tried again because of it."""


def inject(*_: object) -> None:
    raise Injected("injected by the test")


@contextmanager
def before_statement(store: Database, number: int, fault: Callable[[Connection], None]) -> Iterator[list[str]]:
    """Call `fault` once, before the statement of that number (from 1); yields the statements seen.

    On SQLite BEGIN IMMEDIATE is a statement; psycopg2 sends BEGIN with the first one.
    """
    with _at_statement("before_cursor_execute", store, number, fault) as seen:
        yield seen


@contextmanager
def after_statement(store: Database, number: int, fault: Callable[[Connection], None]) -> Iterator[list[str]]:
    """Call `fault` once, when the database has executed the statement of that number (from 1) and its client waits."""
    with _at_statement("after_cursor_execute", store, number, fault) as seen:
        yield seen


@contextmanager
def _at_statement(event: str, store: Database, number: int, fault: Callable[[Connection], None]) -> Iterator[list[str]]:
    seen: list[str] = []

    def listen(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
        seen.append(statement)
        if len(seen) == number:
            fault(connection)

    sa.event.listen(store.engine, event, listen)
    try:
        yield seen
    finally:
        sa.event.remove(store.engine, event, listen)


def places(store: Database, pause: Pause) -> Iterator[tuple[str, AbstractContextManager[Any]]]:
    """Before and after COMMIT, then each statement; the caller stops when one is not reached."""
    yield "before COMMIT", around_commit(store, before=pause)
    yield "after COMMIT", around_commit(store, after=pause)
    for number in range(1, 1000):
        yield f"before statement {number}", before_statement(store, number, pause)
        yield f"after statement {number}", after_statement(store, number, pause)


def place(store: Database, index: int, pause: Pause) -> tuple[str, AbstractContextManager[Any]]:
    for number, found in enumerate(places(store, pause)):
        if number == index:
            return found
    raise AssertionError(index)


@contextmanager
def before_change(store: MemoryLogStore, number: int, fault: Callable[[], None]) -> Iterator[list[str]]:
    """Call `fault` once, before the change of that number (from 1) to the tables in memory; yields the changes seen."""
    seen: list[str] = []
    names = ("put", "drop", "log", "unlog")

    def watched(name: str, change: Callable[..., None]) -> Callable[..., None]:
        def changing(*arguments: Any) -> None:
            seen.append(name)
            if len(seen) == number:
                fault()
            change(*arguments)

        return changing

    for name in names:
        setattr(store.tables, name, watched(name, getattr(store.tables, name)))
    try:
        yield seen
    finally:
        for name in names:
            delattr(store.tables, name)


@contextmanager
def around_commit(
    store: Database, *, before: Callable[[Any], None] | None = None, after: Callable[[Any], None] | None = None
) -> Iterator[None]:
    """Call `before` or `after` once, around the first COMMIT of the store, with the driver's own connection."""
    dialect: Any = store.engine.dialect
    original = dialect.do_commit
    armed = [True]

    def do_commit(connection: Any) -> None:
        strike, armed[0] = armed[0], False
        if strike and before is not None:
            before(connection)
        original(connection)
        if strike and after is not None:
            after(connection)

    dialect.do_commit = do_commit
    try:
        yield
    finally:
        dialect.do_commit = original


def lose_connection(connection: Connection) -> None:
    """End the connection under the statement that is about to run: by the server, where there is one."""
    driver_connection: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "postgresql":
        terminate(connection.engine, driver_connection.info.backend_pid)
    else:
        driver_connection.rollback()  # closed with a statement open it would keep its locks: a dead process does not
        driver_connection.close()


def terminate(engine: Engine, backend: int) -> None:
    """End a server process from outside, and wait until it is gone."""
    admin = psycopg2.connect(engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        admin.autocommit = True
        with admin.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 10000)", (backend,))
    finally:
        admin.close()


@contextmanager
def slow_commit(store: Database, seconds: float, *, rolls_back: bool = False) -> Iterator[threading.Event]:
    """The first COMMIT is so long on its way that its client has given up: it still comes, on the old connection.

    Or the database notices after so long that the client has gone, and rolls back. Yields what is set when the
    transaction is about to end: before it, so that no one who knows its end can find this unset.
    """
    dialect: Any = store.engine.dialect
    originals = dialect.do_commit, dialect.do_close, dialect.do_terminate
    late: list[threading.Timer] = []
    ending = threading.Event()
    kept: list[Any] = []

    def do_commit(connection: Any) -> None:
        if late:
            originals[0](connection)
            return
        kept.append(getattr(connection, "driver_connection", connection))

        def arrive() -> None:
            ending.set()
            kept[0].rollback() if rolls_back else kept[0].commit()
            kept[0].close()

        late.append(threading.Timer(seconds, arrive))
        late[0].start()
        raise _lost(connection, "no answer")

    def unless_kept(original: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda connection: None if connection in kept else original(connection)

    dialect.do_commit = do_commit
    dialect.do_close, dialect.do_terminate = map(unless_kept, originals[1:])
    try:
        yield ending
    finally:
        for timer in late:
            timer.join()
        dialect.do_commit, dialect.do_close, dialect.do_terminate = originals


def acknowledgement_lost(connection: Any) -> None:
    """COMMIT has reached the database, its answer has not reached us."""
    raise _broken(connection, "the acknowledgement was lost")


def commit_lost(connection: Any) -> None:
    """COMMIT did not reach the database: what a connection that breaks a moment earlier looks like."""
    driver_connection = getattr(connection, "driver_connection", connection)
    driver_connection.rollback()
    raise _broken(connection, "the commit was lost")


def _broken(connection: Any, text: str) -> Exception:
    getattr(connection, "driver_connection", connection).close()
    return _lost(connection, text)


def _lost(connection: Any, text: str) -> Exception:
    error: Exception
    if isinstance(getattr(connection, "driver_connection", connection), sqlite3.Connection):
        error = sqlite3.OperationalError(f"disk I/O error: {text}")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR  # the code decides, and not the words
        return error
    error = psycopg2.OperationalError(f"server closed the connection unexpectedly: {text}")
    return error
