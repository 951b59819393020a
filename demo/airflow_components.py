"""The components of `airflow standalone`, which restarts none of them: which is gone or hangs, and another one for it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

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
