"""Every error this package raises on purpose, sorted by what the reader should do about it.

One root (`LogioError`). Below it: fix what you wrote (`PipelineDefinitionError`, `ConfigurationError`), wait and retry
(`LogUnavailable`), restart the group within its budget (`OperatorFailed`), stop because another driver took over (`Fenced`),
park the group because continuing would lose or duplicate data (`Park` and below).
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from dataclasses import dataclass
from pathlib import Path


class LogioError(Exception):
    """Root of all errors of this package."""


# --- fix what you wrote ----------------------------------------------------------------------------------------------


class PipelineDefinitionError(LogioError, ValueError):
    """A pipeline, operator, group or lineage scope is declared wrongly; the message names the culprit."""


class ConfigurationError(LogioError):
    """A connection, parameter, path or installed program is missing or unusable; the message says which and what to do."""


class NotPermitted(ConfigurationError):
    """The database role with which the log is opened may not do it: open it with another one, or grant it the right."""


class SchemaMismatch(ConfigurationError):
    """The tables of the log database are not of the version that this code expects."""


class UnknownRun(ConfigurationError):
    """No run of that name is in the log."""


class RunRemoved(UnknownRun):
    """The run was in the log, and was removed: it says when, and by what. `when` says so without its name."""

    def __init__(self, told: str, when: str = "") -> None:
        super().__init__(told)
        self.when = when


class LineageUnknown(ConfigurationError):
    """Lineage was asked of a port outside every scope, of an event that is not in the log, or where no path leads."""


class NotKept(LineageUnknown):
    """The records of a replay operator's event were asked for: the log has never had them."""


# --- wait and try again ----------------------------------------------------------------------------------------------


class LogUnavailable(LogioError):
    """The log database cannot be reached, or broke the connection; nothing is known to be lost: wait and retry."""


class HeartbeatsHeld(LogUnavailable):
    """Another process holds the file of heartbeats (SQLite): no driver can say that it is alive until it lets go.

    `pid` is that process, None if it cannot be named.
    """

    def __init__(self, message: str, pid: int | None) -> None:
        super().__init__(message)
        self.pid = pid


class ExternalUnavailable(LogioError):
    """An external system (warehouse, file system) cannot be reached; the action is replayed with back-off."""


class StatementCutOff(ExternalUnavailable):
    """A database has ended a statement before its end: after a timeout that it has for it, or because a person said so. The
    action is tried a few times; then the group is parked."""


class LockHeld(ExternalUnavailable):
    """A database has refused a statement because another session holds a lock for longer than is waited for one."""


class ReplicaBusy(LogioError):
    """Slots cannot be moved now: a replica is stopped inside a transaction, or another process moves slots of the group.
    Nothing was changed: try again once that has ended or was recovered."""


class OtherRunUnfinished(LogioError):
    """Another run of the pipeline has not finished: let it finish, or give it up, then start again."""


class NoPlace(LogioError):
    """A run does not begin now: the drivers of others of its pipeline have all places (`drivers_at_once`). Nothing was
    changed: ask again."""


# --- restart within the budget, then park ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailurePoint:
    """Where in its input an operator's code raised. Equal points of two drivers mean that recovery hit the same error."""

    operator: str
    port: str | None = None
    event_id: int | None = None
    inset_id: str | None = None
    action: str | None = None
    """A read or write action of the operator, or a step that belongs to no event, in words."""

    def __str__(self) -> str:
        event = f"event {self.event_id} on port {self.operator}.{self.port}" if self.event_id is not None else ""
        inset = f"Input Set {self.inset_id!r} of operator {self.operator!r}" if self.inset_id is not None else ""
        action = f"{self.action} of operator {self.operator!r}" if self.action is not None else ""
        return ", ".join(filter(None, [event, inset, action])) or f"operator {self.operator!r}"


