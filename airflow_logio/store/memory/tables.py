"""The tables of the log as dicts, with transactions: all of a transaction's changes, or none of them.

Every change goes through `put`, `log` and `unlog`, which write down how to undo it; a transaction that fails is undone
backwards. Rows are frozen values, so that what a reader holds never changes under it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Port, ReadStatus, Status
from airflow_logio.store.records import DriverIdentity, FenceRow, PortProgress, Run, RunKey, RunSpec

K = TypeVar("K")
V = TypeVar("V")


class GroupKey(NamedTuple):
    run_id: int
    group: str
    replica: int = 0


class BodyKey(NamedTuple):
    """Primary key of EVENT_DATA."""

    run_id: int
    operator: str
    channel: str
    event_id: int


@dataclass(frozen=True, slots=True)
class LogRow:
    """A row of EVENT_LOG; `key` is its unique key."""

    body: BodyKey
    status: Status
    send_port: str | None
    receiver: str
    rec_port: str | None
    inset_id: str | None
    size: int = 0

    @property
    def key(self) -> tuple[BodyKey, str, str, str]:
        return self.body, self.receiver, self.rec_port or "", self.inset_id or ""

    @property
    def is_on_its_way(self) -> bool:
        """Undone, unassigned, and sent by a port: something to fetch."""
        return self.status is Status.UNDONE and self.inset_id is None and self.send_port is not None


LogKey = tuple[BodyKey, str, str, str]


@dataclass(frozen=True, slots=True)
class RunRow:
    run_id: int
    uid: str
    spec: RunSpec
    created_at: float
    state: RunState = RunState.RUNNING
    ended_at: float | None = None

    def as_run(self) -> Run:
        return Run(self.run_id, self.uid, self.spec, self.state, self.created_at, self.ended_at)


@dataclass(frozen=True, slots=True)
class GroupRow:
    state: GroupState
    desired: GroupState
    since: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class DriverRow:
    nonce: str
    reason: str
    spends_budget: bool
    claimed_at: float
    registered_at: float | None = None
    ended_at: float | None = None
    error: str | None = None
    log_path: str | None = None
    identity: DriverIdentity | None = None


@dataclass(frozen=True, slots=True)
class BeatRow:
    beat: int
    at: float
    ready: bool
    rss_bytes: int


class EventLog:
    """EVENT_LOG with the two indexes that its readers need, kept by every insert and delete."""

    def __init__(self) -> None:
        self.rows: dict[LogKey, LogRow] = {}
        self._on_their_way: dict[tuple[int, Port], dict[int, LogRow]] = {}
        self._of_inset: dict[tuple[int, str, str], dict[LogKey, LogRow]] = {}

    def insert(self, row: LogRow) -> None:
        if row.key in self.rows:
            raise LogInconsistent(f"the log refused a row: there is one of {row.key} already")
        self.rows[row.key] = row
        if row.is_on_its_way:
            self._on_their_way.setdefault(self._port(row), {})[row.body.event_id] = row
        if row.inset_id is not None and row.status is Status.UNDONE:
            self._of_inset.setdefault(self._inset(row), {})[row.key] = row

    def remove(self, row: LogRow) -> None:
        del self.rows[row.key]
        self._on_their_way.get(self._port(row), {}).pop(row.body.event_id, None)
        if row.inset_id is not None:
            self._of_inset.get(self._inset(row), {}).pop(row.key, None)

    def on_their_way(self, run_id: int, receiver: Port) -> dict[int, LogRow]:
        """event_id → undone, unassigned row of a receiver port."""
        return self._on_their_way.get((run_id, receiver), {})

    def undone_of(self, run_id: int, operator: str, inset_id: str) -> list[LogRow]:
        return list(self._of_inset.get((run_id, operator, inset_id), {}).values())

    @staticmethod
    def _port(row: LogRow) -> tuple[int, Port]:
        return row.body.run_id, Port(row.receiver, row.rec_port or "")

    @staticmethod
    def _inset(row: LogRow) -> tuple[int, str, str]:
        return row.body.run_id, row.receiver, row.inset_id or ""


class Tables:
    """Everything that the log holds. Use `transaction`, also to read: it is the lock."""

    def __init__(self) -> None:
        self.runs: dict[int, RunRow] = {}
        self.run_keys: dict[RunKey, int] = {}
        self.groups: dict[GroupKey, GroupRow] = {}
        self.fences: dict[GroupKey, FenceRow] = {}
        self.drivers: dict[tuple[GroupKey, int], DriverRow] = {}
        self.beats: dict[tuple[GroupKey, int], BeatRow] = {}
        self.events = EventLog()
        self.bodies: dict[BodyKey, tuple[bytes, bytes]] = {}
        self.reads: dict[tuple[int, str, str, int], tuple[ReadStatus, dict[str, Any]]] = {}
        self.states: dict[tuple[int, str, int], bytes] = {}
        self.lineage: dict[tuple[int, Port, int, str], None] = {}
        self.counters: dict[tuple[int, Port, str], PortProgress] = {}
        self.changed = threading.Condition()
        """Its lock is the lock of the log; notified after every commit."""
        self.commits = 0
        self._undo: list[Callable[[], None]] = []

    @staticmethod
    def now() -> float:
        return time.time()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self.changed:
            self._undo.clear()
            try:
                yield
            except BaseException:
                for undo in reversed(self._undo):
                    undo()
                raise
            if self._undo:
                self.commits += 1
                self.changed.notify_all()

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """Insert or replace a row."""
        if key in table:
            before = table[key]
            self._undo.append(lambda: table.__setitem__(key, before))
        else:
            self._undo.append(lambda: table.__delitem__(key))
        table[key] = value

    def add(self, table: dict[K, V], key: K, value: V) -> None:
        """Insert a row that must be new."""
        if key in table:
            raise LogInconsistent(f"the log refused a row: there is one of {key} already")
        self.put(table, key, value)

    def log(self, row: LogRow) -> None:
        """Insert a row of EVENT_LOG."""
        self.events.insert(row)
        self._undo.append(lambda: self.events.remove(row))

    def unlog(self, row: LogRow) -> None:
        self.events.remove(row)
        self._undo.append(lambda: self.events.insert(row))

    def relog(self, rows: Sequence[LogRow], **changes: Any) -> None:
        """Change rows of EVENT_LOG."""
        for row in rows:
            self.unlog(row)
            self.log(replace(row, **changes))
