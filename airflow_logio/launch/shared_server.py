"""The Spark Connect server that the drivers of a run share on one machine: any driver that needs it starts it (ADR-116).

So no process supervises it. A driver that has lost it comes here for another one, as does the first driver of a run; a
lock sees to it that one of them starts it. It ends by itself when no driver is its client (`application/connect_server.py`).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from airflow_logio.errors import ConfigurationError, LogioError, SparkLost
from airflow_logio.launch import driver_folders, processes
from airflow_logio.launch.application.connect_server import CLIENTS, LASTING, STATE
from airflow_logio.launch.driver_folders import SCRATCH
from airflow_logio.launch.spark_settings import TOKEN_VARIABLE
from airflow_logio.spark.connect_engine import ServerAddress
from airflow_logio.store.records.driver_records import DriverIdentity

log = logging.getLogger(__name__)

FOLDER = ".connect"
"""Folder of the servers of a run, beside the folders of its groups."""
KEEPER = processes.APPLICATION.with_name("connect_server.py")
HOST = "localhost"
"""By this name, and no address, pyspark sends a token without TLS."""
LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0
"""For so long a client waits for a server at a time."""
HUNG_SECONDS = 600.0
"""A server that does not listen when it is so old is replaced."""
END_SECONDS = 60.0
"""A keeper has noted by then how its server has ended."""
MOST_PORTS = 3
POLL_SECONDS = 0.05
LOG_NAME = "server.log"
LOG_BYTES = 16 * 2**20
"""The log of earlier servers is kept apart when it is longer than this, and that of those before them is removed."""
EXCERPT_BYTES, EXCERPT_LINES, EXCERPT_WIDTH = 8 * 2**20, 12, 400
_LOCK = "lock"
_REACHED = frozenset({LOOPBACK, f"::ffff:{LOOPBACK}", "0.0.0.0", "::"})
"""Addresses at which a program listens that is asked at `LOOPBACK`."""
_SHELL_SIGNALS = 128
"""A shell whose command was killed ends with this number and the signal's; Java does where it was asked to end."""
_TAKEN = re.compile(r"BindException: .*SparkConnectService' failed after|Address already in use")
"""At `LOOPBACK` no address is refused for anything else."""
_PASSING = re.compile(
    r"No space left on device|Disk quota exceeded|insufficient memory for the Java Runtime|Cannot allocate memory"
    r"|unable to create native thread|Too many open files|Resource temporarily unavailable"
    r"|All masters are unresponsive|Connection (?:refused|reset|timed out)|NoRouteToHostException"
)
"""Errors of a machine that is short of something, and of a cluster that does not answer: no setting of the server is."""
_ERROR = re.compile(
    r"(?:^| )(?:ERROR|FATAL|SEVERE)\b|\"level\":\s*\"(?:ERROR|FATAL)\"|^(?i:error\b|exception in thread|unrecognized)"
    r"|^[\w.$]+(?:Exception|Error)\b|^\S+: line \d+: |^Traceback |^# There is insufficient|: not found$|OutOfMemoryError"
)
_NO_ERROR = re.compile(
    r"WARNING: |(?:\S+ ){0,3}(?:TRACE|DEBUG|INFO|WARN)\b|\{.*\"level\":\s*\"(?:TRACE|DEBUG|INFO|WARN)\""
)
_USAGE = "Usage: "
_FRAME = re.compile(r"\s+at |\s+\.\.\. \d+ more")


@dataclass(frozen=True, slots=True)
class ServerRecipe:
    """How the server of a run is started in `folder`. `command` has its address appended."""

    folder: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


def folder_of(run_folder: Path, command: Sequence[str], environment: Mapping[str, str], key: str) -> Path:
    """Where the server of a run is that is started so, on this machine: groups with other settings have another one.

    `key` is not known to other users, who see the folder's name on the command line: it tells nothing of the environment.
    """
    here = [processes.this_host(), processes.boot_id()]
    said = msgspec.json.encode([here, list(command), sorted(environment.items())])
    secret = hashlib.sha256(key.encode()).digest()
    return run_folder / FOLDER / hashlib.blake2b(said, digest_size=8, key=secret).hexdigest()


@dataclass(frozen=True, slots=True)
class Server:
    """One that was started. `keeper` is the process that ends it, whose child the JVM is."""

    port: int
    token: str = field(repr=False)
    keeper: DriverIdentity
    jvm: DriverIdentity

    @property
    def url(self) -> str:
        """Its address, without the token."""
        return f"sc://{HOST}:{self.port}"


