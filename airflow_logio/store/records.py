"""What the log says: rows as frozen values, for drivers, supervisors and displays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import structs

from airflow_logio.errors import LogioError
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.record_rules import RecordRules
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.states import GroupState, RunState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.load_records import Load
from airflow_logio.store.quarantine_records import QuarantineCount

REPLAY_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class RunKey:
    """The identity of a run, one execution of a pipeline. `generation` counts explicit fresh starts of one DAG run.

    Only the log knows which generation is current: `LogStore.start_run` fills it in.
    """

    pipeline: str
    dag_id: str
    dag_run_id: str
    generation: int = 1

    def __str__(self) -> str:
        again = f" (generation {self.generation})" if self.generation > 1 else ""
        return f"{self.dag_run_id} of {self.pipeline}{again}"


@dataclass(frozen=True, slots=True)
class BacklogBound:
    """How many unacknowledged events one connection may have in the log before its sender waits (back-pressure)."""

    events: int = 8_192
    bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        if self.events < 1 or self.bytes < 1:
            raise ValueError(f"a backlog bound must allow at least one event and one byte, got {self}")


@dataclass(frozen=True, slots=True)
class OperatorShape:
    """One operator of a run's graph, as lineage queries, retention and displays need it: without the author's code."""

    group: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Input port → its sender, ``operator.port``."""
    outputs: tuple[str, ...] = ()
    lineage_in: tuple[str, ...] = ()
    lineage_out: tuple[str, ...] = ()
    lineage_starts: tuple[str, ...] = ()
    """The ports of `lineage_out` at which paths only start: how their events were made is not recorded."""
    rules: RecordRules = field(default_factory=RecordRules)
    """How its records depend on records, as its author declared it; empty in runs of earlier versions."""


@dataclass(frozen=True, slots=True)
class ScopeShape:
    """A lineage scope: output ports as ``operator.port``; `retention_seconds` is τ of Section 3.6, None for ever."""

    start: str
    target: str
    retention_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ReplicatedShape:
    """A replicated group of a run: its operators are those of its slots, its replicas are groups of the log."""

    replicas: tuple[str, ...]
    """All replicas that the group may ever have, in order. Those that are not in use are retired."""
    slots: int
    initial: int
    """The number of replicas with which a run begins."""
    least: int = 0
    """The least number of replicas: a request for fewer is refused."""


class Supervision(StrEnum):
    """What finds the failed groups of a run and recovers them (design D10)."""

    PROCESS = "process"
    """The process that started the run: `logio run`."""
    TASK = "task"
    """Task ``supervise`` of the run's own DAG run."""
    DAG = "dag"
    """A recovery DAG, which looks after many runs."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Everything needed to start a run. Databases are named by connection id, never by URL."""

    key: RunKey
    pipeline_ref: str
    """``module:attr`` of the pipeline, importable from `bundle_root`."""
    bundle_root: str
    groups: tuple[str, ...]
    params: Mapping[str, Any]
    connections: Mapping[str, str]
    """The pipeline's connection name → connection id."""
    graph_fingerprint: str
    code_fingerprint: str
    budget: RecoveryBudget = field(default_factory=RecoveryBudget)
    lease: Lease = field(default_factory=Lease)
    actions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Source → description of its read action, as it was when the run was started (paths made absolute there)."""
    backlog: BacklogBound = field(default_factory=BacklogBound)
    hold_sources: bool = False
    """Sources wait until the drivers of all groups are ready and Spark is warm. For benchmarks."""
    replay_seconds: float = REPLAY_SECONDS
    """How long actions on an unavailable external system are replayed before the group is parked
    (Algorithm 5 Step 2)."""
    operators: Mapping[str, OperatorShape] = field(default_factory=dict)
    """The graph, in topological order."""
    scopes: tuple[ScopeShape, ...] = ()
    supervision: Supervision = Supervision.PROCESS
    """What looks for failed groups and recovers them."""
    replicated: Mapping[str, ReplicatedShape] = field(default_factory=dict)
    """Replicated groups by name. `groups` has their replicas; the shapes in `operators` name the replicated group."""
    graph: Mapping[str, Any] = field(default_factory=dict)
    """`Pipeline.describe()`, of which `graph_fingerprint` is the hash, to say what has changed; empty in runs of earlier
    versions."""
    code_digest: str | None = None
    """Names the code that the run was started with (`CodeBundle`). None if an earlier version began it, which kept none."""
    spark: Mapping[str, Any] = field(default_factory=dict)
    """Of `logio run`: the Spark options that it was given, without secrets (`SparkOptions.to_keep`)."""

    def unused_replicas(self) -> frozenset[str]:
        """Replicas beyond those with which the run begins."""
        return frozenset(name for shape in self.replicated.values() for name in shape.replicas[shape.initial :])

    def operators_that_ended(self, unfinished: Collection[str], done: Collection[tuple[str, int]]) -> tuple[str, ...]:
        """Operators of groups that have finished. In a replicated group, operators of slots (group, slot) that are
        done."""

        def ended(name: str, group: str) -> bool:
            return (group, slot_of(name)) in done if group in self.replicated else group not in unfinished

        return tuple(name for name, shape in self.operators.items() if ended(name, shape.group))

    def slots_of(self, operators: Iterable[str]) -> dict[str, list[int]]:
        """Replicated group → slots to which these operators belong; operators of other groups are left out."""
        found: dict[str, set[int]] = {}
        for name in operators:
            group, slot = self.operators[name].group, slot_of(name)
            if group in self.replicated and slot is not None:
                found.setdefault(group, set()).add(slot)
        return {group: sorted(slots) for group, slots in sorted(found.items())}


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the log. `uid` is unique across log databases; external markers carry it."""

    run_id: int
    uid: str
    spec: RunSpec
    state: RunState
    created_at: float
    ended_at: float | None = None


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


