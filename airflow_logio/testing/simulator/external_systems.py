"""Simulated external systems, each with exactly the promise that docs/design.md makes for its kind ("What is promised").

A system is one object that all drivers of a run share, including zombies. Every method is one atomic step of the system, and
an attempt to apply write actions takes several. A conditional system is a database: `WriteAttempt` is a transaction of it,
with other ones in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Any, ClassVar, Protocol

from airflow_logio.dataflow.writers.action_writers import BEGIN
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner, check_advanced, to_apply
from airflow_logio.protocol.writes import PendingWrite, WriterKey, check_gapless, unapplied

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

    def take(self, resource: Resource, mine: LockHolder, *, shared: bool = False) -> bool:
        """Lock a row until `release`. False if another client holds the lock."""
        holders = self._held.setdefault(resource, {})
        if any(not (shared and is_shared) for _, is_shared in self.others(resource, mine)):
            return False
        holders[mine] = shared
        return True

    def others(self, resource: Resource, mine: LockHolder) -> list[tuple[LockHolder, bool]]:
        """Who else holds the lock, and whether each shares it."""
        holders = self._held.get(resource)
        if not holders:
            return []
        return [(holder, is_shared) for holder, is_shared in holders.items() if holder is not mine and holder.is_open()]

    def end_others(self, resource: Resource, mine: LockHolder) -> None:
        """End the other sessions that hold this lock, after a client has waited long enough."""
        for holder, _ in self.others(resource, mine):
            holder.end()

    def end_all(self) -> None:
        """The server crashes: all sessions end."""
        for holder in [holder for holders in self._held.values() for holder in holders]:
            holder.end()

    def release(self, mine: LockHolder) -> None:
        for holders in self._held.values():
            holders.pop(mine, None)

    def clear(self) -> None:
        self._held.clear()


class WriteWatch(Protocol):
    """Checks what is written."""

    def before_write(self, key: WriterKey, writes: Sequence[PendingWrite]) -> None:
        """A driver is about to apply these writes."""

    def a_lower_token_writes_nothing(self, key: WriterKey, token: int) -> None:
        """An external system has accepted a conditional write with this token."""


class Client(Protocol):
    """A writer's thread, as the system sees it. No attempt may hold it: a thread that is joined is gone at once."""

    key: WriterKey
    kept: Any
    """What the system keeps for this client, as long as its epoch lasts."""

    @property
    def taken(self) -> Sequence[PendingWrite]: ...

    @property
    def watch(self) -> WriteWatch: ...

    @property
    def run_uid(self) -> str: ...

    @property
    def datasets(self) -> Any:
        """The datasets of its epoch; None where events are no datasets."""

    def token(self) -> int:
        """Its fencing token, as its driver knows it now."""

    def loaded(self) -> Sequence[PendingWrite]:
        """What it has taken, with the records."""

    def liveness(self) -> Callable[[], bool]:
        """A function that says whether this thread is alive, and holds neither the thread nor its driver."""


class Attempt(Protocol):
    """An attempt to apply what a client has taken, a few steps at a time."""

    def advance(self, steps: int) -> bool:
        """True once the system has applied everything. Raises what the writer would raise."""

    def break_off(self) -> bool:
        """The connection breaks. True if the client continues with this attempt, and with what it knows."""


