"""A real Airflow whose components are processes of their own: each can be killed and started again, as a machine does it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from demo.places import Places
from demo.standalone import environment, free_port
from tests.support.stacks.sitecustomize import SHOW

COMPONENTS = ("scheduler", "triggerer", "api-server", "dag-processor")
ROUTINE = (
    "Adopting or resetting orphaned tasks",
    "currently running",
    "Refreshing bundle",
    "Searching for files",
    "files for bundle",
    "dags-folder  ",
    "  Executing <Task",
)
"""What components say every few seconds, whatever happens."""
SETTINGS = {
    # A component that was killed is given up in seconds, not in minutes.
    # A scheduler that is late for its own heartbeat gives itself up, with the tasks that it runs.
    "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "25",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "15",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "2",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "30",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "5",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "6",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "600",
}


class AirflowProcesses:
    """`stop` leaves nothing behind: each component has a session of its own, by which all it ever started is found."""

    def __init__(self, places: Places, settings: Mapping[str, str], address: str = "localhost") -> None:
        self._places = places
        self._address = address
        self.port = free_port()
        paths = [str(Path(__file__).parent / "stacks"), str(Path(__file__).parents[2])]
        ours = {"PYTHONPATH": os.pathsep.join(paths), "LOGIO_STACKS": str(places.folder / "stacks.txt")}
        urls = {
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
        }
        self.environment = environment(places, self.port) | SETTINGS | ours | urls | dict(settings)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._sessions: set[int] = set()

    @property
    def url(self) -> str:
        return f"http://{self._address}:{self.port}"

    def migrate(self) -> None:
        """Make Airflow's own database."""
        done = subprocess.run(
            [_airflow(), "db", "migrate"], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"airflow db migrate: {done.stdout[-3000:]}{done.stderr[-3000:]}"

    def start(self, *names: str) -> None:
        for name in names or COMPONENTS:
            with self.log(name).open("ab") as log:
                process = subprocess.Popen(
                    [_airflow(), name],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self.environment,
                    cwd=self._places.folder,
                    start_new_session=True,
                )
            self._running[name] = process
            self._sessions.add(process.pid)

    def kill(self, name: str) -> None:
        """SIGKILL of the component's own process; what it has started is on its own."""
        process = self._running.pop(name)
        assert process.poll() is None, f"{name} has ended by itself: {self.last_words(name)}"
        process.kill()
        process.wait()

    def kill_all(self) -> None:
        """What a power failure does to all processes of all components."""
        for process in self._running.values():
            process.kill()
        for _ in range(3):  # a process may be starting another one while we look
            left = self._members()
            for member in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            psutil.wait_procs(left, timeout=10)
        for process in self._running.values():
            process.wait()
        self._running.clear()

    def check_alive(self) -> None:
        assert not self.deaths(), self.deaths()

    def deaths(self) -> str:
        """The components that have ended by themselves, and the ends of their outputs; empty if all live."""
        ended = {name: status for name, one in self._running.items() if (status := one.poll()) is not None}
        told = [f"{name} has ended by itself ({code}): {self.last_words(name)}" for name, code in ended.items()]
        return "\n".join(told)

    def task_processes(self) -> list[psutil.Process]:
        """The processes of tasks that run now, each with its supervisor, which is a worker of the scheduler."""
        scheduler = psutil.Process(self._running["scheduler"].pid)
        found = []
        for worker in scheduler.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "LocalExecutor" in " ".join(worker.cmdline()):
                    found += [process for process in worker.children()]
        return found

    def log(self, name: str) -> Path:
        return self._places.folder / f"{name}.log"

    def last_words(self, *names: str, lines: int = 25) -> str:
        """The ends of the components' outputs, and what the triggerer does now: what a failed test is explained by."""
        texts = [(name, self.log(name)) for name in names or COMPONENTS]
        ends = [f"--- {name}\n" + "\n".join(_telling(log)[-lines:]) for name, log in texts if log.exists()]
        return "\n".join([*ends, *(["--- stacks of the triggerer", self.stacks("triggerer")] if not names else [])])

    def stacks(self, name: str) -> str:
        """What the threads and tasks of a component's processes do now, even if they hang."""
        if name not in self._running or self._running[name].poll() is not None:
            return f"{name} does not run"
        shown = Path(self.environment["LOGIO_STACKS"])
        before = shown.stat().st_size if shown.exists() else 0
        main = psutil.Process(self._running[name].pid)
        for process in (main, *main.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                if "python" in process.exe():
                    process.send_signal(SHOW)
                    time.sleep(0.5)
        return shown.read_text(errors="replace")[before:]

    def _members(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if _is_of(process, self._sessions)]


def _is_of(process: psutil.Process, sessions: set[int]) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE
    return False


def _airflow() -> str:
    return str(Path(sys.executable).with_name("airflow"))


def _telling(log: Path) -> list[str]:
    """The lines of a component's output without what it says every few seconds."""
    lines = log.read_text(errors="replace").splitlines()
    return [line[:300] for line in lines if line.strip() and not any(words in line for words in ROUTINE)]