class ServerClient:
    """Has the server running, and keeps it for as long as this process lives."""

    def __init__(self, recipe: ServerRecipe) -> None:
        self._recipe = recipe
        self._folder = Path(recipe.folder)
        self._server: Server | None = None
        self._hold: int | None = None
        """Descriptor of the locked file, open for as long as this process lives."""

    def connected(self, has_ended: bool = False) -> ServerAddress:
        """Where the server is, which is started if it does not run. `has_ended`: the one that this client knows is of no use
        any more, because its application has ended or it does not answer.

        Raises `ConfigurationError` if it ends by itself when it is started, or a person has to mend the folder; and
        `SparkLost` for all else that keeps it from running: it was killed, is slow, or the machine is short of something.
        """
        try:
            self._folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            if self._hold is None:
                self._hold = os.open(self._folder / CLIENTS, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(self._hold, fcntl.LOCK_SH)
            with _locked(self._folder / _LOCK):
                if has_ended and (lost := known(self._folder)) is not None and lost == self._server:
                    end(lost)
                server = self._server = self._running() or self._started_again()
        except (OSError, subprocess.SubprocessError) as error:
            # A file that is missing: the folder was removed meanwhile.
            lasts = isinstance(error, OSError) and error.errno in LASTING - {errno.ENOENT}
            kind = ConfigurationError if lasts else SparkLost
            raise kind(f"the Spark Connect server cannot be started in {self._folder}: {error}") from error
        return ServerAddress(server.url, server.token, lambda: processes.is_gone(server.jvm) is False)

    def _running(self) -> Server | None:
        """The server that is known, if it is of use; its starter may have died, or have lost patience with it. Raises
        `SparkLost` if it is still slow."""
        server = known(self._folder)
        if server is None:
            return None
        age = time.time() - (self._folder / STATE).stat().st_mtime
        try:
            if self._is_ready(server):
                return server
        except SparkLost as error:
            if age < HUNG_SECONDS:
                raise
            log.warning("%s\nit is replaced", error)
        end(server)
        return None

    def _started_again(self) -> Server:
        """Another program may take the port before the server does: then another one is tried."""
        for _ in range(MOST_PORTS - 1):
            try:
                return self._started()
            except _PortTaken as error:
                log.warning("%s\ntrying another port", error)
        return self._started()

    def _started(self) -> Server:
        self._discard_earlier()
        port, token = _free_port(), secrets.token_urlsafe(24)
        environment = {**self._recipe.environment, TOKEN_VARIABLE: token}
        start = _Start(self._folder, port, environment)
        *options, file = self._recipe.command
        own = (f"spark.connect.grpc.binding.port={port}", "spark.connect.grpc.port.maxRetries=0")
        command = [*options, *(part for one in own for part in ("--conf", one)), file]
        kept = [sys.executable, str(KEEPER), str(self._folder), "--", *command]
        start.keeper_pid = processes.leave_behind(kept, LOG_NAME, environment, self._folder)
        keeper = processes.identity_of(start.keeper_pid)
        if keeper is None:
            raise start.failed()
        try:
            server = Server(port, token, keeper, self._jvm_of(keeper, start))
            driver_folders.create_private(self._folder / STATE, msgspec.json.encode(server))
        except BaseException:  # it would be known to no client
            processes.end(keeper)
            raise
        log.info("a Spark Connect server is started at %s, its output in %s", server.url, self._folder / LOG_NAME)
        if self._is_ready(server):
            return server
        processes.wait_for_end(keeper, END_SECONDS)  # it notes how the server has ended
        end(server)
        raise start.failed()

    def _discard_earlier(self) -> None:
        """Remove what earlier servers have left. What the killed ones have: their keepers could not, or their clients."""
        (self._folder / STATE).unlink(missing_ok=True)
        for left in (*self._folder.glob("*.pid"), *self._folder.glob("*.end")):
            left.unlink(missing_ok=True)
        shutil.rmtree(self._folder / SCRATCH, ignore_errors=True)
        (self._folder / SCRATCH).mkdir(exist_ok=True)
        path = self._folder / LOG_NAME
        if path.is_file() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(f"{LOG_NAME}.1"))

    def _jvm_of(self, keeper: DriverIdentity, start: _Start) -> DriverIdentity:
        path = self._folder / f"{keeper.pid}.pid"
        self._wait_until(lambda: processes.is_gone(keeper) is not False or _noted(path) is not None)
        pid = _noted(path)
        found = None if pid is None else processes.identity_of(pid)
        if found is None:
            processes.wait_for_end(keeper, END_SECONDS)
            raise start.failed()
        return found

    def _is_ready(self, server: Server) -> bool:
        """Waits; False if the server has ended."""
        self._wait_until(lambda: not _lives(server) or _is_served_by(server))
        return _lives(server)

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Raises `SparkLost` after `START_SECONDS`. A server that is slow is left to itself: it may be ready when this client
        asks again, and would wait once more for what it waits for."""
        deadline, unseen = time.monotonic() + START_SECONDS, ""
        while True:
            try:
                if condition():
                    return
            except psutil.AccessDenied as error:  # of a process that ends just now, too
                unseen = f". Its sockets cannot be seen by this user ({error})"
            if time.monotonic() > deadline:
                raise SparkLost(
                    f"the Spark Connect server has not begun to listen within {START_SECONDS:g} s; its output is in "
                    f"{self._folder / LOG_NAME}{unseen}"
                )
            time.sleep(POLL_SECONDS)


class _PortTaken(SparkLost):
    """Another program listens on the port."""


class _Start:
    """One start of a server, and why it has failed."""

    def __init__(self, folder: Path, port: int, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._port = port
        self._environment = environment
        self._log = folder / LOG_NAME
        self._begins_at = self._log.stat().st_size if self._log.is_file() else 0
        """Before it are the words of earlier servers."""
        self.keeper_pid = 0

    def failed(self) -> LogioError:
        """What has ended it: `ConfigurationError` if that is the server's own refusal, which would come again."""
        code, said = _noted(self._folder / f"{self.keeper_pid}.end"), self._said()
        if code is None:
            return SparkLost(
                "the process that keeps the Spark Connect server has ended while that started, and could not say why: it was "
                f"killed, or the disk is full{said}"
            )
        if (killed_by := _signal_of(code)) is not None:
            hint = ", as a machine does that has no memory left" if killed_by == "SIGKILL" else ""
            return SparkLost(f"the Spark Connect server was killed while it started ({killed_by}{hint}){said}")
        if _is_taken(self._port) or _TAKEN.search(said):
            return _PortTaken(f"the Spark Connect server did not get port {self._port} of this machine{said}")
        what = f"the Spark Connect server does not start: it has ended with exit code {code}{said}"
        return SparkLost(what) if _PASSING.search(said) else ConfigurationError(what)

    def _said(self) -> str:
        """Behind a message about it: the first error of its log."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._begins_at)
                text = file.read(EXCERPT_BYTES).decode(errors="replace")
        except OSError as error:
            return f"; its log cannot be read: {error}"
        from airflow_logio.launch.redaction import Redaction  # not before it is needed: it imports much

        excerpt = Redaction((), environment=self._environment).of(first_error(text))
        return f"; the first error in {self._log}:\n{excerpt}" if excerpt else f"; it has said nothing in {self._log}"


def first_error(text: str) -> str:
    """The first error of a server's log and what follows from it, in at most `EXCERPT_LINES` lines: without frames of stacks,
    what is no error, and what was said before. The last lines of a log without an error."""
    lines = [line.rstrip()[:EXCERPT_WIDTH] for line in text.splitlines() if line.strip() and not _FRAME.match(line)]
    errors = (number for number, line in enumerate(lines) if _ERROR.search(line) and not _NO_ERROR.match(line))
    first = next(errors, None)
    if first is None:
        return "\n".join(lines[-EXCERPT_LINES:])
    end = next((number for number, line in enumerate(lines) if number > first and line.startswith(_USAGE)), len(lines))
    found = dict.fromkeys(line for line in lines[first:end] if not _NO_ERROR.match(line))
    return "\n".join(list(found)[:EXCERPT_LINES])


def _noted(path: Path) -> int | None:
    """The number that a keeper has noted; None if it has not, or had no room for it."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _signal_of(code: int) -> str | None:
    """What has killed a process that ended with this code; None if it ended by itself."""
    try:
        return signal.Signals(-code if code < 0 else code - _SHELL_SIGNALS).name
    except ValueError:
        return None