@dataclass
class ExternalSystem:
    """The system behind one connection: what it has applied, in order, and the marker of each writer."""

    stages: ClassVar[bool] = False
    """It has tables that a crash of its server empties."""

    guarantee: Guarantee = Guarantee.CONDITIONAL
    applied: dict[WriterKey, list[AppliedWrite]] = field(default_factory=dict)
    markers: dict[tuple[str, WriterKey], MarkerRow] = field(default_factory=dict)
    """(run, writer) → marker, in a conditional system. Other systems have no markers, only what they have applied."""
    modes: dict[tuple[str, WriterKey], str] = field(default_factory=dict)
    """(run, writer) → what its first write action has said of rows of earlier runs; the later ones do not repeat it."""
    owners: dict[TableKey, Owner] = field(default_factory=dict)
    """The run that owns a table."""
    locks: Locks = field(default_factory=Locks)
    earlier: list[EarlierRun] = field(default_factory=list)
    """Earlier runs, whose drivers still write to the same tables."""
    reads: int = 0
    """How often it was read. Contents of `lookup` may depend on it."""

    def begin(self, client: Client) -> Attempt:
        """A client begins to apply what it has taken."""
        return _ATTEMPTS[self.guarantee](self, client)

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
        if change.inserted and change.inserted[0].header.get("action") == BEGIN:
            self.modes[run.run_uid, key] = _mode(change.inserted[0].header)
        if change.deleted:
            gone = {id(row) for row in change.deleted}
            for rows in (rows for writer, rows in self.applied.items() if table_of(writer) == table):
                rows[:] = [row for row in rows if id(row) not in gone]
        self.applied.setdefault(key, []).extend(change.inserted)
        self.markers[run.run_uid, key] = marker
        return 1

    def crash(self) -> bool:
        """The server crashes. False if nothing of it depends on that."""
        return False

    def commit_late(self) -> bool:
        """A transaction that has lost commits after all. False if there is none."""
        return False

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


# --- attempts ----------------------------------------------------------------------------------------------------------


PATIENCE = 8
"""How often a client waits for a lock before its holder's session is ended."""


class WritePhase(Enum):
    """Which step is next."""

    MARKER = auto()
    OWNER = auto()
    COMMIT = auto()
    DONE = auto()


def always() -> bool:
    return True


