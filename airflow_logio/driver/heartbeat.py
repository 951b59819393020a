"""The heartbeat of a driver, and the figures of load that it carries (design D10): how the driver spends its time.

The heartbeat is a row of its own, conditional on the incarnation, written by a thread of its own. It also brings news: the
desired state of the group, and that the driver was replaced. It ends the process if the JVM that started it is gone, because
nothing else tells Python.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from enum import Enum

import psutil

from airflow_logio.errors import Fenced, LogioError
from airflow_logio.protocol.liveness import BEAT_SECONDS
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LOAD_SECONDS, GroupRef, Load

log = logging.getLogger(__name__)
_SILENT_BEATS = 120
_Totals = tuple[float, ...]
Waiting = Callable[[], tuple[int, float]]
"""How many events wait in memory, and for how many seconds the oldest one has."""


class Heartbeat:
    """`replaced` is called once when the incarnation is void, or the parent process is gone.

    `wishes`: desired state of the group → the event to set when it is asked for. `load` is what the driver reports
    about itself.
    """

    def __init__(
        self,
        store: LogStore,
        ref: GroupRef,
        is_ready: Callable[[], bool],
        wishes: Mapping[GroupState, threading.Event],
        replaced: Callable[[str], None],
        load: Callable[[], Load | None] = lambda: None,
        parent: int = 0,
    ) -> None:
        """`parent` is the pid of the JVM that started this process; 0 if nothing has to live with it."""
        self._store = store
        self._ref = ref
        self._is_ready = is_ready
        self._wishes = wishes
        self._replaced = replaced
        self._load = load
        self._parent = parent
        self._process = psutil.Process()
        self._stopping = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="logio-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        beat = 0
        while not self._stopping.is_set():
            started = time.monotonic()
            beat += 1
            if not self._beat(beat):
                return
            self._stopping.wait(max(0.05, BEAT_SECONDS - (time.monotonic() - started)))

    def _beat(self, beat: int) -> bool:
        if self._parent and os.getppid() != self._parent:
            self._replaced("the JVM of spark-submit has ended")
            return False
        try:
            desired = self._store.heartbeat(
                self._ref, beat, ready=self._is_ready(), rss_bytes=self._resident_bytes(), load=self._load()
            )
        except Fenced as error:
            self._replaced(str(error))
            return False
        except LogioError as error:
            # An outage of the log is not this driver's death; observers that meet it as well do not count it.
            if self._failures % _SILENT_BEATS == 0:
                log.warning("the log takes no heartbeat; the driver keeps running: %s", error)
            self._failures += 1
            return True
        self._failures = 0
        if desired in self._wishes:
            self._wishes[desired].set()
        return True

    def _resident_bytes(self) -> int:
        """Python and JVM together."""
        total = int(self._process.memory_info().rss)
        if not self._parent:
            return total
        try:
            return total + int(psutil.Process(self._parent).memory_info().rss)
        except psutil.Error:
            return total


class LoadMeter:
    """The loop reports what it does, takes and sends; the heartbeat reads the figures. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, window: float = LOAD_SECONDS) -> None:
        self._clock = clock
        self._window = window
        self._lock = threading.Lock()
        self._doing = Doing.IDLE
        self._since = clock()
        self._seconds = [0.0, 0.0, 0.0]
        self._counts = [0, 0, 0, 0]
        self._waiting = _nothing
        self._history: deque[tuple[float, _Totals]] = deque([(self._since, (0.0,) * 7)])

    def now(self, doing: Doing) -> None:
        """The loop does something else from now on."""
        if doing is self._doing:
            return
        with self._lock:
            self._pass(self._clock())
            self._doing = doing

    def watch(self, waiting: Waiting | None) -> None:
        """From now on, every reading calls `waiting`. None: nothing is in memory."""
        self._waiting = waiting or _nothing

    def took(self, events: int, records: int) -> None:
        """Input events were used."""
        with self._lock:
            self._counts[0] += events
            self._counts[1] += records

    def sent(self, events: int, records: int) -> None:
        """Output events were made for other groups."""
        with self._lock:
            self._counts[2] += events
            self._counts[3] += records

    def read(self) -> Load:
        """The figures of the last seconds."""
        with self._lock:
            now = self._clock()
            self._pass(now)
            totals = (*self._seconds, *map(float, self._counts))
            while len(self._history) > 1 and now - self._history[1][0] >= self._window:
                self._history.popleft()
            then, before = self._history[0]
            self._history.append((now, totals))
            busy, idle, blocked, *counts = (new - old for new, old in zip(totals, before, strict=True))
            seconds = now - then
        whole = busy + idle + blocked
        shares = (busy / whole, idle / whole, blocked / whole) if whole > 0 else (0.0, 1.0, 0.0)
        events_in, records_in, events_out, records_out = map(int, counts)
        return Load(seconds, *shares, events_in, records_in, events_out, records_out, *self._waiting())

    def _pass(self, now: float) -> None:
        self._seconds[self._doing.value] += now - self._since
        self._since = now


class Doing(Enum):
    """What the loop of a group does; every moment is one of these."""

    BUSY = 0
    """It works: steps, generation, a Spark job."""
    IDLE = 1
    """It waits for input."""
    BLOCKED = 2
    """It has input but may not take it: a receiver, an external system or the log holds it up."""


def _nothing() -> tuple[int, float]:
    return 0, 0.0
