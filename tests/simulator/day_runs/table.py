"""A table in which runs own days: its transactions, statement by statement, decided by the product's rules.

The statements are those of `systems/table_days.py` and `systems/closing_transaction.py`, in their order. What a transaction
changes is seen by others when it commits. A client that waits long for a lock has the session ended that holds it, as a
server does with one that is idle in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import TypeVar

from airflow_logio.errors import ExternalUnavailable, LogInconsistent
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner, group_to_apply, to_apply
from airflow_logio.protocol.scope_rules import DayRun, ScopeContender, ScopeRow
from airflow_logio.protocol.writes import HeldGroup, PendingWrite
from airflow_logio.testing.simulator.external_systems import PATIENCE, Locks
from airflow_logio.testing.simulator.stepwise import Paused
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.day_runs.folder import BEFORE, WRITER, rows_before
from tests.simulator.day_runs.runs import PIPELINE, Driver, Run

T = TypeVar("T")
TABLE = "top"
FOR_EVER = 2**62
"""The token of a marker that no driver of its run passes."""
CIRCLE = "no_transactions_wait_for_each_other"
LOST = 0.1
"""How often the answer to a commit does not come."""


class TableWatch:
    """Sees each transaction that commits."""

    def claimed(self, run: Run) -> None: ...

    def closed(self, run: Run, driver: Driver) -> None: ...

    def applied(self, driver: Driver, numbers: Sequence[int]) -> None:
        """Write actions of a run that none closes."""


class Session:
    """A transaction of a driver."""

    def __init__(self, table: TablePlace, driver: Driver) -> None:
        self._table = table
        self._driver = driver
        self._is_open = True
        self._waited = 0
        self._waits_for: tuple[str, ...] = ()
        self.changes: list[Callable[[], None]] = []

    def is_open(self) -> bool:
        return self._is_open and self._driver.is_alive

    def end(self) -> None:
        """Roll back."""
        self._is_open = False
        self._table.locks.release(self)

    def lock(self, *resource: str, shared: bool = False) -> None:
        """Waits: raises `Paused` then."""
        self.check()
        if self._table.locks.take(resource, self, shared=shared):
            self._waited, self._waits_for = 0, ()
            return
        self._waited, self._waits_for = self._waited + 1, resource
        if self._waits_behind(self, set()):
            raise Violation(CIRCLE, f"{self._driver.run.writer} waits for {resource}, and that for it")
        if self._waited > PATIENCE:
            self._table.locks.end_others(resource, self)
        raise Paused

    def _waits_behind(self, one: Session, seen: set[Session]) -> bool:
        """Whether one that this session waits for, or that waits in turn, waits for `one`."""
        for holder, _ in self._table.locks.others(self._waits_for, self) if self._waits_for else ():
            if not isinstance(holder, Session) or holder in seen:
                continue
            if holder is one or holder._waits_behind(one, seen | {holder}):
                return True
        return False

    def check(self) -> None:
        if not self._is_open:
            raise ExternalUnavailable("the server has ended the session")

    def commit(self) -> None:
        self.check()
        for change in self.changes:
            change()
        self.end()
        if self._table.chance.random() < LOST:
            raise ExternalUnavailable("the answer to a commit is lost")


class TablePlace:
    """The table with its days, and the rows that say who has claimed and closed them."""

    def __init__(self, chance: Random, days: Iterable[str]) -> None:
        self.now = 0
        self.chance = chance
        self.rows: list[tuple[str, str, int]] = [(day, BEFORE, row) for day in days for row in rows_before(day)]
        """Day, run, row."""
        self.scopes: dict[str, ScopeRow] = {}
        self.owner: Owner | None = None
        self.markers: dict[str, MarkerRow] = {}
        self.given_up: dict[str, Owner] = {}
        """Run → the one in its place."""
        self.locks = Locks()
        self.watch = TableWatch()

    def day(self, day: str) -> list[tuple[str, int]]:
        return [(run, row) for one, run, row in self.rows if one == day]

    def end(self, driver: Driver) -> None:
        """The server finds that its client is gone."""
        if isinstance(driver.kept, Session):
            driver.kept.end()

    # --- the opening --------------------------------------------------------------------------------------------------

    def open(self, driver: Driver) -> None:
        session = self._begin(driver)
        before = self._marker(driver, session)
        opening = PendingWrite(WRITER, "warehouse", 1, {}, 0, b"")
        if not to_apply(WRITER, "warehouse", driver.token, [opening], before):
            driver.ask(session.end)
            return
        self._begin_day(driver, session)
        driver.ask(session.commit)

    def _begin_day(self, driver: Driver, session: Session) -> ScopeRow | None:
        """The scope as it was found. It is locked, and this transaction claims it."""
        run = driver.run
        self._give_up(driver, session)
        self._own(driver, session)
        self._lock_scope(driver, session)
        row = self._read(driver, session, lambda: self.scopes.get(run.day))
        self._scope(run).check_claim(row)
        session.changes.append(lambda: self._claim(run, driver.token))
        return row

    def _give_up(self, driver: Driver, session: Session) -> None:
        """Fence the drivers of runs that were given up for this one."""
        for uid in driver.run.given_up:
            self._lock(driver, session, "marker", uid)
            session.changes.append(partial(self._fence, uid))

    def _own(self, driver: Driver, session: Session) -> None:
        contender = self._contender(driver.run)
        if self._read(driver, session, lambda: self.owner) == contender.claimed:
            self._lock(driver, session, "owner", shared=True)
            return
        self._lock(driver, session, "owner")
        if contender.takes_over(self._read(driver, session, lambda: self.owner)):
            session.changes.append(lambda: setattr(self, "owner", contender.claimed))

    def _fence(self, uid: str) -> None:
        for writer in (uid, f"{uid}[1]"):
            if writer in self.markers:
                self.markers[writer] = MarkerRow(self.markers[writer].number, FOR_EVER)

    def _claim(self, run: Run, token: int) -> None:
        live = self.scopes[run.day][-3:] if run.day in self.scopes else (None, None, None)
        self.scopes[run.day] = ScopeRow(PIPELINE, run.log, run.ordinal, run.uid, *live)
        self.markers[run.writer] = MarkerRow(1, token)
        self.given_up |= {uid: Owner(run.uid, float(run.ordinal)) for uid in run.given_up}
        self.watch.claimed(run)

    # --- the closing --------------------------------------------------------------------------------------------------

    def close(self, driver: Driver) -> None:
        run, session = driver.run, self._begin(driver)
        group = HeldGroup(2, run.last, len(run.rows))
        before = self._marker(driver, session)
        if not group_to_apply(WRITER, "warehouse", driver.token, group, before):
            driver.ask(session.end)
            return
        self._lock(driver, session, "owner", shared=True)
        contender, scope = self._contender(run), self._scope(run)
        contender.check_owner(self._read(driver, session, lambda: self.owner))
        contender.check_not_given_up(self._read(driver, session, lambda: self.given_up.get(run.uid)))
        self._lock_scope(driver, session)
        scope.check_close(self._read(driver, session, lambda: self.scopes.get(run.day)))
        scope.check_records(held=group.records, is_filled=self._read(driver, session, lambda: bool(self.day(run.day))))
        session.changes.append(lambda: self._delete(run.day))
        inserted = 0
        for _, files in driver.pages():
            rows = [row for file in files for row in file]
            inserted += len(rows)
            session.changes.append(partial(self._insert, run, rows))
        if inserted != group.records:
            raise LogInconsistent(f"{inserted} of {group.records}")
        session.changes.append(lambda: self._close(driver))
        driver.ask(session.commit)

    def _delete(self, day: str) -> None:
        self.rows = [row for row in self.rows if row[0] != day]

    def _insert(self, run: Run, rows: Iterable[int]) -> None:
        self.rows = self.rows + [(run.day, run.uid, row) for row in rows]

    def _close(self, driver: Driver) -> None:
        run = driver.run
        row = self.scopes[run.day]
        self.scopes[run.day] = row._replace(live_ordinal=run.ordinal, live_run=run.uid, live_write=run.last)
        self.markers[run.writer] = MarkerRow(run.last, driver.token)
        self.watch.closed(run, driver)

    def fill(self, driver: Driver, first: int, last: int) -> None:
        """Its runs close their days."""
        raise NotImplementedError

    # --- both ---------------------------------------------------------------------------------------------------------

    def _begin(self, driver: Driver) -> Session:
        session = driver.ask(lambda: self._connect(driver))
        session.changes = []  # what was asked before is asked again, and answered as it was
        return session

    def _connect(self, driver: Driver) -> Session:
        self.end(driver)
        driver.kept = session = Session(self, driver)
        return session

    def _marker(self, driver: Driver, session: Session) -> MarkerRow:
        self._lock(driver, session, "marker", driver.run.writer)
        return self._read(driver, session, lambda: self.markers.get(driver.run.writer, MarkerRow()))

    def _lock(self, driver: Driver, session: Session, *resource: str, shared: bool = False) -> None:
        driver.ask(lambda: session.lock(*resource, shared=shared))

    def _read(self, driver: Driver, session: Session, read: Callable[[], T]) -> T:
        """A statement that changes nothing."""

        def asks() -> T:
            session.check()
            return read()

        return driver.ask(asks)

    def _lock_scope(self, driver: Driver, session: Session, *, shared: bool = False) -> None:
        self._lock(driver, session, "scope", driver.run.day, shared=shared)

    def _contender(self, run: Run) -> Contender:
        return Contender(
            TABLE, "warehouse", WRITER, Owner(run.uid, float(run.ordinal)), "overwrite", run.given_up, "day"
        )

    def _scope(self, run: Run) -> ScopeContender:
        mine = DayRun(PIPELINE, run.log, run.ordinal, run.uid)
        allowed = (run.takes_over, run.may_be_empty)
        return ScopeContender(TABLE, "warehouse", run.scope, mine, *allowed, fills_at_once=run.fills)
