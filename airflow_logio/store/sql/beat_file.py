"""The file of heartbeats of an SQLite log, which is made anew when it is damaged or gone.

It holds nothing that is not soon said again: every driver and every supervisor writes its row about once per second. So a
damaged file must not keep supervisors from the runs of a log that is sound.

SQLite only says that a file is locked, not by which process (`lock_holder`). Its locks are POSIX record locks, and the kernel
knows who holds them. A process of its own asks: a process that closes a file gives up all its own locks on it, SQLite's
included.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
from sqlalchemy.engine import URL, Engine, ExceptionContext

from airflow_logio.databases import is_busy, sqlite_engine
from airflow_logio.errors import HeartbeatsHeld, LogUnavailable
from airflow_logio.store.sql.schema import beat_metadata

log = logging.getLogger(__name__)

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_OTHER_TABLES = ("no such table", "no such column", "has no column named", "Could not decode")
"""What SQLite says where a table, or its description, is not what it was."""
_INODE = "logio_inode"
_BUSY_SECONDS = 2.0
"""Writers of heartbeats hold the lock for milliseconds; a heartbeat that does not get it is soon written again."""


def beat_file_engine(url: URL) -> Engine:
    """An engine that never waits for the disk. A damaged file, or one without tables, is one more lost connection: it is
    made anew before the next attempt, and processes that have the old file open notice it when they take a connection.
    """
    engine = sqlite_engine(url, durable=False, busy_timeout=_BUSY_SECONDS)
    path = Path(str(url.database))

    @sa.event.listens_for(engine, "do_connect")
    def _on_do_connect(_dialect: Any, _record: Any, _arguments: Any, _options: Any) -> None:
        _make_like_the_log(path)

    @sa.event.listens_for(engine, "connect")
    def _on_connect(_connection: sqlite3.Connection, record: Any) -> None:
        record.info[_INODE] = _inode(path)

    @sa.event.listens_for(engine, "checkout")
    def _on_checkout(_connection: sqlite3.Connection, record: Any, _proxy: object) -> None:
        if record.info[_INODE] != _inode(path):
            raise sa.exc.DisconnectionError(f"{path} was made anew")

    @sa.event.listens_for(engine, "handle_error")
    def _on_error(context: ExceptionContext) -> None:
        if _is_damage(context.original_exception):
            make_anew(path)
            context.is_disconnect = True

    return engine


def held(path: Path, error: LogUnavailable) -> HeartbeatsHeld | None:
    """Who holds the lock on the file of heartbeats, if that is why they were refused."""
    refusal = error.__cause__
    if not isinstance(refusal, sa.exc.DBAPIError) or not is_busy(refusal.orig):
        return None
    pid = lock_holder(path)
    if pid is None:
        return HeartbeatsHeld(f"{error}; no driver can say that it is alive until the lock is released", None)
    return HeartbeatsHeld(
        f"{described(pid)} holds the lock on {path}, so that no driver can say that it is alive. A driver that is "
        f"stopped is ended after its lease; anything else has to continue (kill -CONT {pid}) or to end (kill {pid})",
        pid,
    )


def make_anew(path: Path) -> None:
    """Replace the file by one with empty tables, unless it is sound: another process may have been faster."""
    with _one_at_a_time(path.parent):
        if _is_sound(path):
            return
        log.warning("the file of heartbeats %s is damaged or has no tables; it is made anew, and nothing is lost", path)
        with tempfile.TemporaryDirectory(prefix=".logio-", dir=path.parent) as folder:
            new = Path(folder) / "heartbeat"
            engine = sqlite_engine(sa.URL.create("sqlite", database=str(new)), durable=False)
            beat_metadata.create_all(engine)
            engine.dispose()
            if (mode := _mode(path)) is not None:
                new.chmod(mode)
            for left in ("-wal", "-shm"):
                Path(f"{path}{left}").unlink(missing_ok=True)
            new.replace(path)


def _make_like_the_log(path: Path) -> None:
    """A new file has the permissions of its log: addresses of drivers are in it, with what one shows to ask them."""
    if path.exists() or (mode := _mode(path)) is None:
        return
    with suppress(OSError):  # SQLite finds out, and says it
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)


def _mode(path: Path) -> int | None:
    """The permissions that the file has or, if it is gone, its log; None if there is neither."""
    for one in (path, path.with_suffix("")):
        with suppress(FileNotFoundError):
            return one.stat().st_mode & 0o777
    return None


def _is_damage(error: BaseException | None) -> bool:
    if isinstance(error, UnicodeDecodeError):
        return True
    if not isinstance(error, sqlite3.Error):
        return False
    damaged = getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
    return damaged or any(sentence in str(error) for sentence in _OTHER_TABLES)


def _is_sound(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=5)) as connection:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                return False
            for table in beat_metadata.tables.values():
                # Not quoted alone: a name in quotes that no column has would be a text.
                names = ", ".join(f't."{column.name}"' for column in table.columns)
                connection.execute(f'SELECT {names} FROM "{table.name}" AS t').fetchall()
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        return not _is_damage(error)
    return True


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    """The folder itself is locked, so that no further file is left behind."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_ASK_SECONDS = 10


_ASK = """
import fcntl, struct, sys
LOCKS = 120, 3  # in the -shm file: the locks to write, to checkpoint and to recover (sqlite.org/walformat.html)
# struct flock: type, whence, start, length, pid; on macOS start, length, pid, type, whence
LAYOUT, PID, KIND = ("qqihh", 2, 3) if sys.platform == "darwin" else ("hhqqi0q", 4, 0)
# Would a shared lock be refused? Readers hold shared ones, so only a writer stands in its way.
asked = (*LOCKS, 0, fcntl.F_RDLCK, 0) if KIND else (fcntl.F_RDLCK, 0, *LOCKS, 0)
with open(sys.argv[1], "rb") as file:
    answer = struct.unpack(LAYOUT, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(LAYOUT, *asked)))
print(0 if answer[KIND] == fcntl.F_UNLCK else answer[PID])
"""


def lock_holder(database: Path) -> int | None:
    """The pid of the process that writes to `database`, checkpoints or recovers it; None if there is none, or none that this
    machine can name."""
    command = [sys.executable, "-I", "-S", "-c", _ASK, f"{database}-shm"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    pid = int(answer)
    return pid if pid > 0 else None


def described(pid: int) -> str:
    """A process in words: its pid, what it runs, and whether it is stopped."""
    try:
        process = psutil.Process(pid)
        stopped = " (it is stopped)" if process.status() == psutil.STATUS_STOPPED else ""
        return f"process {pid}, {' '.join(process.cmdline())[:120]!r}{stopped}"
    except psutil.Error:
        return f"process {pid}"
