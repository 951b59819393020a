"""An isolated `airflow standalone`, with its own home and ports, and none of the caller's Airflow settings.

Only SIGINT ends it cleanly, and its children may outlive it. So its processes are found by what they share, the session
and AIRFLOW_HOME in the environment, and are ended by pid.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from airflow_logio.errors import ConfigurationError
from demo.airflow_connections import (
    folder_connection,
    log_connection,
    spark_connection,
    warehouse_connection,
)
from demo.places import Places

USUAL_PORT = 8080
STOP_SECONDS = 6.0
KEPT = ("HOME", "JAVA_HOME", "LANG", "LC_ALL", "LOGNAME", "SPARK_HOME", "TMPDIR", "TZ", "USER")


class Standalone:
    """`start` returns at once. `stop` leaves no process behind, not even of an earlier instance with the same home."""

    def __init__(
        self, places: Places, settings: Mapping[str, str] | None = None, *, wanted_port: int = USUAL_PORT
    ) -> None:
        """`settings` are more environment variables for all of its processes. If `wanted_port` is taken, or 0, it gets any
        free one."""
        self._places = places
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._again: list[subprocess.Popen[bytes]] = []
        """Components that were started anew."""
        self._environment: dict[str, str] = {}
        self.port = free_port(wanted_port)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}"

    def start(self) -> None:
        """Raises `ConfigurationError` if Airflow is not installed beside this Python."""
        airflow = Path(sys.executable).with_name("airflow")
        if not airflow.is_file():
            raise ConfigurationError("Airflow is not installed: pip install 'airflow-logio[demo]'")
        self._places.airflow_home.mkdir(mode=0o700, exist_ok=True)
        self._environment = {**environment(self._places, self.port), **self._settings}
        self._places.airflow_log.write_bytes(b"")
        self._process = self._start("standalone")

    def start_component(self, name: str) -> subprocess.Popen[bytes]:
        """Start one component anew, which has ended: `airflow standalone` does not. `stop` ends it, too."""
        self._again.append(self._start(name))
        return self._again[-1]

    def components(self) -> list[psutil.Process]:
        """The processes that `airflow standalone` has started itself."""
        try:
            return [] if self._process is None else psutil.Process(self._process.pid).children()
        except psutil.NoSuchProcess:
            return []

    def _start(self, command: str) -> subprocess.Popen[bytes]:
        with self._places.airflow_log.open("ab") as log:
            return subprocess.Popen(
                [str(Path(sys.executable).with_name("airflow")), command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._places.folder,
                start_new_session=True,  # Ctrl-C goes to this process, which tells Airflow when to end
            )

    def check_alive(self) -> None:
        """Raises `ConfigurationError` with the end of its output if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            end = self._places.airflow_log.read_text(errors="replace").splitlines()[-15:]
            raise ConfigurationError("Airflow has ended by itself. The end of its output:\n" + "\n".join(end))

    def login(self) -> tuple[str, str] | None:
        """User and password; None until Airflow has created them."""
        path = self._places.airflow_home / "simple_auth_manager_passwords.json.generated"
        try:
            users: dict[str, str] = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return next(iter(users.items()), None)

    def stop(self, patient: Callable[[], bool] = lambda: True) -> None:
        """Send SIGINT, wait a while, then send SIGKILL to all that is left."""
        members = self._members()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + STOP_SECONDS
            while patient() and self._process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
        for _ in range(3):  # a process may start another one during the look
            left = {process for process in {*members, *self._members()} if process.is_running()}
            for process in left:
                _kill(process)
            psutil.wait_procs(left, timeout=5)
        for process in filter(None, (self._process, *self._again)):
            process.wait(timeout=5)

    def _members(self) -> set[psutil.Process]:
        session = self._process.pid if self._process is not None else None
        home = str(self._places.airflow_home)
        return {process for process in psutil.process_iter() if _belongs(process, session, home)}


def _belongs(process: psutil.Process, session: int | None, home: str) -> bool:
    try:
        if process.pid == os.getpid() or process.uids().real != os.getuid():
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return bool(process.environ().get("AIRFLOW_HOME") == home)
    except (psutil.Error, OSError):
        return False


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def environment(places: Places, port: int) -> dict[str, str]:
    """All settings of the instance, including connections, so that no URL is on a command line or in its database."""
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    url = f"http://localhost:{port}"
    settings = {
        "AIRFLOW_HOME": str(places.airflow_home),
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": _secret(places.folder / "jwt_secret"),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__DAGS_FOLDER": str(places.dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "10",
        # A file that has changed is parsed at once; to parse the others every 30 s takes one of two cores.
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        # A task that waits five times for 5 s, because drivers start beside it, fails before it begins.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGIO__WORK_DIR": str(places.drivers),
        "AIRFLOW__LOGIO__POLL_INTERVAL": "0.5",
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        "AIRFLOW_CONN_LOGIO_DEFAULT": log_connection(places.log_url, places.payloads),
        "AIRFLOW_CONN_LAKE_FOLDER": folder_connection(places.lake),
        "AIRFLOW_CONN_WAREHOUSE_DB": warehouse_connection(places.warehouse_url),
        "AIRFLOW_CONN_SPARK_DEFAULT": spark_connection(),
        "SPT_NOENV": "1",  # else setproctitle overwrites the environment by which `stop` finds the processes
        "PYTHONUNBUFFERED": "1",
    }
    return {**kept, "PATH": path, **settings}


def _secret(path: Path) -> str:
    """The same for all processes of the instance, and across restarts."""
    if not path.is_file():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
    return path.read_text()


def free_port(wanted: int = 0) -> int:
    """`wanted` if it is free on the loopback interface, else any free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigurationError("there is no free port on the loopback interface")
