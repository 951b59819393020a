"""The Spark Connect server that the drivers of a run share on one machine: any driver that needs it starts it (ADR-116).

So no process supervises it. A driver that has lost it comes here for another one, as does the first driver of a run; a
lock sees to it that one of them starts it. It ends by itself when no driver is its client (`application/connect_server.py`).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import driver_folders, processes
from airflow_logio.launch.driver_folders import SCRATCH
from airflow_logio.launch.spark_settings import TOKEN_VARIABLE
from airflow_logio.store.records.driver_records import DriverIdentity

log = logging.getLogger(__name__)

FOLDER = ".connect"
"""Folder of the servers of a run, beside the folders of its groups."""
KEEPER = processes.APPLICATION.with_name("connect_server.py")
HOST = "localhost"
"""By this name, and no address, pyspark sends a token without TLS."""
START_SECONDS = 120.0
POLL_SECONDS = 0.05
LOG_NAME = "server.log"
LOG_BYTES = 16 * 2**20
"""The log of earlier servers is kept apart when it is longer than this, and that of those before them is removed."""
_STATE, _LOCK, _CLIENTS = "server.json", "lock", "clients"
_LAST_LINES = 15


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

    def connected(self, has_ended: bool = False) -> tuple[str, str]:
        """Address and token of the server, which is started if it does not run. `has_ended`: the application of the one that
        this client knows has.

        Raises `ConfigurationError` if it cannot be started.
        """
        try:
            self._folder.mkdir(parents=True, mode=0o700, exist_ok=True)
            if self._hold is None:
                self._hold = os.open(self._folder / _CLIENTS, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(self._hold, fcntl.LOCK_SH)
            with _locked(self._folder / _LOCK):
                if has_ended and (lost := known(self._folder)) is not None and lost == self._server:
                    end(lost)
                server = self._server = self._running() or self._started_again()
        except OSError as error:
            raise ConfigurationError(
                f"the Spark Connect server cannot be started in {self._folder}: {error}"
            ) from error
        return server.url, server.token

    def _running(self) -> Server | None:
        """The server, if it answers. One that does not is ended, unless it is still starting: its starter has died."""
        server = known(self._folder)
        if server is None:
            return None
        ready_by = (self._folder / _STATE).stat().st_mtime + START_SECONDS
        while not processes.is_gone(server.jvm):
            if _accepts(server.port):
                return server
            if time.time() > ready_by:
                break
            time.sleep(POLL_SECONDS)
        end(server)
        return None

    def _started_again(self) -> Server:
        """Another program may have taken the port meanwhile: then another one is tried."""
        try:
            return self._started()
        except ConfigurationError as error:
            log.warning("%s\ntrying once more", error)
            return self._started()

    def _started(self) -> Server:
        (self._folder / _STATE).unlink(missing_ok=True)
        shutil.rmtree(self._folder / SCRATCH, ignore_errors=True)  # what a server that was killed has left
        (self._folder / SCRATCH).mkdir()
        self._discard_long_log()
        port, token = _free_port(), secrets.token_urlsafe(24)
        *options, file = self._recipe.command
        command = [*options, "--conf", f"spark.connect.grpc.binding.port={port}", file]
        kept = [sys.executable, str(KEEPER), str(self._folder), "--", *command]
        environment = {**self._recipe.environment, TOKEN_VARIABLE: token}
        keeper = processes.identity_of(processes.leave_behind(kept, LOG_NAME, environment, self._folder))
        if keeper is None:
            raise self._failed()
        server = Server(port, token, keeper, self._jvm_of(keeper))
        driver_folders.create_private(self._folder / _STATE, msgspec.json.encode(server))
        log.info("a Spark Connect server is started at %s, its output in %s", server.url, self._folder / LOG_NAME)
        self._wait_for(lambda: _accepts(port), server.keeper)
        return server

    def _discard_long_log(self) -> None:
        path = self._folder / LOG_NAME
        if path.is_file() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_name(f"{LOG_NAME}.1"))

    def _jvm_of(self, keeper: DriverIdentity) -> DriverIdentity:
        path = self._folder / f"{keeper.pid}.pid"
        self._wait_for(lambda: path.is_file() and bool(path.read_text()), keeper)
        found = processes.identity_of(int(path.read_text()))
        path.unlink()
        if found is None:
            raise self._failed()
        return found

    def _wait_for(self, condition: Callable[[], bool], keeper: DriverIdentity) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            if processes.is_gone(keeper) or time.monotonic() > deadline:
                processes.end(keeper)
                raise self._failed()
            time.sleep(POLL_SECONDS)

    def _failed(self) -> ConfigurationError:
        path = self._folder / LOG_NAME
        with suppress(OSError):
            said = "\n".join(path.read_text(errors="replace").splitlines()[-_LAST_LINES:])
            return ConfigurationError(f"the Spark Connect server does not start; the end of {path}:\n{said}")
        return ConfigurationError(f"the Spark Connect server does not start, and {path} cannot be read")


def known(folder: Path) -> Server | None:
    """The server that was started last in a folder; it may have ended."""
    try:
        return msgspec.json.decode((folder / _STATE).read_bytes(), type=Server)
    except (OSError, msgspec.MsgspecError):
        return None


def end(server: Server) -> None:
    """End a server, and the process that keeps it."""
    for one in (server.keeper, server.jvm):
        processes.end(one)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False
