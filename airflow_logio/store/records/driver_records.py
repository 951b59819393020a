"""A driver of a group: how it is claimed, identified and launched, the code it gets, the load it reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from airflow_logio.errors import LogioError


class DriverIdentity(msgspec.Struct, frozen=True, gc=False):
    """Where a driver process is. A pid alone is not an identity: start time and boot id tell a reused one."""

    host: str
    boot_id: str
    """Boot of the machine and pid namespace, ``boot/namespace``: pids of two containers are not compared (ADR-61)."""
    pid: int
    start_time: float
    parent_pid: int = 0
    """pid of the spark-submit JVM that started it."""
    parent_start_time: float = 0.0


class Submission(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A driver that was submitted to a cluster manager: where, and as what. Plain data, without credentials."""

    manager: str
    """``standalone``, ``yarn`` or ``kubernetes``."""
    address: str
    """Where the manager is asked about it, as the process that submitted it reaches the manager."""
    name: str
    """What the submitting process has chosen before it submitted, with a hash of the claim's nonce in it: nothing else has
    this name. The manager lists the driver by it, if it can."""
    namespace: str = ""
    """On Kubernetes."""
    cluster: str = ""
    """What tells the manager's cluster from others that have the same address elsewhere; empty: nothing does."""
    id: str = ""
    """The manager's own name for it, which it gives once; empty while that is not known."""
    attempt: int = 0
    """Which of an application's attempts it is, from 1, on YARN; 0: not known, or there is one only."""
    access: str = ""
    """By which connection of Airflow its manager is asked about it; empty: by what the asking process has."""


NAMED = "kubernetes"
"""The manager that has one driver of a name at most: who knows the name knows the driver."""


def known_as(noted: Submission | None, reported: Submission | None) -> tuple[Submission, ...]:
    """As what one driver was submitted: as its launcher has noted it, and as it says itself if that is another one, or says
    more; that of more knowledge last."""
    found = [one for one in (noted, reported) if one is not None]
    if len(found) == 2 and {one.manager for one in found} == {NAMED} and found[0].name == found[1].name:
        return (max(found, key=lambda one: one.id != ""),)
    return tuple(dict.fromkeys(found))


