"""Ends the driver when a call of the author's code runs longer than its limit (`Pipeline.limit`).

A thread of Python cannot be interrupted, so the process ends, as if it had crashed in that call; its group is recovered,
or parked.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable

from airflow_logio.systems.call_watch import Call, CallWatch

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
STOPPED_SECONDS = 5.0
"""Two looks that are so far apart were made by a process that was stopped meanwhile."""


class CallGuard:
    """A thread that looks at the calls. `overrun` gets a call that takes too long, and what to say of it; it does not
    return."""

    def __init__(self, calls: CallWatch, overrun: Callable[[Call, str], None]) -> None:
        self._calls = calls
        self._overrun = overrun
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._stopping.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - looked > STOPPED_SECONDS:
                self._calls.forgive(now - looked)
            looked = now
            if (found := self._calls.overrun()) is not None:
                self._end(*found)
                return

    def _end(self, call: Call, seconds: float) -> None:
        assert call.limit is not None
        said = f"{call} has run for {seconds:.0f} s, longer than its max_seconds={call.limit.seconds:g}"
        log.error("%s; where all threads are:", said)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        self._overrun(call, said)
