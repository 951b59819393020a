"""Simulated external systems, each with exactly the promise that docs/design.md makes for its kind ("What is promised").

A system is one object that all drivers of a run share, including zombies. Every method is one atomic step of the system.
A conditional system is a database: a write is a transaction of several steps (`write_attempts.py`), and rows have locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from airflow_logio.protocol.external_rules import MarkerRow, Owner
from airflow_logio.protocol.writes import PendingWrite, WriterKey

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.write_attempts import EarlierRun

THIS_RUN = Owner("this run", 3.0)
"""The simulated run. Earlier runs were started before it."""
NO_MARKER = MarkerRow()


TableKey = tuple[str, str]
"""(operator as its author names it, connection): the slots of a replicated writer share a table."""


def table_of(writer: WriterKey) -> TableKey:
    operator, connection = writer
    return operator.partition("[")[0], connection


class Guarantee(StrEnum):
    """What an external system can do about a write action that may have been applied already."""

    CONDITIONAL = "conditional"
    """Applies an action and its marker in one step. Refuses actions that the marker has passed, and lower tokens."""
    CHECKABLE = "checkable"
    """Can say which action it applied last. The answer and a later write are two steps."""
    IDEMPOTENT = "idempotent"
    """Keyed: applying an action twice has the effect of applying it once."""


@dataclass(frozen=True, slots=True)
class AppliedWrite:
    """A write action as the external system received it."""

    number: int
    header: Mapping[str, Any]
    body: bytes


@dataclass(frozen=True, slots=True)
class TableChange:
    """Changes of a transaction to a table. Nothing else sees them before it commits."""

    inserted: Sequence[AppliedWrite]
    deleted: Sequence[AppliedWrite] = ()
    owner: Owner | None = None
    """The owner from now on; None keeps the present one."""


class LockHolder(Protocol):
    """A holder of locks."""

    def is_open(self) -> bool:
        """Whether its client is alive, and it has neither committed nor rolled back."""

    def end(self) -> None:
        """The database ends its session and rolls it back."""


Resource = tuple[str, ...]


class Locks:
    """Locks of rows. A client that died inside a transaction holds none."""

    def __init__(self) -> None:
        self._held: dict[Resource, dict[LockHolder, bool]] = {}

    def take(self, resource: Resource, who: LockHolder, *, shared: bool = False) -> bool:
        """Lock a row until `release`. False if another client holds the lock."""
        holders = self._held.setdefault(resource, {})
        if any(not (shared and is_shared) for _, is_shared in self._others(resource, who)):
            return False
        holders[who] = shared
        return True

    def _others(self, resource: Resource, who: LockHolder) -> list[tuple[LockHolder, bool]]:
        holders = self._held.get(resource)
        if not holders:
            return []
        return [(holder, is_shared) for holder, is_shared in holders.items() if holder is not who and holder.is_open()]

    def end_others(self, resource: Resource, who: LockHolder) -> None:
        """End the other sessions that hold this lock, after a client has waited long enough."""
        for holder, _ in self._others(resource, who):
            holder.end()

    def end_all(self) -> None:
        """The server crashes: all sessions end."""
        for holder in [holder for holders in self._held.values() for holder in holders]:
            holder.end()

    def release(self, who: LockHolder) -> None:
        for holders in self._held.values():
            holders.pop(who, None)

    def clear(self) -> None:
        self._held.clear()


@dataclass
class ExternalSystem:
    """The system behind one connection: what it has applied, in order, and the marker of each writer."""

    guarantee: Guarantee = Guarantee.CONDITIONAL
    applied: dict[WriterKey, list[AppliedWrite]] = field(default_factory=dict)
    markers: dict[tuple[str, WriterKey], MarkerRow] = field(default_factory=dict)
    """(run, writer) → marker, in a conditional system. Other systems have no markers, only what they have applied."""
    owners: dict[TableKey, Owner] = field(default_factory=dict)
    """The run that owns a table."""
    locks: Locks = field(default_factory=Locks)
    earlier: list[EarlierRun] = field(default_factory=list)
    """Earlier runs, whose drivers still write to the same tables."""
    reads: int = 0
    """How often it was read. Contents of `lookup` may depend on it."""

    def marker(self, key: WriterKey) -> int:
        """Number of the last write action that was applied; 0 if none was."""
        if self.guarantee is Guarantee.CONDITIONAL:
            return self.marker_row(THIS_RUN, key).number
        done = self.applied.get(key)
        return done[-1].number if done else 0

    # --- of a conditional system --------------------------------------------------------------------------------------

    def marker_row(self, run: Owner, key: WriterKey) -> MarkerRow:
        return self.markers.get((run.run_uid, key), NO_MARKER)

    def rows(self, table: TableKey) -> list[AppliedWrite]:
        """The committed rows of a table, whichever slot has written them."""
        return [row for key, rows in self.applied.items() if table_of(key) == table for row in rows]

    def commit(self, run: Owner, key: WriterKey, before: MarkerRow, marker: MarkerRow, change: TableChange) -> int:
        """Commit one transaction: apply its deletions and insertions, and advance the marker, if it is still as `before`.

        Returns how many rows of markers it has changed; with 0, nothing else was changed.
        """
        if self.marker_row(run, key) != before:
            return 0
        table = table_of(key)
        if change.owner is not None:
            self.owners[table] = change.owner
        if change.deleted:
            gone = {id(row) for row in change.deleted}
            for rows in (rows for writer, rows in self.applied.items() if table_of(writer) == table):
                rows[:] = [row for row in rows if id(row) not in gone]
        self.applied.setdefault(key, []).extend(change.inserted)
        self.markers[run.run_uid, key] = marker
        return 1

    def conclude(self) -> None:
        """The run has ended. Raises `Violation` if something is left that should not be there."""

    def close(self) -> None:
        """Drop all references to it."""
        self.locks.clear()
        self.earlier.clear()

    # --- of the other ones --------------------------------------------------------------------------------------------

    def write(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        """Write unconditionally. For a checkable system, after its `marker` was read. Applies each action, again or not."""
        self._append(key, writes)

    def upsert(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        """Write idempotently: an action replaces what it wrote before under its key."""
        held = {action.number: index for index, action in enumerate(self.applied.get(key, ()))}
        for write in writes:
            if write.number in held:
                self.applied[key][held[write.number]] = AppliedWrite(write.number, write.header, write.body)
            else:
                self._append(key, [write])

    def _append(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        self.applied.setdefault(key, []).extend(
            AppliedWrite(write.number, write.header, write.body) for write in writes
        )