class ManagerSaid(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What a cluster manager has said of a driver that has not registered."""

    state: str
    """As `DriverSight` has it."""
    why: str = ""
    """For people: the queue that it waits in, or why nothing is known."""
    since: float | None = None
    """Since when, in seconds since the epoch; None: not said."""


@dataclass(frozen=True, slots=True)
class KilledTask:
    """An Airflow task that was killed while it watched a group, before it knew why (ADR-66). Or one that may have been: it
    was on its way to the triggerer, and is not told if a person ends it there."""

    dag_id: str
    dag_run_id: str
    task_id: str
    map_index: int = -1
    last_try: bool = False
    """Whether Airflow would not have tried it again: then it may have failed by itself."""
    of_replica: bool = False
    """Whether it watched one replica of its group, and not all of them."""
    ask_at: float | None = None
    """For a task on its way: when to ask what it has become, in seconds since the epoch. Its trigger takes the note away."""


@dataclass(frozen=True, slots=True)
class GroupNeeds:
    """What a launch of a group asks of its pipeline. With it, a process launches the group that imports no author's code."""

    code: int
    """Number of the code that needs this."""
    spark: bool
    frames: bool
    """An operator of the group is of mode ``dataframe``."""
    standby: bool
    properties: Mapping[str, str]
    """The group's own Spark properties, without those of its task."""
    environment: Sequence[str]
    """Names of the variables that the pipeline gives its drivers."""
    connections: Mapping[str, bool]
    """Connection of the pipeline that the group uses → whether it is to be a SQL database."""


@dataclass(frozen=True, slots=True)
class LaunchRecipe:
    """How a supervisor launches a group: names of connections, never URLs or passwords."""

    spark_conn_id: str | None = None
    connections: Mapping[str, str] = field(default_factory=dict)
    """The pipeline's connection name → connection id, where it differs from the run's."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of spark-submit that were given, under the names that `LogioSparkOperator` gives them."""
    killed: KilledTask | None = None
    """The task that noted this recipe, if it was killed since and the reason is not known yet."""
    own_place: bool = False
    """Only that task launches the group's drivers, because it has a queue, a pool or an executor of its own (ADR-104)."""
    needs: GroupNeeds | None = None
    """None: to launch the group, its pipeline is to be imported."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to launch a driver for one incarnation; the nonce makes registration a compare-and-set."""

    run_id: int
    run_uid: str
    group: str
    incarnation: int
    nonce: str
    recovery: bool
    """False for the first incarnation."""
    code: int = 0
    """Number of the code that the driver gets: 0 is that of the run, others are those of `CodeChange`."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A claim that was not made. The group was parked or halted instead, which is committed; then `error` is raised."""

    error: LogioError


@dataclass(frozen=True, slots=True)
class GroupRef:
    """One incarnation of a group of a run, as a registered driver or its supervisor names it."""

    run_id: int
    group: str
    incarnation: int
    code: int = field(default=0, compare=False)
    """Number of the code that its driver executes; every event that it sends says so, unless it is 0."""


@dataclass(frozen=True, slots=True)
class LeftDriver:
    """A driver that is of no use any more, and may still have room on a cluster."""

    ref: GroupRef
    submissions: tuple[Submission, ...]
    """As its launcher knows it, and as the driver has reported itself if that says more."""
    is_replaced: bool
    """A later driver of its group waits for its room, maybe. If not, its group or run has ended: it may be about to end by
    itself."""
    claimed_seconds: float
    """Since its claim, by the database's clock."""
    ended_seconds: float
    """Since its group's state began, by the database's clock."""


@dataclass(frozen=True, slots=True)
class FenceRow:
    """The row that every commit of a group updates first (design D8)."""

    incarnation: int
    epoch: int
    commit_no: int


@dataclass(frozen=True, slots=True)
class KeptCode:
    """The code that a driver of a run gets, by its number."""

    number: int
    digest: str | None
    """None if an earlier version began the run."""
    archive: bytes | None = field(default=None, repr=False)
    """As `CodeBundle` packs it; None if drivers find the code installed."""


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A person took other code for a group. `taken_at` is in seconds since the epoch, by the database's clock."""

    number: int
    """From 1, in the order of the run's changes."""
    group: str
    """The replicated group as a whole, for replicas."""
    digest: str
    fingerprint: str
    """Fingerprint of the source text of the pipeline's functions."""
    taken_by: str
    taken_at: float


LOAD_SECONDS = 10.0
"""The load of a driver covers this many seconds, or the time since it began."""


@dataclass(frozen=True, slots=True)
class SparkApplication:
    """The Spark application of a driver, as people look it up."""

    id: str
    ui_url: str | None
    """Where the driver shows it while it lives; None if its UI is turned off."""
    keeps_events: bool
    """Whether it writes an event log, which a history server shows when the driver has ended."""


@dataclass(frozen=True, slots=True)
class Standby:
    """A process that stands by to take a driver's place, on the driver's machine (ADR-108)."""

    pid: int
    is_ready: bool
    """It has imported everything, and made its Spark session: it would take over now."""
    rss_bytes: int
    """Memory of its Python and its JVM."""


WAIT = "`wait` for "
"""How `Load.call` begins where something waits for an external system that is unavailable."""
UNAVAILABLE_SINCE = ", unavailable since "
"""What comes next in it, behind what waits; then a time and the cause."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a driver has spent the last seconds, and what passed through it meanwhile. Fractions are of the time, 0 to
    1."""

    seconds: float
    """How long the window is."""
    busy: float
    idle: float
    """The share of the time in which it waited for input."""
    blocked: float
    """The share of the time in which a receiver, an external system or the log held it up."""
    events_in: int
    records_in: int
    events_out: int
    records_out: int
    queued: int = 0
    """Events in its memory that no step has used yet."""
    lag_seconds: float = 0.0
    """How long the oldest of these events has been there."""
    call: str = ""
    """The call of the author's code that has run longest among those under way; empty if there is none. Where something waits
    for an external system: what does, since when, and why; it begins with `WAIT`."""
    call_seconds: float = 0.0
    """How long it has run."""
    application: SparkApplication | None = None
    """None before the Spark session is made, and in a group without Spark."""
    standby: Standby | None = None
    """The process that stands by to take its place, if there is one."""


class DriverRecord(msgspec.Struct, frozen=True, gc=False):
    """One incarnation of a group. Times are seconds since the epoch by the database's clock; None: not reached."""

    group: str
    incarnation: int
    reason: str
    """Why it was launched."""
    is_recovery: bool
    """Whether it replaced a dead driver, which spends recovery budget. A person's retry does not."""
    claimed_at: float
    submitted_at: float | None
    registered_at: float | None
    first_commit_at: float | None
    ended_at: float | None
    error: str | None
    """Why it ended, if not by itself."""
    log_path: str | None
    host: str | None
    pid: int | None
    last_beat_at: float | None = None
    """Its last sign of life: the time of its latest heartbeat."""
    code: int = 0
    """Number of the code that it got."""
    failed_at: str | None = None
    """Where an operator's code raised, if that is what ended it (`RecoveryBudget.same_event`)."""
    was_taken: bool = False
    """Its cluster manager took its room, or lost its node: the recovery that follows spends no budget."""
    submission: Submission | None = None
    """As what it was submitted to a cluster manager: as it says itself, if it has registered."""