@dataclass(frozen=True, slots=True)
class KilledTask:
    """An Airflow task that was killed while it watched a group, before it knew why (ADR-66); or may have been: one on its
    way to the triggerer, which nobody tells if a person ends it there."""

    dag_id: str
    dag_run_id: str
    task_id: str
    map_index: int = -1
    last_try: bool = False
    """Whether Airflow would not have tried it again: then it may have failed by itself."""
    of_replica: bool = False
    """Whether it watched one replica of its group, and not all of them."""
    ask_at: float | None = None
    """Of a task on its way: when to ask what it has become, in seconds since the epoch. Its trigger takes the note away."""


@dataclass(frozen=True, slots=True)
class LaunchRecipe:
    """How a supervisor launches a group: names of connections, never URLs or passwords."""

    spark_conn_id: str | None = None
    connections: Mapping[str, str] = field(default_factory=dict)
    """The pipeline's connection name → connection id, where it differs from the run's."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of spark-submit that were given, under the names that `LogioSparkOperator` gives them."""
    killed: KilledTask | None = None
    """The task that has said so was killed since, and nobody knows why yet."""
    own_place: bool = False
    """Only that task launches the group's drivers, because it has a queue, a pool or an executor of its own (ADR-104)."""


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
        """Whether it looks after this run. Who looks after many leaves out those of `logio run`."""
        if run.spec.supervision is Supervision.PROCESS:
            return self.run_uid == run.uid
        return self.run_uid in (None, run.uid) and self.pipeline in (None, run.spec.key.pipeline)


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
    run_id: int
    group: str
    incarnation: int
    code: int = field(default=0, compare=False)
    """Number of the code that its driver executes; every event that it sends says so, unless it is 0."""


@dataclass(frozen=True, slots=True)
class FenceRow:
    incarnation: int
    epoch: int
    commit_no: int


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
    """The task that watched the group, if it was killed and nobody has found out why yet."""
    own_place: bool = False
    """Only the group's own task launches its drivers."""
    beat_age_seconds: float | None = None
    """Since its last heartbeat, by the database's clock; None if it has given none."""
    state_age_seconds: float | None = None
    """Since its state began, by the database's clock; None of several replicas as one."""

    def __eq__(self, other: object) -> bool:
        """Apart from the ages, which change by themselves."""
        return isinstance(other, GroupStatus) and self._without_ages() == other._without_ages()

    def __hash__(self) -> int:
        return hash(self._without_ages())

    def _without_ages(self) -> tuple[object, ...]:
        return structs.astuple(self)[:-2]

    @property
    def silent_seconds(self) -> float | None:
        """Of a registered driver: since its last heartbeat, or since it registered if it has not given the first."""
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
class Collected:
    """What one effect of garbage collection has done."""

    rows: int = 0
    """Rows removed."""
    examined: int = 0
    """Rows looked at."""
    more: bool = False
    """The batch was full: there may be more."""
    after: int = 0
    """Where a sweep resumes: behind this event_id, or at the beginning if it is 0."""
    refs: tuple[str, ...] = ()
    """Payloads that no row names any more. Remove them after the commit; the sweep of the run finds what is forgotten."""


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


def has_sources(spec: RunSpec, group: str) -> bool:
    """Whether a group of the run has a source."""
    return any(shape.group == group and not shape.inputs for shape in spec.operators.values())


def senders_of(spec: RunSpec) -> dict[Port, Port]:
    """Input port → output port, of all operators of a run."""
    return {
        Port(name, port): Port(*sender.split(".", 1))
        for name, shape in spec.operators.items()
        for port, sender in shape.inputs.items()
    }
