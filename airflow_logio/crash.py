"""Named crash points (docs/design.md, "How it is tested"): a real process dies there when a test asks for it.

Armed by the environment variable `LOGIO_CRASH_AT=<point>:<n>`: the process kills itself with SIGKILL the n-th time one of
its threads passes. `<point>:<n>:stop` sends SIGSTOP instead, for zombies that wake up later.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from enum import StrEnum


class CrashPoint(StrEnum):
    """Before and after every commit and every external action of a driver, and of the launcher of one on a cluster."""

    BEFORE_SUBMISSION_NOTE = "before_submission_note"
    """A launcher has claimed an incarnation for a driver on a cluster; the log does not say what it is about to submit."""
    BEFORE_SUBMISSION = "before_submission"
    """The log says what is about to be submitted; the cluster manager does not know of it."""
    AFTER_SUBMISSION = "after_submission"
    """The cluster manager has accepted the driver; its id is not in the log."""
    BEFORE_REGISTER = "before_register"
    AFTER_REGISTER = "after_register"
    BEFORE_RECOVERY = "before_recovery"
    AFTER_RECOVERY = "after_recovery"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    BEFORE_WRITE = "before_write"
    AFTER_WRITE = "after_write"
    BEFORE_QUESTION = "before_question"
    """An earlier attempt may have applied write actions; the driver is about to ask a checkable system which ones."""
    AFTER_QUESTION = "after_question"
    """The system has answered; the driver is about to write what was not applied."""
    BEFORE_READ = "before_read"
    """The driver is about to read records from an external system; for a source, those of its next event."""
    AFTER_READ = "after_read"
    """The external system has answered, but nothing of the answer is in the log."""
    BEFORE_NEXT_ACTION = "before_next_action"
    """A read action of a source has no more records; the driver is about to ask the external system what follows."""
    AFTER_NEXT_ACTION = "after_next_action"
    """The external system has answered, but the end of the read action is not in the log."""
    BEFORE_JOB = "before_job"
    AFTER_JOB = "after_job"
    BEFORE_DATASET_JOB = "before_dataset_job"
    """The driver is about to start the Spark job that writes the files of a dataset."""
    AFTER_DATASET_JOB = "after_dataset_job"
    """The files are durable, and nothing names them."""
    AFTER_MANIFEST = "after_manifest"
    """The manifest is durable, and the log does not name it."""
    IN_PLACING = "in_placing"
    """A file of a write action has got its name in its folder, by a link, or all are copied; the folders are not durable."""
    IN_PUBLICATION = "in_publication"
    """The files of a write action are in their folder, its receipt is not."""
    BEFORE_RECEIPT = "before_receipt"
    """A run that owns a day has looked for the last time who else is there; its receipt, which shows its files, is not."""
    IN_CLEARING = "in_clearing"
    """The receipt of a day is there; a file of a run that it replaces is about to be removed."""
    BEFORE_CLOSING = "before_closing"
    """A writer with held write actions has got all its input; the driver is about to ask the log whether that is all."""
    AFTER_CLOSING = "after_closing"
    """The log has answered that nothing is; the closing write action is not in the log."""
    BEFORE_FINISH = "before_finish"
    AFTER_FINISH = "after_finish"
    BEFORE_STORE = "before_store"
    """The driver is about to obtain and store the effect of a read action that cannot be replayed."""
    IN_STORE = "in_store"
    """A batch of the effect is stored, but the store is not complete."""
    AFTER_STORE = "after_store"
    """The store is complete and durable, but not in the log."""
    BEFORE_DROP = "before_drop"
    """The log says that the effect is used up; its store is about to be discarded."""
    AFTER_DROP = "after_drop"
    """The store is discarded, but the log does not say so."""
    BEFORE_FORGET = "before_forget"
    """The log has the event of a range; the driver is about to tell the source that it may forget the range."""
    AFTER_FORGET = "after_forget"
    """The source was told, but the log does not say so."""
    BEFORE_STAGING_SWEEP = "before_staging_sweep"
    """The driver is about to shut out earlier drivers of a table's writer, and to drop what they have staged."""
    AFTER_STAGING_SWEEP = "after_staging_sweep"
    """That is done; the driver has written nothing."""
    BEFORE_STAGING = "before_staging"
    """There is a staging table, and executors are about to load it."""
    AFTER_STAGING = "after_staging"
    """Executors have loaded the staging table; nothing of it is in the target."""
    BEFORE_UNSTAGING = "before_unstaging"
    """The records are in the target, the marker has advanced, and the staging table is still there."""
    AFTER_UNSTAGING = "after_unstaging"
    """The staging table is dropped, and the log does not know yet that the write action is done."""
    BEFORE_LAKE_FILES = "before_lake_files"
    """The driver is about to put data files into the folder of a Delta table."""
    AFTER_LAKE_FILES = "after_lake_files"
    """They are there, and no commit of the table names them."""
    BEFORE_LAKE_COMMIT = "before_lake_commit"
    """The driver has looked at the table's newest version, and is about to commit the next one."""
    AFTER_LAKE_COMMIT = "after_lake_commit"
    """The table has the files and the marker; the driver has not seen so, nor does the log know."""
    BEFORE_BODY = "before_body"
    """A body that is too large for the log is about to be put into the payload store."""
    AFTER_BODY = "after_body"
    """The body is durable in the payload store, but the transaction that names it has not begun."""
    BEFORE_REMOVAL = "before_removal"
    """Rows were collected from the log; their bodies are about to be removed from the payload store."""
    AFTER_REMOVAL = "after_removal"
    """The bodies are removed, which only the payload store knows."""
    BEFORE_SWEEP = "before_sweep"
    """Payloads of earlier incarnations that the log does not name are about to be removed."""
    AFTER_SWEEP = "after_sweep"
    """These payloads are removed, which only the payload store knows."""
    BEFORE_DRAIN = "before_drain"
    """The driver has heard that its group is to drain, but has written nothing of it to the log."""
    IN_DRAIN = "in_drain"
    """The driver is inside the transaction that says that the group drains."""
    AFTER_DRAIN = "after_drain"
    """The log says that the group drains, and has the ends of the sources that could end at once."""
    BEFORE_HALT = "before_halt"
    """The driver has stopped everything, as requested, but the log still says that it runs."""
    AFTER_HALT = "after_halt"
    """The log says that the group has halted."""
    BEFORE_PARK = "before_park"
    """The driver cannot continue without a person, but the log does not say so yet."""
    AFTER_PARK = "after_park"
    """The log says that the group is parked, and why."""
    BEFORE_REPORT = "before_report"
    """The driver has failed, but the log does not say so yet, nor where."""
    AFTER_REPORT = "after_report"
    """The log says that the driver has failed, and is to be recovered."""
    BEFORE_REBUILD = "before_rebuild"
    """The driver has learned that its epoch is void, and has dropped its memory; the fence is unchanged."""
    AFTER_REBUILD = "after_rebuild"
    """The fence says that the next epoch has begun, but nothing is read from the log yet."""
    IN_LOG_TRANSACTION = "in_log_transaction"
    """The driver is between the fence statement and COMMIT: it holds the fence row's lock."""
    IN_WAREHOUSE_TRANSACTION = "in_warehouse_transaction"
    """The driver is between locking the marker and COMMIT."""
    IN_DAY_SWITCH = "in_day_switch"
    """The rows of a day are deleted in the transaction that replaces them, and those of the run are about to be inserted."""
    IN_AUDIT = "in_audit"
    """The rows of the run are in the place of the old ones, not committed, and an audit has found nothing wrong."""
    IN_EXTERNAL_WRITE = "in_external_write"
    """The driver is between two write actions of a group that the external system does not apply as one."""


VARIABLE = "LOGIO_CRASH_AT"
STANDBY_VARIABLE = "LOGIO_STANDBY_CRASH_AT"
"""The same, for the standby of the driver whose environment has it."""


def standby_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of a driver as its standby gets them: what is armed is armed for one process."""
    others = {name: value for name, value in variables.items() if name not in (VARIABLE, STANDBY_VARIABLE)}
    armed = variables.get(STANDBY_VARIABLE)
    return others if armed is None else {**others, VARIABLE: armed}


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
            self.strike()

    def strike(self) -> None:
        # Signal this very thread: another one may take a signal to the process, and this one would run a little longer.
        signal.pthread_kill(threading.get_ident(), self.signal)


_armed = _Armed(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None


def crash_here(point: CrashPoint) -> None:
    """Die (or stop) here if a test has armed this point; otherwise a comparison with None."""
    if _armed is not None:
        _armed.passed(point)