def known(folder: Path) -> Server | None:
    """The server that was started last in a folder; it may have ended."""
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=Server)
    except (OSError, msgspec.MsgspecError):
        return None


def end(server: Server) -> None:
    """End a server, and the process that keeps it."""
    for one in (server.keeper, server.jvm):
        processes.end(one)


def _lives(server: Server) -> bool:
    """Whether both of its processes do. One without its keeper is ended by no process."""
    return processes.is_gone(server.jvm) is False and processes.is_gone(server.keeper) is False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def _is_served_by(server: Server) -> bool:
    """Whether the server is what listens on its port: its process, or one that it has started, has that socket.

    Another program may be there, before the server or instead of it. Raises `psutil.AccessDenied`.
    """
    if not _accepts(server.port):
        return False
    try:
        of_jvm = processes.driver_processes(server.jvm)
        below = [child for one in of_jvm for child in one.children(recursive=True)]
        return any(_listens(one, server.port) for one in (*of_jvm, *below))
    except psutil.NoSuchProcess:
        return False


def _listens(process: psutil.Process, port: int) -> bool:
    return any(
        one.status == psutil.CONN_LISTEN and one.laddr.port == port and one.laddr.ip in _REACHED
        for one in process.net_connections("tcp")
    )


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2):
            return True
    except OSError:
        return False
