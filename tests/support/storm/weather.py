"""What happens to a run in a storm: drivers die and stand still, databases are gone and full, people halt and scale.

Each look at the run may bring something. What lasts ends by itself, in a timer; nothing here waits.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from airflow_logio.crash import CrashPoint
from airflow_logio.errors import LogioError, LogUnavailable
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime.figures.snapshot import Snapshot
from airflow_logio.runtime.supervision.local_run import LocalRun
from airflow_logio.runtime.supervision.stop_run import StopMode, StopRun
from airflow_logio.store.records import Run
from airflow_logio.store.sql.store import SqlLogStore
from tests.store.small_disk import SmallFolder
from tests.support.crash_sites import IN_LAKES, IN_STAGINGS
from tests.support.postgres import PostgresServer

LEASE = Lease(seconds=3, launch_seconds=60)
PER_LOOK = 0.3
"""How likely something begins at a look."""
LONGEST_SECONDS = 4.0
"""Of standing still, and of an outage: shorter than the lease, and longer."""
POINTS = tuple(point for point in CrashPoint if point not in IN_LAKES + IN_STAGINGS)


def armed(seed: int, groups: tuple[str, ...]) -> dict[tuple[str, int], str]:
    """(group, incarnation) → where that driver dies or stops, for some of the first drivers of each group."""
    dice = random.Random(f"crash points {seed}")
    return {
        (group, incarnation): f"{dice.choice(POINTS)}:{dice.randint(1, 5)}"
        for group in groups
        for incarnation in range(1, 4)
        if dice.random() < 0.5
    }


class Weather:
    """`told` counts what has happened."""

    def __init__(
        self,
        seed: int,
        store: SqlLogStore,
        run: Run,
        trouble: Path,
        *,
        server: PostgresServer | None,
        disk: SmallFolder | None,
        files: tuple[Path, ...] = (),
    ) -> None:
        """`server` and `disk` are those of the log; `files` are SQLite databases, log or warehouse, that can be locked."""
        self._dice = random.Random(f"weather {seed}")
        self._store = store
        self._run = run
        self._trouble = trouble
        self._server = server
        self._disk = disk
        self._files = files
        self._timers: list[threading.Timer] = []
        self._is_out = threading.Event()
        self._supervisor: LocalRun | None = None
        self._drains = self._dice.random() < 0.3
        self.told: Counter[str] = Counter()

    def over(self, supervisor: LocalRun) -> Callable[[Snapshot], None]:
        """What is to be called with each snapshot that this supervisor takes."""
        self._supervisor = supervisor
        return self._look

    def clear(self) -> None:
        """Wait until nothing lasts any more."""
        for timer in self._timers:
            timer.join()

    def _look(self, _: Snapshot) -> None:
        kinds: Mapping[Callable[[], bool], float] = {
            self._kill: 8,
            self._stop: 4,
            self._outage: 2,
            self._lock: 2,
            self._fill: 2,
            self._halt: 1,
            self._scale: 3,
            self._mend: 1,
            self._drain: 0.3,
        }
        if self._dice.random() < PER_LOOK:
            [what] = self._dice.choices(list(kinds), list(kinds.values()))
            with contextlib.suppress(LogUnavailable, psutil.NoSuchProcess):
                if what():
                    self.told[what.__name__.strip("_")] += 1

    # --- drivers ------------------------------------------------------------------------------------------------------

    def _driver(self) -> psutil.Process | None:
        statuses = [one for one in self._store.groups(self._run.run_id) if one.state is GroupState.RUNNING]
        identities = [one.identity for one in statuses if one.identity is not None and one.identity.pid]
        return psutil.Process(self._dice.choice(identities).pid) if identities else None

    def _kill(self) -> bool:
        process = self._driver()
        if process is not None:
            process.kill()
        return process is not None

    def _stop(self) -> bool:
        process = self._driver()
        if process is None:
            return False
        process.send_signal(signal.SIGSTOP)
        self._later(lambda: _resume(process))
        return True

    # --- databases ----------------------------------------------------------------------------------------------------

    def _outage(self) -> bool:
        if self._server is None or self._is_out.is_set():
            return False
        server = self._server
        self._is_out.set()
        server.stop(mode=self._dice.choice(("fast", "immediate")))
        self._later(lambda: self._end_of(server.start))
        return True

    def _lock(self) -> bool:
        """Somebody else writes into a database of SQLite, for long."""
        if not self._files:
            return False
        path, seconds = self._dice.choice(self._files), self._dice.uniform(0.1, LONGEST_SECONDS)

        def hold() -> None:
            connection = sqlite3.connect(path, timeout=LONGEST_SECONDS, isolation_level=None)
            with contextlib.closing(connection), contextlib.suppress(sqlite3.OperationalError):
                connection.execute("BEGIN IMMEDIATE")
                time.sleep(seconds)

        self._later(hold, 0)
        return True

    def _fill(self) -> bool:
        if self._disk is None or self._is_out.is_set():
            return False
        disk = self._disk
        self._is_out.set()
        disk.fill()
        self._later(lambda: self._end_of(disk.make_room))
        return True

    def _end_of(self, mend: Callable[[], None]) -> None:
        mend()
        self._is_out.clear()

    # --- people -------------------------------------------------------------------------------------------------------

    def _halt(self) -> bool:
        assert self._supervisor is not None
        self._supervisor.halt()
        return True

    def _scale(self) -> bool:
        if not self._run.spec.replicated:
            return False
        [(group, shape)] = self._run.spec.replicated.items()
        with contextlib.suppress(LogioError):
            self._store.request_scaling(
                self._run.run_id, group, self._dice.randint(1, len(shape.replicas)), by="a storm"
            )
        return True

    def _mend(self) -> bool:
        if not self._trouble.exists() or not self._store.quarantined(self._run.run_id):
            return False
        self._trouble.unlink()
        self._store.retry_quarantined(self._run.run_id)
        return True

    def _drain(self) -> bool:
        if not self._drains:
            return False
        with contextlib.suppress(LogioError):
            StopRun(self._store, self._run, StopMode.DRAIN).request()
        return True

    def _later(self, act: Callable[[], object], seconds: float | None = None) -> None:
        timer = threading.Timer(self._dice.uniform(0.1, LONGEST_SECONDS) if seconds is None else seconds, act)
        timer.daemon = True
        self._timers.append(timer)
        timer.start()


def _resume(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)
