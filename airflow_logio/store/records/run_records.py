"""A run of a pipeline: its key, what it was started with, the shape of its graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.record_rules import RecordRules
from airflow_logio.protocol.replicas import slot_of
from airflow_logio.protocol.run_writers import WriterShape
from airflow_logio.protocol.scope_rules import DayAsRead
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import Port

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


@dataclass(frozen=True, slots=True)
class Upstream:
    """What an operator depends on, in topological order: in a replicated group, the operators of each slot."""

    operators: tuple[str, ...]
    """The operator itself, and all whose events can reach it; Dispatchers and Mergers are among them."""
    source_groups: tuple[str, ...]
    """The groups of its sources. A replicated group has none."""


class Supervision(StrEnum):
    """What finds the failed groups of a run and recovers them (design D10)."""

    PROCESS = "process"
    """The process that started the run: `logio run`."""
    TASK = "task"
    """Task ``supervise`` of the run's own DAG run."""
    DAG = "dag"
    """A recovery DAG, which looks after many runs."""


class ConcurrentRuns(StrEnum):
    """When a run may begin beside unfinished ones of its pipeline."""

    DERIVED = "derived"
    """If no writer of either gets in the other's way, and they are not of one partition."""
    REFUSE = "refuse"
    """Never."""
    ISOLATED = "isolated"
    """Always: a user says that they have nothing in common."""


class Allowed(StrEnum):
    """What only a person lets a run do, by an option of `logio run` or `logio again` (design, "Days"); no schedule does."""

    TAKE_OVER = "take-over"
    """It replaces the day that another pipeline, or one of another log, owns by its value."""
    EMPTY = "empty"
    """Its days may become empty, although their writers refuse to replace rows by none."""

    @property
    def option(self) -> str:
        return f"--{self.value}"


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
    """`Pipeline.describe()`, whose hash is `graph_fingerprint`, to say what has changed; empty in runs of earlier
    versions."""
    code_digest: str | None = None
    """Names the code that the run was started with (`CodeBundle`). None if an earlier version began it, which kept none."""
    spark: Mapping[str, Any] = field(default_factory=dict)
    """The Spark options that `logio run` was given, without secrets (`SparkOptions.to_keep`)."""
    partition: str | None = None
    """The key of the partition that the run is for, as `PartitionKey.text`; None for a pipeline without partitions."""
    writers: tuple[WriterShape, ...] | None = None
    """What writes, as other runs of the pipeline see it; None in runs of earlier versions, which did not say."""
    drivers_at_once: int | None = None
    """How many drivers of all runs of the pipeline may be alive when this one begins (`rules/place_rules.py`)."""
    allowed: frozenset[Allowed] = frozenset()
    """What a person lets this run do: all its drivers, whatever launches them, and no other run."""
    keep_seconds: float | None = None
    """How long ended runs of the pipeline stay in the log, from when this one begins; None: until a person removes them."""
    due: Mapping[str, str] | None = None
    """By when partitions of the pipeline are to be there (`Partitioning.promise`)."""
    days_read: Mapping[str, tuple[DayAsRead, ...]] = field(default_factory=dict)
    """Source → the days of tables that it reads, as its author says. Those of folders are in the plans of `actions`."""

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

    def upstream(self, operator: str) -> Upstream:
        """What comes before `operator`. Raises `KeyError` if the run has no such operator."""
        senders: dict[str, set[str]] = {name: set() for name in self.operators}
        for receiver, sender in senders_of(self).items():
            senders[receiver.operator].add(sender.operator)
        found, left = {operator}, [operator]
        while left:
            left += (new := senders[left.pop()] - found)
            found |= new
        operators = tuple(name for name in self.operators if name in found)
        sources = (self.operators[name] for name in operators if not self.operators[name].inputs)
        return Upstream(operators, tuple(dict.fromkeys(shape.group for shape in sources)))


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the log. `uid` is unique across log databases; external markers carry it."""

    run_id: int
    uid: str
    spec: RunSpec
    state: RunState
    created_at: float
    ordinal: int
    """Rises with each run that begins of the pipeline in this log, whatever clocks say; never given twice."""
    ended_at: float | None = None
    superseded_by: str | None = None
    """The uid of the run that has begun in place of this one, which was given up."""
    because: str | None = None
    """Why it was given up, as a person has said it, or a clear."""
    next_allowed: frozenset[Allowed] = frozenset()
    """What the next run of its partition is allowed, as a person has said who gave it up; empty once that has begun."""
    damage: str | None = None
    """What is damaged in its row, and what to do. `spec` then has only what columns say: the key and the partition."""

    @property
    def partition(self) -> str | None:
        """The key of the partition that the run is for; None without partitions."""
        return self.spec.partition


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
