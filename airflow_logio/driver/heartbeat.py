"""The heartbeat of a driver (design D10): a row of its own, conditional on the incarnation, written by a thread of its own.

It carries the figures of the group's load, and brings news: the desired state of the group, and that the driver was replaced.
It ends the process if the JVM that started it is gone, because nothing else tells Python.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping

import psutil

from airflow_logio.errors import Fenced, LogioError
from airflow_logio.protocol.liveness import BEAT_SECONDS
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, Load

log = logging.getLogger(__name__)
_SILENT_BEATS = 120


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
