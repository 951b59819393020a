"""A run as observers see it: the states of its groups, its figures, requests to scale it, its supervisors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import structs

from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.driver_records import (
    DriverIdentity,
    DriverRecord,
    KilledTask,
    Load,
    ManagerSaid,
    Submission,
    known_as,
)
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.upkeep_records import QuarantineCount


@dataclass(frozen=True, slots=True)
class SupervisorRecord:
    """A process that looks for failed groups, and when it last looked."""

    name: str
    pipeline: str | None
    """The only pipeline whose runs it looks after; None for all."""
    run_uid: str | None
    """The only run it looks after; None for all."""
    age_seconds: float
    """Seconds since its last look, by the database's clock."""

    def covers(self, run: Run) -> bool:
        """Whether it looks after this run. A supervisor of many runs leaves out those of `logio run`."""
        if run.spec.supervision is Supervision.PROCESS:
            return self.run_uid == run.uid
        return self.run_uid in (None, run.uid) and self.pipeline in (None, run.spec.key.pipeline)


class GroupStatus(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One group as an observer sees it. Times are seconds since the epoch, by the database's clock."""

    group: str
    state: GroupState
    desired: GroupState
    incarnation: int
    beat: int
    beat_at: float | None
    ready: bool
    """The driver has warmed up (a benchmark's source can wait for it)."""
    recoveries: int  # drivers that replaced a dead one; not those that a person, or scaling, has asked for
    error: str | None
    since: float
    identity: DriverIdentity | None = None
    backend_pid: int | None = None
    log_path: str | None = None
    rss_bytes: int = 0
    commits: int = 0
    """Commits of the group, all incarnations together (the fence row's number of the last one)."""
    load: Load | None = None
    """The load that the driver of this incarnation reported with its last heartbeat."""
    code: int = 0
    """Number of the code that its next driver gets."""
    killed: KilledTask | None = None
    """The task that watched the group, if it was killed and the reason is not known yet."""
    own_place: bool = False
    """Only the group's own task launches its drivers."""
    drained_at: float | None = None
    """When its sources were told to end early, if they were: what they had not read is not in the run."""
    submission: Submission | None = None
    """As what its driver was submitted to a cluster manager, as the launcher knows it; without an id while that is not
    known. None: it is a process of the machine that launched it."""
    reported: Submission | None = None
    """As what the registered driver says itself that it was submitted."""
    manager_said: ManagerSaid | None = None
    """What its manager has said last of a driver that has not registered."""
    beat_age_seconds: float | None = None
    """Since its last heartbeat, by the database's clock; None if it has given none."""
    state_age_seconds: float | None = None
    """Since its state began, by the database's clock; None of several replicas as one."""
    said_age_seconds: float | None = None
    """Since its manager said that, by the database's clock."""

    def __eq__(self, other: object) -> bool:
        """Apart from the ages, which change by themselves."""
        return isinstance(other, GroupStatus) and self._without_ages() == other._without_ages()

    def __hash__(self) -> int:
        return hash(self._without_ages())

    def _without_ages(self) -> tuple[object, ...]:
        return structs.astuple(self)[:-3]

    @property
    def submissions(self) -> tuple[Submission, ...]:
        """As what its driver was submitted to a cluster manager: what its launcher knows, and what it says itself."""
        return known_as(self.submission, self.reported)

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since the last heartbeat of a registered driver, or since it registered if it has not given the first."""
        return self.state_age_seconds if self.beat_age_seconds is None else self.beat_age_seconds


class PortProgress(msgspec.Struct, frozen=True, gc=False):
    """Counter row of a port: ``out`` sent, ``in`` acknowledged, ``write`` applied at the external system.

    A structure, and no dataclass: one look at a large run makes thousands of them.
    """

    port: Port
    direction: str
    events: int
    records: int
    bytes: int
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True)
class UnderWay:
    """The work of a run that is not done yet, as numbers of rows of EVENT_LOG. A missing key means 0.

    An event that was assigned to two open Input Sets counts as two rows. Rows of quarantined Input Sets do not count.
    """

    open: dict[Port, int]
    """Input port → acknowledged events of Input Sets that are not done."""
    pending: dict[Port, int]
    """(operator, connection) → write actions that are not applied."""


@dataclass(frozen=True, slots=True)
class ScalingRequest:
    """A request to scale a replicated group. Times are seconds since the epoch, by the database's clock."""

    request_id: int
    run_id: int
    group: str
    replicas: int
    """The number of replicas asked for."""
    state: ScalingState
    by: str
    """Who asks."""
    reason: str
    """Why: the figures that a policy went by."""
    note: str
    """The outcome, in words."""
    key: str | None
    """A second request with the same key returns the first one."""
    requested_at: float
    accepted_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class RunSight:
    """One run as a watcher sees it, at one moment."""

    run: Run
    groups: Sequence[GroupStatus]
    """All of them, by name."""
    requests: Sequence[ScalingRequest] = ()
    """The latest request to scale each of its groups, the oldest first; of a group, no other one can be open."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Counters and drivers of a run: what displays and metrics are made of."""

    ports: Sequence[PortProgress]
    under_way: UnderWay
    drivers: Sequence[DriverRecord]
    quarantined: Mapping[str, QuarantineCount] = field(default_factory=dict)
    """By group; groups without any are missing."""


@dataclass(frozen=True, slots=True)
class SupervisorNote:
    """What a supervisor says when it looks: its name, and the only pipeline or run that it looks after, if it is only one."""

    name: str
    pipeline: str | None = None
    run_uid: str | None = None
