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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy.engine import URL

from airflow_logio.databases import parse_url
from airflow_logio.errors import ConfigurationError
from demo.data import warehouse_engine
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


# --- its components, which it does not restart ------------------------------------------------------------------------

COMPONENTS = ("scheduler", "dag-processor", "api-server", "triggerer")
UNHEALTHY_SECONDS = 60.0
"""A component that says that it is unhealthy for so long is ended and started again; a busy machine makes one late."""
AGAIN_SECONDS = 60.0
"""A component that was started is given so long to become healthy."""


@dataclass(slots=True)
class AirflowComponents:
    """Call `look` every few seconds. `start` starts a component, `say` tells a person."""

    start: Callable[[str], subprocess.Popen[bytes]]
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _processes: dict[str, psutil.Process] = field(default_factory=dict)
    _ours: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _unhealthy_since: dict[str, float] = field(default_factory=dict)
    _started_at: dict[str, float] = field(default_factory=dict)

    def remember(self, processes: Sequence[psutil.Process]) -> None:
        """Which of these processes is which component; call it while all of them run."""
        for process in processes:
            name = component_of(process)
            if name is not None:
                self._processes.setdefault(name, process)

    def look(self, health: Mapping[str, str]) -> None:
        """Start what is gone. `health` is component → what it says of itself, as far as Airflow answers."""
        for one in self._ours:
            one.poll()  # collects it when it has ended
        for name in list(self._processes):
            if not _is_alive(self._processes[name]):
                self._restart(name, "has ended")
            elif self._hangs(name, health.get(name)):
                self._processes[name].kill()
                self._restart(name, f"was unhealthy for {UNHEALTHY_SECONDS:.0f} s")

    def _hangs(self, name: str, health: str | None) -> bool:
        now = self.clock()
        if health in (None, "healthy") or now - self._started_at.get(name, float("-inf")) < AGAIN_SECONDS:
            self._unhealthy_since.pop(name, None)
            return False
        return now - self._unhealthy_since.setdefault(name, now) >= UNHEALTHY_SECONDS

    def _restart(self, name: str, why: str) -> None:
        started = self.start(name)
        self._ours.append(started)
        self._processes[name] = psutil.Process(started.pid)
        self._started_at[name] = self.clock()
        self._unhealthy_since.pop(name, None)
        self.say(f"Airflow's {name} {why}; it is started again (pid {started.pid})")


def component_of(process: psutil.Process) -> str | None:
    """The component that a child of `airflow standalone` is, by its command line or by the title it has given itself."""
    try:
        words = " ".join(process.cmdline()).replace("_", "-").split()
    except psutil.Error:
        return None
    if not any(word.rpartition("/")[2] in ("airflow", "airflow:") for word in words):
        return None
    return next((name for name in COMPONENTS if name in words), None)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# --- its connections, in the JSON form of AIRFLOW_CONN_*, never on a command line -------------------------------------


def log_connection(url: str, payloads: str | None = None) -> str:
    """Connection type ``logio``. Raises `ConfigurationError` for a database that cannot hold a log."""
    parsed = parse_url(url)
    extra = {} if payloads is None else {"payloads": payloads}
    if parsed.get_backend_name() == "sqlite":
        return json.dumps({"conn_type": "logio", "extra": {"path": parsed.database, **extra}})
    fields = _server("logio", parsed)
    return json.dumps({**fields, "extra": {**fields.get("extra", {}), **extra}} if extra else fields)


def folder_connection(folder: Path) -> str:
    """Connection type ``file``, as a URI."""
    return folder.as_uri()


def warehouse_connection(url: str) -> str:
    """Connection type ``sqlite``, ``postgres``, or any other by its URL."""
    engine = warehouse_engine(url)
    engine.dispose()
    if engine.dialect.name == "sqlite":
        return json.dumps({"conn_type": "sqlite", "host": engine.url.database})
    if engine.dialect.name == "postgresql":
        return json.dumps(_server("postgres", engine.url))
    return json.dumps(_by_url("generic", engine.url))


def spark_connection(master: str = "local[1]") -> str:
    """Drivers run on this machine. So do their jobs, with one core each, unless `master` names a cluster."""
    return json.dumps({"conn_type": "spark", "host": master})


def _server(conn_type: str, url: URL) -> dict[str, Any]:
    if not url.host or not url.database or any(not isinstance(value, str) for value in url.query.values()):
        return _by_url(conn_type, url)  # e.g. a socket's folder, which the fields of a connection cannot express
    fields = {
        "conn_type": conn_type,
        "host": url.host,
        "port": url.port,
        "schema": url.database,
        "login": url.username,
        "password": url.password,
        "extra": dict(url.query) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _by_url(conn_type: str, url: URL) -> dict[str, Any]:
    return {"conn_type": conn_type, "extra": {"sqlalchemy_url": url.render_as_string(hide_password=False)}}
