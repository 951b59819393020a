"""What happens to a run in a storm: drivers die and stand still, databases are gone and full, people halt and scale.

Each look at the run may bring something. What lasts ends by itself, in a thread; nothing here waits.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from airflow_logio.crash import CrashPoint
from airflow_logio.errors import LogUnavailable, ProtocolViolation
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision.stop_run import StopMode, StopRun
from tests.support.crash_sites import IN_CLEARINGS, IN_LAKES, IN_STAGINGS, IN_SUBMISSIONS
from tests.support.storm.outages import Outage
from tests.support.storm.places import Place
from tests.support.storm.plan import Happening
from tests.support.storm.supervisors import Supervisor

LEASE = Lease(seconds=3, launch_seconds=60)
PER_LOOK = 0.2
"""How likely something begins at a look that is not planned."""
LONGEST_SECONDS = 4.0
"""Of standing still, and of an outage: shorter than the lease, and longer. An outage lasts until a process has noticed it."""
UNNOTICED_SECONDS = 15.0
BETWEEN_SECONDS = 0.3
"""From one happening that was planned to the next one."""
WILD_SECONDS = 60.0
"""After which only what was planned comes until all of it has: on a slow machine, drivers that always die notice nothing."""
COMES_WITHIN_SECONDS = 150.0
"""All that was planned; after that, the storm ends without it."""
POINTS = tuple(point for point in CrashPoint if point not in IN_LAKES + IN_CLEARINGS + IN_STAGINGS + IN_SUBMISSIONS)


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
    """`told` counts what has happened: an outage that a process has noticed, a request that was not refused. `failed` is what
    was planned and could not be brought in time."""

    def __init__(
        self, seed: int, place: Place, logs: Path, store: SqlLogStore, plan: tuple[Happening, ...], *, wild: bool
    ) -> None:
        """`logs`: the folder with the drivers' logs. Unless it is `wild`, nothing happens but what is planned."""
        self._dice = random.Random(f"weather {seed}")
        self._place = place
        self._logs = logs
        self._store = store
        self._plan = plan
        self._wild = wild
        self._threads: list[threading.Thread] = []
        self._outage = threading.Lock()
        """Held while one lasts."""
        self._ending = threading.Event()
        self._next_at = 0.0
        self._begun_at: float | None = None
        self._tries = 0
        self.told: Counter[Happening] = Counter()
        self.failed: tuple[Happening, ...] = ()

    def look(self, supervisor: Supervisor) -> None:
        """To be called again and again."""
        now = time.monotonic()
        self._begun_at = self._begun_at or now
        if now - self._begun_at > COMES_WITHIN_SECONDS and not self.failed:
            self.failed = tuple(one for one in self._missing() if one is not Happening.DRAIN)
        missing = self._missing()
        if not missing and Happening.DRAIN not in self._plan:
            self._place.over.touch()
        if missing and now > self._next_at and not self._outage.locked():
            self._next_at = now + BETWEEN_SECONDS
            self._bring(self._next(missing), supervisor)
        elif self._wild and not (missing and now - self._begun_at > WILD_SECONDS) and self._dice.random() < PER_LOOK:
            kinds: Mapping[Happening, float] = {
                Happening.KILL: 8,
                Happening.STOP: 4,
                Happening.LOG: 1,
                Happening.WAREHOUSE: 1,
                Happening.POWER: 1,
                Happening.DISK: 1,
                Happening.LEAVE: 1,
                Happening.HALT: 0.5,
                Happening.SCALE: 3,
                Happening.MEND: 1,
            }
            [what] = self._dice.choices(list(kinds), list(kinds.values()))
            self._bring(what, supervisor)

    def clear(self) -> None:
        """Wait until nothing lasts any more."""
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _missing(self) -> list[Happening]:
        """What is planned and has not happened. A group is known to be parked when it has been retried."""
        return [one for one in self._plan if not self.told[one] and one not in self.failed]

    def _next(self, missing: list[Happening]) -> Happening:
        """One after the other, so that what is not noticed does not keep the rest from happening; the drain comes last."""
        self._tries += 1
        before = [one for one in missing if one is not Happening.DRAIN]
        return before[self._tries % len(before)] if before else Happening.DRAIN

    def _bring(self, what: Happening, supervisor: Supervisor) -> None:
        """`told` counts what has happened at once; what lasts is told when it ends."""
        at_once: Mapping[Happening, Callable[[], bool]] = {
            Happening.KILL: self._kill,
            Happening.STOP: self._stop,
            Happening.TERMINAL: lambda: self._kill(supervisor.kill),
            Happening.HALT: supervisor.halt,
            Happening.SCALE: lambda: self._scale(supervisor.run),
            Happening.MEND: lambda: self._mend(supervisor.run),
            Happening.DRAIN: lambda: self._drain(supervisor.run),
        }
        with contextlib.suppress(LogUnavailable, psutil.NoSuchProcess):
            if what in at_once:
                self.told[what] += at_once[what]()
            elif what is Happening.LEAVE:
                self._later(self._leave)
            elif what is Happening.PARK:
                self._last(what, "warehouse", supervisor.is_parked, 60)
            else:
                self._last(what, what.name.lower())

    # --- drivers ------------------------------------------------------------------------------------------------------

    def _driver(self) -> psutil.Process | None:
        [run] = self._store.list_runs()
        statuses = [one for one in self._store.groups(run.run_id) if one.state is GroupState.RUNNING]
        identities = [one.identity for one in statuses if one.identity is not None and one.identity.pid]
        return psutil.Process(self._dice.choice(identities).pid) if identities else None

    def _kill(self, before: Callable[[], bool] = lambda: True) -> bool:
        process = self._driver()
        if process is None or not before():
            return False
        process.kill()
        return True

    def _stop(self) -> bool:
        process = self._driver()
        if process is None:
            return False
        process.send_signal(signal.SIGSTOP)
        self._later(lambda: self._resume(process))
        return True

    def _resume(self, process: psutil.Process) -> None:
        self._ending.wait(self._dice.uniform(0.1, LONGEST_SECONDS))
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)

    # --- external systems ---------------------------------------------------------------------------------------------

    def _last(
        self, what: Happening, name: str, until: Callable[[], bool] | None = None, longest: float = UNNOTICED_SECONDS
    ) -> None:
        """One outage at a time, while there are drivers. It ends when one has noticed it, and not before a random time."""
        outage = self._place.outages.get(name)
        if outage is None or self._driver() is None or not self._outage.acquire(blocking=False):
            return
        seconds = self._dice.uniform(0.1, LONGEST_SECONDS)
        self._later(lambda: self._until_noticed(what, outage, seconds, until, longest))

    def _until_noticed(
        self, what: Happening, outage: Outage, seconds: float, until: Callable[[], bool] | None, longest: float
    ) -> None:
        try:
            before = outage.noticed(self._logs)
            is_known = until or (lambda: outage.noticed(self._logs) > before)
            with outage.lasting():
                self._ending.wait(seconds)
                give_up_at = time.monotonic() + longest
                while not (known := is_known()) and time.monotonic() < give_up_at and not self._ending.wait(0.1):
                    pass
            self.told[what] += known
        finally:
            self._outage.release()

    def _leave(self) -> None:
        away = Path(f"{self._place.outlet}.away")
        away.touch()
        self._ending.wait(LONGEST_SECONDS / 2)
        away.unlink(missing_ok=True)

    # --- people -------------------------------------------------------------------------------------------------------

    def _scale(self, run: Run) -> bool:
        if not run.spec.replicated:
            return False
        [(group, shape)] = run.spec.replicated.items()
        try:
            self._store.request_scaling(run.run_id, group, self._dice.randint(1, len(shape.replicas)), by="a storm")
        except ProtocolViolation:
            return False
        return True

    def _mend(self, run: Run) -> bool:
        if not self._place.trouble.exists() or not self._store.quarantined(run.run_id):
            return False
        self._place.trouble.unlink()
        self._store.retry_quarantined(run.run_id)
        return True

    def _drain(self, run: Run) -> bool:
        try:
            StopRun(self._store, run, StopMode.DRAIN).request()
        except ProtocolViolation:
            return False
        return True

    def _later(self, act: Callable[[], object]) -> None:
        thread = threading.Thread(target=act, daemon=True)
        self._threads.append(thread)
        thread.start()
