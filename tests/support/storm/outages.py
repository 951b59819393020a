"""Databases that cannot be had for a while: each for itself: the log while the warehouse is there, or both."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from tests.store.small_disk import SmallFolder
from tests.support.postgres import PostgresServer

LOG_IS_MISSED = ("waiting for the log database", "the log takes no heartbeat")
WAREHOUSE_IS_MISSED = ("connection 'warehouse'",)
"""What drivers write into their logs while they wait for it, on a line with other things."""
BUSY_SECONDS = 1.0
"""How long a driver waits for a lock of SQLite here before it calls the database unavailable."""


class Outage(ABC):
    """`missed`: what a driver says that has noticed it."""

    missed: tuple[str, ...]

    @abstractmethod
    def lasting(self) -> contextlib.AbstractContextManager[None]:
        """The database cannot be had within the context."""

    def noticed(self, logs: Path) -> int:
        """How often drivers have said so, up to now; `logs` is the folder with their logs."""
        return sum(
            any(said in line for said in self.missed) and ("attempt" in line or "heartbeat" in line)
            for log in logs.rglob("driver.log*")
            for line in log.read_text(errors="replace").splitlines()
        )


class Refused(Outage):
    """A database of PostgreSQL ends all sessions, and lets no client in. The others of its server are as before."""

    def __init__(self, server: PostgresServer, url: str, missed: tuple[str, ...]) -> None:
        self._server = server
        self._url = url
        self.missed = missed

    @contextlib.contextmanager
    def lasting(self) -> Iterator[None]:
        self._server.close_database(self._url)
        try:
            yield
        finally:
            self._server.open_database(self._url)


class Stopped(Outage):
    """The server is stopped, in order or as by a power failure: all of its databases are unavailable."""

    missed = LOG_IS_MISSED

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    @contextlib.contextmanager
    def lasting(self) -> Iterator[None]:
        self._server.stop(mode=random.choice(("fast", "immediate")))
        try:
            yield
        finally:
            self._server.start()


class Locked(Outage):
    """Another process writes into a database of SQLite, for longer than a driver waits for a lock."""

    def __init__(self, path: Path, missed: tuple[str, ...]) -> None:
        self._path = path
        self.missed = missed

    @contextlib.contextmanager
    def lasting(self) -> Iterator[None]:
        connection = sqlite3.connect(self._path, timeout=60, isolation_level=None, check_same_thread=False)
        with contextlib.closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            yield


class Full(Outage):
    """No room is left on the disk of the log."""

    missed = LOG_IS_MISSED

    def __init__(self, disk: SmallFolder) -> None:
        self._disk = disk

    @contextlib.contextmanager
    def lasting(self) -> Iterator[None]:
        self._disk.fill()
        try:
            yield
        finally:
            self._disk.make_room()
