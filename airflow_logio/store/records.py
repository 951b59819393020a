"""What the log says: rows as frozen values, for drivers, supervisors and displays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_logio.errors import LogioError
from airflow_logio.protocol.liveness import Lease, RecoveryBudget
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Event, Port
from airflow_logio.protocol.writes import PendingWrite


@dataclass(frozen=True, slots=True)
class RunKey:
    """What identifies a run: one execution of a pipeline; `generation` counts explicit fresh starts of one DAG run."""

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
    """Sources wait until the drivers of all groups are ready, Spark warm: for benchmarks."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run in the log. `uid` is unique across log databases; external markers carry it."""

    run_id: int
    uid: str
    spec: RunSpec
    state: RunState
    created_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class DriverIdentity:
    """Where a driver process is. pid alone is not an identity: start time and boot id tell a reused one."""

    host: str
    boot_id: str
    pid: int
    start_time: float
    parent_pid: int = 0
    """pid of the spark-submit JVM that started it."""
    parent_start_time: float = 0.0


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
    replica: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A claim that was not made: the group was parked or halted instead, which is committed; then `error` is raised."""

    error: LogioError


@dataclass(frozen=True, slots=True)
class GroupRef:
    run_id: int
    group: str
    incarnation: int
    replica: int = 0


@dataclass(frozen=True, slots=True)
class FenceRow:
    incarnation: int
    epoch: int
    commit_no: int


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """One group as an observer sees it. Times are seconds since the epoch, by the database's clock."""

    group: str
    state: GroupState
    desired: GroupState
    incarnation: int
    beat: int
    beat_at: float | None
    ready: bool
    """The driver has warmed up (a benchmark's source can wait for it)."""
    recoveries: int
    error: str | None
    since: float
    identity: DriverIdentity | None = None
    backend_pid: int | None = None
    log_path: str | None = None
    rss_bytes: int = 0
    replica: int = 0


@dataclass(frozen=True, slots=True)
class PortProgress:
    """Counter row of a port: ``out`` sent, ``in`` acknowledged, ``write`` applied at the external system."""

    port: Port
    direction: str
    events: int
    records: int
    bytes: int
    first_at: float
    last_at: float


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """An event read back from the log, and the Input Set of the row it was read from (None if unassigned)."""

    receiver: Port
    event: Event
    inset_id: str | None = None


@dataclass(frozen=True, slots=True)
class Recovered:
    """What Algorithms 6 to 9 read: states, undone state events, acknowledged undone events, pending write actions."""

    states: Mapping[str, bytes]
    snapshots: tuple[tuple[str, str, bytes], ...]
    """(operator, Input Set, serialized state at the trigger)"""
    acknowledged: tuple[LoggedEvent, ...]
    """In event_id order per port."""
    writes: tuple[PendingWrite, ...]
    """In order per (operator, connection)."""
