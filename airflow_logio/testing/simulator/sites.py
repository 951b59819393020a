"""Where a simulated driver can die: the sites of `airflow_logio.crash` and those that only a simulator can reach."""

from __future__ import annotations

from enum import StrEnum

from airflow_logio.crash import CrashPoint


class Site(StrEnum):
    """What a driver was about to do, or had just done, when it was lost; names of CrashPoint mean the same here."""

    BEFORE_REGISTER = CrashPoint.BEFORE_REGISTER.value
    AFTER_REGISTER = CrashPoint.AFTER_REGISTER.value
    BEFORE_RECOVERY = CrashPoint.BEFORE_RECOVERY.value
    IN_RECOVERY = "in_recovery"
    """The log is read, but nothing is rebuilt."""
    AFTER_RECOVERY = CrashPoint.AFTER_RECOVERY.value
    """The driver is rebuilt, but its first step is not committed."""
    IN_STEP = "in_step"
    """A step that is not closed has used events."""
    STEP_QUEUED = "step_queued"
    """A closed step waits for the committer."""
    BEFORE_COMMIT = CrashPoint.BEFORE_COMMIT.value
    IN_DOUBT = "in_doubt"
    """The connection broke inside a transaction: the database decides later, with the driver gone."""
    COMMIT_UNKNOWN = "commit_unknown"
    """The transaction is decided, but the acknowledgement was lost."""
    AFTER_COMMIT = CrashPoint.AFTER_COMMIT.value
    BEFORE_WRITE = CrashPoint.BEFORE_WRITE.value
    WRITE_UNKNOWN = "write_unknown"
    """The external system has applied the writes, but its answer was lost."""
    AFTER_WRITE = CrashPoint.AFTER_WRITE.value
    BEFORE_READ = CrashPoint.BEFORE_READ.value
    AFTER_READ = CrashPoint.AFTER_READ.value
    BEFORE_STORE = CrashPoint.BEFORE_STORE.value
    """An effect that cannot be read again is obtained and stored in one step here, so there is no IN_STORE."""
    AFTER_STORE = CrashPoint.AFTER_STORE.value
    BEFORE_DROP = CrashPoint.BEFORE_DROP.value
    AFTER_DROP = CrashPoint.AFTER_DROP.value
    BEFORE_JOB = CrashPoint.BEFORE_JOB.value
    AFTER_JOB = CrashPoint.AFTER_JOB.value
    IN_EVALUATION = "in_evaluation"
    """The files of a dataset are being written, or what they are made of is."""
    IN_REMOVAL = "in_removal"
    """Files that no row names any more are being removed."""
    BEFORE_DRAIN = CrashPoint.BEFORE_DRAIN.value
    AFTER_DRAIN = CrashPoint.AFTER_DRAIN.value
    """The log says that the group drains, but what its sources have read is still under way."""
    BEFORE_FINISH = CrashPoint.BEFORE_FINISH.value
    AFTER_FINISH = CrashPoint.AFTER_FINISH.value
    HALTING = "halting"
    """It was asked to halt, and the log does not say yet that it has."""
    EPOCH_VOID = "epoch_void"
    """Its memory was void, and it had not yet rebuilt itself."""
    IDLE = "idle"
    """Nothing was under way."""
