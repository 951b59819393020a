"""The tables of the log as dicts, with transactions: all of a transaction's changes, or none of them.

Every change goes through `put`, `log` and `unlog`, which record how to undo it. A transaction that fails is undone
backwards. Rows are frozen values, so what a reader holds never changes under it. `observer`, if there is one, is shown
what a transaction has changed: there the simulator checks the log's invariants.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.scope_rules import DayAsRead
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Port, ReadStatus, Status
from airflow_logio.store.port.unfenced_port import DirectAddress, OutputPart
from airflow_logio.store.records.driver_records import (
    CodeChange,
    DriverIdentity,
    FenceRow,
    LaunchRecipe,
    Load,
    ManagerSaid,
    Submission,
)
from airflow_logio.store.records.run_records import Allowed, Run, RunKey, RunSpec
from airflow_logio.store.records.start_records import Decided
from airflow_logio.store.records.status_records import PortProgress, ScalingRequest
from airflow_logio.store.records.upkeep_records import RemovedRun

K = TypeVar("K")
V = TypeVar("V")


class GroupKey(NamedTuple):
    run_id: int
    group: str


class BodyKey(NamedTuple):
    """Primary key of EVENT_DATA."""

    run_id: int
    operator: str
    channel: str
    event_id: int


class LogRow(NamedTuple):
    """A row of EVENT_LOG; `key` is its unique key."""

    body: BodyKey
    status: Status
    send_port: str | None
    receiver: str
    rec_port: str | None
    inset_id: str | None
    size: int = 0
    kept: bool = False

    @property
    def key(self) -> tuple[BodyKey, str, str, str]:
        return self.body, self.receiver, self.rec_port or "", self.inset_id or ""


LogKey = tuple[BodyKey, str, str, str]
ABSENT: Any = object()
"""Stands for the row before a change, if there was none."""
Change = tuple[dict[Any, Any], Any, Any]
"""(table, key, row before)"""


class Body(NamedTuple):
    """A row of EVENT_DATA."""

    header: bytes
    body: bytes
    ref: str | None = None
    kept: bool = False
    logged_at: float = 0.0


class ReadRow(NamedTuple):
    """A row of READ_ACTION."""

    status: ReadStatus
    description: dict[str, Any]
    kept: bool = False


class QuarantineRow(NamedTuple):
    """An Input Set that is set aside."""

    group: str
    error: str
    since: float


@dataclass(frozen=True, slots=True)
class RunRow:
    run_id: int
    uid: str
    spec: RunSpec
    created_at: float
    ordinal: int
    state: RunState = RunState.RUNNING
    ended_at: float | None = None
    superseded_by: str | None = None
    because: str | None = None
    next_allowed: frozenset[Allowed] = frozenset()
    told: str | None = None

    @property
    def dag_run_id(self) -> str:
        """What it is found by. A run that is being removed has given its name back."""
        return self.uid if self.state is RunState.REMOVING else self.spec.key.dag_run_id

    def as_run(self) -> Run:
        ended = (self.ended_at, self.superseded_by, self.because, self.next_allowed)
        return Run(self.run_id, self.uid, self.spec, self.state, self.created_at, self.ordinal, *ended)


@dataclass(frozen=True, slots=True)
class GroupRow:
    state: GroupState
    desired: GroupState
    since: float
    error: str | None = None
    launch: LaunchRecipe | None = None
    code: int = 0
    drained_at: float | None = None


@dataclass(frozen=True, slots=True)
class DriverRow:
    nonce: str
    reason: str
    spends_budget: bool
    claimed_at: float
    submitted_at: float | None = None
    registered_at: float | None = None
    first_commit_at: float | None = None
    ended_at: float | None = None
    error: str | None = None
    log_path: str | None = None
    identity: DriverIdentity | None = None
    failed_at: str | None = None
    code: int = 0
    submission: Submission | None = None
    reported: Submission | None = None
    manager_said: ManagerSaid | None = None
    said_at: float | None = None
    was_taken: bool = False
    gone_at: float | None = None


@dataclass(frozen=True, slots=True)
class BeatRow:
    beat: int
    at: float
    ready: bool
    rss_bytes: int
    load: Load | None = None


@dataclass(frozen=True, slots=True)
class SupervisorRow:
    pipeline: str | None
    run_uid: str | None
    at: float


SlotKey = tuple[int, str, int]
"""(run id, replicated group, slot)"""


class EventLog:
    """EVENT_LOG with the indexes that its readers need, kept by every insert and delete."""

    def __init__(self) -> None:
        self.rows: dict[LogKey, LogRow] = {}
        self._on_their_way: dict[tuple[int, str, str], dict[int, LogRow]] = {}
        self._of_inset: dict[tuple[int, str, str], dict[LogKey, LogRow]] = {}
        self._held: dict[BodyKey, dict[LogKey, LogRow]] = {}
        self._garbage: dict[tuple[int, str], dict[LogKey, LogRow]] = {}
        self._of_event: dict[BodyKey, dict[LogKey, LogRow]] = {}

    def insert(self, row: LogRow) -> LogKey:
        key = row.key
        if key in self.rows:
            raise LogInconsistent(f"the log refused a row: there is one of {key} already")
        self.rows[key] = row
        self._of_event.setdefault(row.body, {})[key] = row
        self._enter(key, row)
        return key

    def remove(self, row: LogRow) -> LogKey:
        key = row.key
        del self.rows[key]
        of_event = self._of_event[row.body]
        del of_event[key]
        if not of_event:
            del self._of_event[row.body]
        self._leave(key, row)
        return key

    def replace(self, old: LogRow, new: LogRow) -> LogKey:
        """Change a row whose key stays as it is."""
        key = old.key
        self.rows[key] = self._of_event[old.body][key] = new
        self._leave(key, old)
        self._enter(key, new)
        return key

    def _enter(self, key: LogKey, row: LogRow) -> None:
        body, status, send_port, receiver, rec_port, inset_id, _, kept = row
        if status is Status.UNDONE:
            if inset_id is not None:
                self._of_inset.setdefault((body.run_id, receiver, inset_id), {})[key] = row
            elif send_port is not None:
                self._on_their_way.setdefault((body.run_id, receiver, rec_port or ""), {})[body.event_id] = row
        elif status is Status.HELD:
            self._held.setdefault(body, {})[key] = row
        elif status is Status.DONE and not kept:
            self._garbage.setdefault((body.run_id, receiver), {})[key] = row

    def _leave(self, key: LogKey, row: LogRow) -> None:
        body, status, send_port, receiver, rec_port, inset_id, _, kept = row
        if status is Status.UNDONE:
            if inset_id is not None:
                del self._of_inset[body.run_id, receiver, inset_id][key]
            elif send_port is not None:
                del self._on_their_way[body.run_id, receiver, rec_port or ""][body.event_id]
        elif status is Status.HELD:
            del self._held[body][key]
        elif status is Status.DONE and not kept:
            del self._garbage[body.run_id, receiver][key]

    def on_their_way(self, run_id: int, receiver: Port) -> dict[int, LogRow]:
        """event_id → undone, unassigned row of a receiver port."""
        return self._on_their_way.get((run_id, *receiver), {})

    def undone_of(self, run_id: int, operator: str, inset_id: str) -> list[LogRow]:
        return list(self._of_inset.get((run_id, operator, inset_id), {}).values())

    def held_of(self, body: BodyKey) -> list[LogRow]:
        """Rows of an event that is not sent yet."""
        return list(self._held.get(body, {}).values())

    def garbage(self, run_id: int, operator: str) -> list[LogRow]:
        """Done rows of a receiver that lineage does not need."""
        return list(self._garbage.get((run_id, operator), {}).values())

    def of_event(self, body: BodyKey) -> list[LogRow]:
        return list(self._of_event.get(body, {}).values())


class TablesTransaction:
    """Holds the lock of the log; not a generator, because the simulator opens a few thousand of them per second."""

    __slots__ = ("_tables",)

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def __enter__(self) -> None:
        self._tables.changed.acquire()
        self._tables.begin()

    def __exit__(self, kind: type[BaseException] | None, _error: object, _where: object) -> None:
        try:
            if kind is None:
                self._tables.commit()
            else:
                self._tables.rollback()
        finally:
            self._tables.changed.release()


class Tables:
    """Everything that the log holds. Use `transaction`, also to read: it is the lock."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.runs: dict[int, RunRow] = {}
        self.run_keys: dict[RunKey, int] = {}
        self.run_ids = itertools.count(1)
        self.ordinals: dict[str, int] = {}
        self.days_read: dict[int, tuple[tuple[str, DayAsRead], ...]] = {}
        """By the number of the run: (source, day)."""
        self.removed: dict[str, RemovedRun] = {}
        """By uid."""
        self.keeps: dict[str, float | None] = {}
        """Pipeline → how long its ended runs stay."""
        self.due: dict[str, Mapping[str, str] | None] = {}
        self.swept: dict[str, float] = {}
        self.starts: dict[tuple[RunKey, int], Decided] = {}
        """By the key of the first generation, and the number of the attempt."""
        self.groups: dict[GroupKey, GroupRow] = {}
        self.fences: dict[GroupKey, FenceRow] = {}
        self.drivers: dict[tuple[GroupKey, int], DriverRow] = {}
        self.beats: dict[tuple[GroupKey, int], BeatRow] = {}
        self.output: dict[tuple[GroupKey, int], dict[int, OutputPart]] = {}
        self.addresses: dict[GroupKey, DirectAddress] = {}
        self.supervisors: dict[str, SupervisorRow] = {}
        self.events = EventLog()
        self.bodies: dict[BodyKey, Body] = {}
        self.reads: dict[tuple[int, str, str, int], ReadRow] = {}
        self.quarantine: dict[tuple[int, str, str], QuarantineRow] = {}
        self.slots: dict[SlotKey, Slot] = {}
        self.code: dict[tuple[int, str], bytes] = {}
        self.code_changes: dict[tuple[int, int], CodeChange] = {}
        self.scalings: dict[tuple[int, int], ScalingRequest] = {}
        self.request_ids = itertools.count(1)
        self.states: dict[tuple[int, str, int], bytes] = {}
        self.lineage: dict[tuple[int, Port, int, str], None] = {}
        self.counters: dict[tuple[int, Port, str], PortProgress] = {}
        self.changed = threading.Condition()
        """Its lock is the lock of the log; notified after every commit."""
        self.commits = 0
        self.now = clock
        self.observer: Callable[[Sequence[Change]], None] | None = None
        """Called with the changes of every transaction that has committed, in order."""
        self._changes: list[Change] = []

    def transaction(self) -> TablesTransaction:
        """Keeps all changes made inside, or none if it raises."""
        return TablesTransaction(self)

    def begin(self) -> None:
        """Called under the lock, as are `commit` and `rollback`."""
        self._changes = []

    def commit(self) -> None:
        """Notify the sessions that wait, and the observer."""
        if self._changes:
            self.commits += 1
            self.changed.notify_all()
            if self.observer is not None:
                self.observer(self._changes)

    def rollback(self) -> None:
        """Undo all changes, backwards."""
        rows: object = self.events.rows
        for table, key, before in reversed(self._changes):
            if table is rows:
                if key in table:
                    self.events.remove(table[key])
                if before is not ABSENT:
                    self.events.insert(before)
            elif before is ABSENT:
                del table[key]
            else:
                table[key] = before

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """Insert or replace a row."""
        self._changes.append((table, key, table.get(key, ABSENT)))
        table[key] = value

    def drop(self, table: dict[K, V], key: K) -> None:
        """Delete a row, if it is there."""
        if key in table:
            self._changes.append((table, key, table.pop(key)))

    def add(self, table: dict[K, V], key: K, value: V) -> None:
        """Insert a row that must be new."""
        if key in table:
            raise LogInconsistent(f"the log refused a row: there is one of {key} already")
        self._changes.append((table, key, ABSENT))
        table[key] = value

    def log(self, row: LogRow) -> None:
        """Insert a row of EVENT_LOG."""
        self._changes.append((self.events.rows, self.events.insert(row), ABSENT))

    def unlog(self, row: LogRow) -> None:
        self._changes.append((self.events.rows, self.events.remove(row), row))

    def relog(self, rows: Sequence[LogRow], status: Status, inset_id: str | None = None) -> None:
        """Change rows of EVENT_LOG: their status, and the Input Set where a waiting one is assigned."""
        for row in rows:
            body, _, send_port, receiver, rec_port, inset, size, kept = row
            if inset_id is None or inset_id == inset:
                new = LogRow(body, status, send_port, receiver, rec_port, inset, size, kept)
                self._changes.append((self.events.rows, self.events.replace(row, new), row))
            else:
                self.unlog(row)
                self.log(LogRow(body, status, send_port, receiver, rec_port, inset_id, size, kept))