class WriteAttempt:
    """One attempt at a conditional system: a transaction of several steps, with other ones in between.

    The steps are those of `Warehouse.apply`: lock and read the marker; lock and read the owner, and take the table over if
    this is the run's first write action; insert, advance the marker and commit. As there, `protocol/external_rules.py`
    makes the decisions in between. If a client waits long enough for a lock, the holder's session is ended, like with
    `idle_in_transaction_session_timeout`, so a slow zombie does not block others forever.

    `writes` are a gapless group. `is_alive` tells whether the client of this attempt is still alive.
    """

    begins_again = True
    """By itself, when the system was unavailable."""

    def __init__(
        self,
        system: ExternalSystem,
        key: WriterKey,
        token: int,
        writes: Sequence[PendingWrite],
        *,
        run: Owner = THIS_RUN,
        is_alive: Callable[[], bool] = always,
    ) -> None:
        check_gapless(writes)
        self.key = key
        self.table = table_of(key)
        self.token = token
        self.wrote = False
        """Whether it has changed the table and the marker."""
        self._system = system
        self._run = run
        self._writes = writes
        self._is_alive = is_alive
        self._stage = WritePhase.MARKER
        self._pending: Sequence[PendingWrite] = ()
        self._deleted: Sequence[AppliedWrite] = ()
        self._before = MarkerRow()
        """The marker as it was read."""
        self._claimed: Owner | None = None
        """The owner that it makes of itself."""
        self._waited = 0
        if run is THIS_RUN:
            _meet_earlier_runs(system, key, writes[0])

    def advance(self, steps: int) -> bool:
        """Take at most so many steps; True once the system has applied everything, now or before.

        If the writes are refused, rolls back and raises `Fenced`, `WriteRefused` or `LogInconsistent`.
        """
        try:
            for _ in range(steps):
                if self._stage is WritePhase.DONE or not _STEPS[self._stage](self):
                    break
        except ExternalUnavailable:  # the next attempt reads the marker again
            self.end()
            if not self.begins_again:
                raise
        except LogioError:
            self.end()
            raise
        return self._stage is WritePhase.DONE

    def end(self) -> None:
        """Roll back, as its client has lost the connection, or the database has ended its session. It may begin again."""
        if self._stage is not WritePhase.DONE:
            self._release(WritePhase.MARKER)

    def is_open(self) -> bool:
        return self._stage is not WritePhase.DONE and self._is_alive()

    # --- its steps: each returns False if it has to wait --------------------------------------------------------------

    def _read_marker(self) -> bool:
        if not self._lock_marker():
            return False
        self._deleted, self._claimed = (), None  # of an attempt that was rolled back
        self._before = self._system.marker_row(self._run, self.key)
        self._pending = to_apply(*self.key, self.token, self._writes, self._before)
        if not self._pending:
            self._release(WritePhase.DONE)
            return True
        self._stage = WritePhase.OWNER if self._begins() or self.table in self._system.owners else WritePhase.COMMIT
        return True

    def _read_owner(self) -> bool:
        """An author's own conditional writer has no owner, so nothing that it writes begins a run."""
        begins = self._begins()
        if not (self._lock_to_begin() if begins else self._lock_owner()):
            return False
        owner = self._system.owners.get(self.table)
        contender = self._contender()
        if begins and contender.takes_over(owner):
            rows = self._system.rows(self.table)
            if contender.empties(is_filled=bool(rows)):
                self._deleted = tuple(rows)
            owner = self._claimed = contender.claimed
        contender.check_owner(owner)
        self._stage = WritePhase.COMMIT
        return True

    def _commit(self) -> bool:
        change = TableChange(self._inserted(), self._deleted, self._claimed)
        marker = MarkerRow(self._pending[-1].number, self.token)
        check_advanced(*self.key, self._system.commit(self._run, self.key, self._before, marker, change))
        self.wrote = True
        self._release(WritePhase.DONE)
        return True

    # --- inside -------------------------------------------------------------------------------------------------------

    def _inserted(self) -> list[AppliedWrite]:
        return [AppliedWrite(write.number, write.header, write.body) for write in self._pending]

    def _lock_marker(self) -> bool:
        return self._lock(("marker", self._run.run_uid, *self.key))

    def _lock_owner(self) -> bool:
        return self._lock(("owner", *self.table), shared=True)

    def _lock_to_begin(self) -> bool:
        return self._lock(("owner", *self.table))

    def _lock(self, resource: Resource, *, shared: bool = False) -> bool:
        locks = self._system.locks
        if locks.take(resource, self, shared=shared):
            self._waited = 0
            return True
        self._waited += 1
        if self._waited > PATIENCE:
            locks.end_others(resource, self)
        return False

    def _begins(self) -> bool:
        return self._pending[0].header.get("action") == BEGIN

    def _contender(self) -> Contender:
        operator, connection = self.key
        begun = self._system.modes.get((self._run.run_uid, self.key), EMPTIES)
        mode = _mode(self._pending[0].header) if self._begins() else begun
        return Contender(operator, connection, operator, self._run, mode)

    def _release(self, stage: WritePhase) -> None:
        self._system.locks.release(self)
        self._stage = stage
        self._pending, self._deleted, self._taken_over, self._waited = (), (), False, 0


_STEPS: dict[WritePhase, Callable[[WriteAttempt], bool]] = {
    WritePhase.MARKER: lambda attempt: attempt._read_marker(),
    WritePhase.OWNER: lambda attempt: attempt._read_owner(),
    WritePhase.COMMIT: lambda attempt: attempt._commit(),
}


EMPTIES = "replace"


def _mode(opening: Mapping[str, Any]) -> str:
    """The declared value for a table's writer; the scenarios' own writers empty their table."""
    return str(opening.get("mode", EMPTIES))


