"""Named crash points (docs/design.md, "How it is tested"): a real process dies there when a test asks for it.

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
    BEFORE_QUESTION = "before_question"
    """Write actions may have been applied by an earlier attempt; a checkable system is about to be asked which were."""
    AFTER_QUESTION = "after_question"
    """It has answered; what it has not applied is about to be written."""
    BEFORE_READ = "before_read"
    """An external system is about to be asked for records: of a source, for those of its next event."""
    AFTER_READ = "after_read"
    """It has answered; nothing of the answer is in the log."""
    BEFORE_NEXT_ACTION = "before_next_action"
    """A read action of a source has no more records; the external system is about to be asked what follows it."""
    AFTER_NEXT_ACTION = "after_next_action"
    """It has answered; the end of the read action is not in the log."""
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
    BEFORE_BODY = "before_body"
    """A body that is too large for the log is about to be put into the payload store."""
    AFTER_BODY = "after_body"
    """It is durable there; the transaction that names it is not begun."""
    BEFORE_REMOVAL = "before_removal"
    """The log has forgotten what was collected; the bodies of it are about to be removed from the payload store."""
    AFTER_REMOVAL = "after_removal"
    """They are removed, which nobody but the payload store knows."""
    BEFORE_SWEEP = "before_sweep"
    """What earlier incarnations have put into the payload store, and not into the log, is about to be removed."""
    AFTER_SWEEP = "after_sweep"
    """It is removed, which nobody but the payload store knows."""
    BEFORE_DRAIN = "before_drain"
    """The driver has heard that its group is to drain; nothing of it is in the log."""
    IN_DRAIN = "in_drain"
    """Inside the transaction that says so."""
    AFTER_DRAIN = "after_drain"
    """It is in the log, with the ends of the sources that could end at once."""
    BEFORE_HALT = "before_halt"
    """The driver has stopped everything, as it was asked to; the log says that it runs."""
    AFTER_HALT = "after_halt"
    """The log says that the group has halted."""
    BEFORE_PARK = "before_park"
    """The driver cannot go on without a person; the log does not say so."""
    AFTER_PARK = "after_park"
    """The log says that the group is parked, and why."""
    BEFORE_REPORT = "before_report"
    """The driver has failed; the log says neither that nor where."""
    AFTER_REPORT = "after_report"
    """The log says that it has failed, and is to be recovered."""
    BEFORE_REBUILD = "before_rebuild"
    """The driver has learned that its epoch is void, and thrown away what it knew; the fence is as it was found."""
    AFTER_REBUILD = "after_rebuild"
    """The fence says that its next epoch has begun; nothing is read from the log."""
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