class OperatorFailed(LogioError):
    """An operator's own code raised; `place` names pipeline and operator, and port, event and Input Set where they are known.

    `at` is where recovery would run into it again, if that is known. `is_first` says that the operator had done nothing
    of the kind before, in this epoch: the error is more likely one of its code than one of its data.
    """

    def __init__(self, cause: str, at: FailurePoint | None = None, *, place: str = "", is_first: bool = False) -> None:
        super().__init__(f"{place}: {cause}" if place else cause)
        self.at = at
        self.is_first = is_first
        self._place = place
        self._cause = cause

    def further(self, place: str, at: FailurePoint | None = None) -> OperatorFailed:
        """The same error, with more known about its place."""
        known = ", ".join(filter(None, [self._place, place]))
        return OperatorFailed(self._cause, at or self.at, place=known, is_first=self.is_first)


class SparkLost(LogioError):
    """The Spark of this driver is gone, or its session. The driver makes another session of its Spark Connect server; one
    whose own JVM is gone ends, and is recovered. So does one in which a thread of the lost epoch does not end
    (`must_end`)."""

    must_end = False


# --- cluster managers: nothing is known to be lost --------------------------------------------------------------------


class ManagerUnavailable(LogioError):
    """A cluster manager does not answer, or this process has no way to it: nothing is known of its
    drivers. Of a submission: nothing was submitted, and it may be tried again."""


class NeverFits(ConfigurationError):
    """A cluster manager has refused a driver that is larger than its users may ever have: as it is, it would refuse it each
    time."""


class SubmissionUnknown(LogioError):
    """A driver was submitted to a cluster manager, and its answer was lost: there may be one."""


# --- stop: this process was replaced ---------------------------------------------------------------------------------


class Fenced(LogioError):
    """This driver was replaced by a higher incarnation. It has committed nothing since, and exits."""


class EpochVoid(LogioError):
    """The group's in-memory state is void: rebuild it from the log under a new epoch."""


# --- park: continuing would lose or duplicate data -------------------------------------------------------------------


class Park(LogioError):
    """The group must stop until a person has looked: after a restart it would fail again."""


class LogInconsistent(Park):
    """The log does not hold the rows that this step expects. A defect in LOG.io, or rows changed by hand."""


class ProtocolViolation(Park):
    """A step that the protocol does not allow (a state transition, a gap in event ids, a closed Input Set)."""


class ApiMisuse(ProtocolViolation):
    """A hand-written operator broke the rules of the LOG.io API (`airflow_logio.contrib.paper_api`); nothing was changed."""


class SourceChanged(Park):
    """A replayable source no longer returns what it returned before (another file, fewer rows)."""


class InputMissing(Park):
    """What a source is to read is not there yet. Airflow's retries of the group's task, and `logio retry`, look again."""


class SourceNotOrdered(Park):
    """A source that promised an order delivered a record out of it."""


class WriteRefused(Park):
    """The external system holds a marker or an owner that forbids this write (another run owns the table)."""


class RowsDropped(WriteRefused):
    """Fewer rows are in a table than a statement was sent: a trigger, a rule or the like has dropped some."""


class IncompatibleRun(Park):
    """The run was started by another version of this pipeline (graph or state version differ)."""


class FailedAtOnce(Park):
    """The first thing that an operator did in a run raised, twice: more drivers would fail the same way."""


class BudgetSpent(Park):
    """The group was recovered too often in its time window; it is parked with the causes."""


# --- the part of a traceback that an author wants to see: their own code, not ours around it --------------------------

_OURS = str(Path(__file__).parent) + "/"
_BETWEEN = ("<frozen importlib", str(Path(importlib.__file__).parent) + "/", contextlib.__file__)
"""What lies between our frames and theirs."""
MOST_FRAMES = 4


def authored_frames(error: BaseException) -> str:
    """The innermost frames outside this package, as lines of a traceback behind a newline; empty if there are none.

    Libraries that the author's code has called are shown with it: they are where it failed.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_OURS, *_BETWEEN))
    ]
    if not frames:
        return ""
    shown = frames if len(frames) <= MOST_FRAMES else [frames[0], *frames[1 - MOST_FRAMES :]]
    return "\n" + "".join(traceback.format_list(shown)).rstrip()
