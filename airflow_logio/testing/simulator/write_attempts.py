"""One attempt at a conditional external system: a transaction of several steps, with other ones in between.

The steps are those of `Warehouse.apply`: lock and read the marker; lock and read the owner, and take the table over if
this is the run's first write action; insert, advance the marker and commit. As there, `protocol/external_rules.py` makes
the decisions in between. If a client waits long enough for a lock, the holder's session is ended, like with
`idle_in_transaction_session_timeout`, so a slow zombie does not block others forever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto

from airflow_logio.dataflow.writers.action_writers import BEGIN
from airflow_logio.errors import ExternalUnavailable, LogioError
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner, check_advanced, to_apply
from airflow_logio.protocol.writes import PendingWrite, WriterKey, check_gapless
from airflow_logio.testing.simulator.external_systems import (
    THIS_RUN,
    AppliedWrite,
    ExternalSystem,
    Resource,
    TableChange,
    table_of,
)

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
    """`writes` are a gapless group. `is_alive` tells whether the client of this attempt is still alive."""

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
        return Contender(operator, connection, operator, self._run, _mode(self._pending[0]))

    def _release(self, stage: WritePhase) -> None:
        self._system.locks.release(self)
        self._stage = stage
        self._pending, self._deleted, self._taken_over, self._waited = (), (), False, 0


_STEPS: dict[WritePhase, Callable[[WriteAttempt], bool]] = {
    WritePhase.MARKER: WriteAttempt._read_marker,
    WritePhase.OWNER: WriteAttempt._read_owner,
    WritePhase.COMMIT: WriteAttempt._commit,
}


def _mode(opening: PendingWrite) -> str:
    """The declared value for a table's writer; the scenarios' own writers empty their table."""
    return str(opening.header.get("mode", "replace"))


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
        or _mode(first) != "replace"
        or any(table_of(one.key) == table_of(key) for one in system.earlier)
    )
    if not met:
        system.earlier.append(EarlierRun(system, key, Owner("the run before last", 1.0), first, begun=True))
        system.earlier.append(EarlierRun(system, key, Owner("the last run", 2.0), first, begun=False))
