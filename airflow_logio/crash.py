"""Named crash points (DESIGN, "How it is tested"): a real process dies there when a test asks for it.

Armed by the environment variable `LOGIO_CRASH_AT=<point>:<n>`: the process kills itself with SIGKILL the n-th time one of
its threads passes. `<point>:<n>:stop` sends SIGSTOP instead, for zombies that wake up later.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import StrEnum


class CrashPoint(StrEnum):
    """Before and after every commit and every external action of a driver."""

    BEFORE_REGISTER = "before_register"
    AFTER_REGISTER = "after_register"
    BEFORE_RECOVERY = "before_recovery"
    AFTER_RECOVERY = "after_recovery"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    BEFORE_WRITE = "before_write"
    AFTER_WRITE = "after_write"
    BEFORE_READ = "before_read"
    AFTER_READ = "after_read"
    BEFORE_JOB = "before_job"
    AFTER_JOB = "after_job"
    BEFORE_FINISH = "before_finish"
    AFTER_FINISH = "after_finish"
    BEFORE_STORE = "before_store"
    """Before the effect of a read action that cannot be replayed is obtained and stored."""
    IN_STORE = "in_store"
    """Behind a batch of the effect: the store is not complete."""
    AFTER_STORE = "after_store"
    """The store is complete and durable, and not in the log."""
    BEFORE_DROP = "before_drop"
    """The effect is used up, which is in the log; its store is about to be discarded."""
    AFTER_DROP = "after_drop"
    """The store is discarded, which is not in the log."""
    BEFORE_DRAIN = "before_drain"
    """The driver has heard that its group is to drain; nothing of it is in the log."""
    IN_DRAIN = "in_drain"
    """Inside the transaction that says so."""
    AFTER_DRAIN = "after_drain"
    """It is in the log, with the ends of the sources that could end at once."""
    IN_LOG_TRANSACTION = "in_log_transaction"
    """Behind the fence statement, before COMMIT: the fence row's lock is held."""
    IN_WAREHOUSE_TRANSACTION = "in_warehouse_transaction"
    """Behind the marker's lock, before COMMIT."""
    IN_EXTERNAL_WRITE = "in_external_write"
    """Between two write actions of a group that the external system does not apply as one."""


VARIABLE = "LOGIO_CRASH_AT"


class _Armed:
    def __init__(self, text: str) -> None:
        point, _, rest = text.partition(":")
        count, _, how = rest.partition(":")
        self.point = CrashPoint(point)
        self.remaining = int(count or 1)
        self.signal = signal.SIGSTOP if how == "stop" else signal.SIGKILL
        self.lock = threading.Lock()

    def passed(self, point: CrashPoint) -> None:
        if point is not self.point:
            return
        with self.lock:
            self.remaining -= 1
            due = self.remaining == 0
        if due:
            # To this very thread: a signal to the process may be taken by another one, and this one would run on a little.
            signal.pthread_kill(threading.get_ident(), self.signal)


_armed = _Armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def crash_here(point: CrashPoint) -> None:
    """Die (or stop) here if a test has armed this point; otherwise a comparison with None."""
    if _armed is not None:
        _armed.passed(point)
