"""What can happen in a schedule, to whom, and where a driver can die."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from airflow_logio.crash import CrashPoint
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.testing.simulator.plan import GroupPlan


class Verb(StrEnum):
    """A step of a schedule. `SimulatedDriver` takes those of drivers, `World` the others."""

    # An epoch begins, and ends.
    REGISTER = "register"
    OPEN = "open"
    ASK = "ask"
    RECOVER = "recover"
    REBUILD = "rebuild"
    VOID = "void"
    HALT = "halt"
    JOIN = "join"
    # Events.
    FETCH = "fetch"
    EVALUATE = "evaluate"
    DELIVER = "deliver"
    WAIT = "wait"
    DRAIN = "drain"
    # Sources.
    READ = "read"
    ADVANCE = "advance"
    NOTE_EFFECT = "note_effect"
    EMIT = "emit"
    END_SOURCE = "end_source"
    DISCARD = "discard"
    # Jobs.
    START_JOB = "start_job"
    RUN_JOB = "run_job"
    NOTE_JOB = "note_job"
    # Steps of the loop and their commits.
    CLOSE = "close"
    CLOSE_WRITER = "close_writer"
    PARK = "park"
    FINISH = "finish"
    TAKE = "take"
    COMMIT = "commit"
    RESOLVE = "resolve"
    HAND_OVER = "hand_over"
    # Writers.
    TAKE_WRITES = "take_writes"
    APPLY = "apply"
    NOTE_WRITES = "note_writes"
    # Beside the loop.
    REMOVE = "remove"
    COLLECT = "collect"
    EXPIRE = "expire"
    BEAT = "beat"
    CHECK = "check"
    # What others do to a group, a server, or the log.
    CLAIM = "claim"
    CRASH = "crash"
    SUSPECT = "suspect"
    KILL = "kill"
    DECIDE = "decide"
    SWEEP = "sweep"
    GC = "gc"
    INTRUDE = "intrude"
    SERVER = "server"
    STOP = "stop"
    RETRY = "retry"
    WISH = "wish"
    # Scaling.
    REQUEST = "request"
    EMPLOY = "employ"
    EXECUTE = "execute"
    DISMISS = "dismiss"
    SUPERVISE = "supervise"
    OVERDUE = "overdue"
    PLACE = "place"
    REVIVE = "revive"
    END = "end"


class Action(NamedTuple):
    """One choice of a schedule. `age` counts back from the group's newest incarnation: 0 is the newest, 1 its predecessor."""

    group: str
    age: int
    verb: Verb
    about: object = None
    """A port, a source, an operator, a writer; for actions of others, whatever they are about."""
    many: int = 1
    outcome: str = ""
    """How it ends, if not well: ``lost``, ``fails``, ``doubt``; or in which way it is taken."""


class Incarnation(Protocol):
    """A driver as watches, world and external systems see it."""

    plan: GroupPlan
    claim: Claim
    number: int
    is_alive: bool
    session: GroupSession

    @property
    def is_replaced(self) -> bool:
        """A newer incarnation is claimed."""

    def end(self) -> None:
        """Stop: whatever it was doing, it does nothing more."""


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