class Transaction:
    """An attempt at a conditional system: everything is one transaction."""

    def __init__(self, system: ExternalSystem, client: Client) -> None:
        self._watch = client.watch
        self._watch.before_write(client.key, client.taken)
        self._attempt = WriteAttempt(system, client.key, client.token(), client.loaded(), is_alive=client.liveness())

    def advance(self, steps: int) -> bool:
        if not self._attempt.advance(steps):
            return False
        if self._attempt.wrote:
            self._watch.a_lower_token_writes_nothing(self._attempt.key, self._attempt.token)
        return True

    def break_off(self) -> bool:
        """The transaction is rolled back."""
        self._attempt.end()
        return False


class Upserts:
    """An attempt at an idempotent system: one step, which may be taken again."""

    def __init__(self, system: ExternalSystem, client: Client) -> None:
        self._system, self._watch, self._key, self._taken = system, client.watch, client.key, client.taken
        self._writes = client.loaded()

    def advance(self, _steps: int) -> bool:
        self._watch.before_write(self._key, self._taken)
        self._system.upsert(self._key, self._writes)
        return True

    def break_off(self) -> bool:
        return False


class CheckedWrites:
    """An attempt at a checkable system: it is asked what it has applied in one step, and written to in another."""

    def __init__(self, system: ExternalSystem, client: Client) -> None:
        self._system, self._watch, self._key, self._taken = system, client.watch, client.key, client.taken
        self._todo: Sequence[PendingWrite] = ()
        """What is still to be applied, according to the system's answer."""

    def advance(self, _steps: int) -> bool:
        if not self._todo:
            self._todo = unapplied(self._taken, self._system.marker(self._key))
            return not self._todo
        self._watch.before_write(self._key, self._todo)
        self._system.write(self._key, self._todo)
        return True

    def break_off(self) -> bool:
        """It knows the answer that it had."""
        return True


_ATTEMPTS: Mapping[Guarantee, Callable[[ExternalSystem, Client], Attempt]] = {
    Guarantee.CONDITIONAL: Transaction,
    Guarantee.IDEMPOTENT: Upserts,
    Guarantee.CHECKABLE: CheckedWrites,
}


# --- drivers of earlier runs ------------------------------------------------------------------------------------------


class EarlierRun:
    """A driver of an earlier run at the table of a writer. It is slow, and was considered dead long ago.

    If it has `begun`, it keeps inserting; otherwise it was stopped before the first write action of its run.
    """

    def __init__(
        self, system: ExternalSystem, key: WriterKey, run: Owner, opening: PendingWrite, *, begun: bool
    ) -> None:
        self.key = key
        self._system = system
        self._run = run
        self._opening = opening
        self._next = 1
        self._attempt: WriteAttempt | None = None
        if begun:
            system.owners[table_of(key)] = run
            system.applied.setdefault(key, []).append(AppliedWrite(2, {"run": run.run_uid}, opening.body))
            system.markers[run.run_uid, key] = MarkerRow(2, 1)
            self._next = 3

    def advance(self, steps: int) -> None:
        """Take a few steps of its attempt, or of the next one, since a person retries refused writes."""
        if self._attempt is None:
            self._attempt = WriteAttempt(self._system, self.key, 1, [self._write()], run=self._run)
        try:
            if self._attempt.advance(steps):
                self._attempt = None
                self._next += 1
        except LogioError:
            self._attempt = None

    def _write(self) -> PendingWrite:
        header = self._opening.header if self._next == 1 else {"run": self._run.run_uid}
        return PendingWrite(*self.key, self._next, header, 0, self._opening.body)


def _meet_earlier_runs(system: ExternalSystem, key: WriterKey, first: PendingWrite) -> None:
    """Earlier runs have used a table that this run is to empty, and their drivers are still there."""
    met = (
        first.header.get("action") != BEGIN
        or _mode(first.header) != EMPTIES
        or any(table_of(one.key) == table_of(key) for one in system.earlier)
    )
    if not met:
        system.earlier.append(EarlierRun(system, key, Owner("the run before last", 1.0), first, begun=True))
        system.earlier.append(EarlierRun(system, key, Owner("the last run", 2.0), first, begun=False))
