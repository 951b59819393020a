"""A table in which runs own days: its transactions, statement by statement, decided by the product's rules.

The statements are those of `systems/table_days.py` and `systems/closing_transaction.py`, in their order. What a transaction
changes is seen by others when it commits. A client that waits long for a lock has the session ended that holds it, as a
server does with one that is idle in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

from airflow_logio.errors import ExternalUnavailable, LogInconsistent
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner, group_to_apply, to_apply
from airflow_logio.protocol.scope_rules import DayRun, ScopeContender, ScopeRow
from airflow_logio.protocol.writes import HeldGroup, PendingWrite
from airflow_logio.testing.simulator.external_systems import PATIENCE, Locks
from airflow_logio.testing.simulator.stepwise import Paused
from tests.simulator.day_runs.folder import BEFORE, WRITER, rows_before
from tests.simulator.day_runs.runs import PIPELINE, Driver, Run

TABLE = "top"
FOR_EVER = 2**62
"""The token of a marker that no driver of its run passes."""
LOST = 0.1
"""How often the answer to a commit does not come."""


class TableWatch:
    """Sees each transaction that commits."""

    def claimed(self, run: Run) -> None: ...

    def closed(self, run: Run, driver: Driver) -> None: ...


class Session:
    """A transaction of a driver."""

    def __init__(self, table: TablePlace, driver: Driver) -> None:
        self._table = table
        self._driver = driver
        self._is_open = True
        self._waited = 0
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
            self._waited = 0
            return
        self._waited += 1
        if self._waited > PATIENCE:
            self._table.locks.end_others(resource, self)
        raise Paused

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
        run, session = driver.run, self._begin(driver)
        before = self._marker(driver, session)
        opening = PendingWrite(WRITER, "warehouse", 1, {}, 0, b"")
        if not to_apply(WRITER, "warehouse", driver.token, [opening], before):
            driver.ask(session.end)
            return
        for uid in run.given_up:
            self._lock(driver, session, "marker", uid)
            session.changes.append(partial(self._fence, uid))
        self._own(driver, session)
        self._lock_scope(driver, session)
        row = driver.ask(lambda: self.scopes.get(run.day))
        self._scope(run).check_claim(row)
        session.changes.append(lambda: self._claim(run, driver.token))
        driver.ask(session.commit)

    def _own(self, driver: Driver, session: Session) -> None:
        contender = self._contender(driver.run)
        if driver.ask(lambda: self.owner) == contender.claimed:
            self._lock(driver, session, "owner", shared=True)
            return
        self._lock(driver, session, "owner")
        if contender.takes_over(driver.ask(lambda: self.owner)):
            session.changes.append(lambda: setattr(self, "owner", contender.claimed))

    def _fence(self, uid: str) -> None:
        if uid in self.markers:
            self.markers[uid] = MarkerRow(self.markers[uid].number, FOR_EVER)

    def _claim(self, run: Run, token: int) -> None:
        live = self.scopes[run.day][-3:] if run.day in self.scopes else (None, None, None)
        self.scopes[run.day] = ScopeRow(PIPELINE, run.log, run.ordinal, run.uid, *live)
        self.markers[run.uid] = MarkerRow(1, token)
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
        contender.check_owner(driver.ask(lambda: self.owner))
        contender.check_not_given_up(driver.ask(lambda: self.given_up.get(run.uid)))
        self._lock_scope(driver, session)
        scope.check_close(driver.ask(lambda: self.scopes.get(run.day)))
        scope.check_records(held=group.records, is_filled=driver.ask(lambda: bool(self.day(run.day))))
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
        self.markers[run.uid] = MarkerRow(run.last, driver.token)
        self.watch.closed(run, driver)

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
        self._lock(driver, session, "marker", driver.run.uid)
        return driver.ask(lambda: self.markers.get(driver.run.uid, MarkerRow()))

    def _lock(self, driver: Driver, session: Session, *resource: str, shared: bool = False) -> None:
        driver.ask(lambda: session.lock(*resource, shared=shared))

    def _lock_scope(self, driver: Driver, session: Session) -> None:
        self._lock(driver, session, "scope", driver.run.day)

    def _contender(self, run: Run) -> Contender:
        return Contender(
            TABLE, "warehouse", WRITER, Owner(run.uid, float(run.ordinal)), "overwrite", run.given_up, "day"
        )

    def _scope(self, run: Run) -> ScopeContender:
        mine = DayRun(PIPELINE, run.log, run.ordinal, run.uid)
        return ScopeContender(TABLE, "warehouse", run.scope, mine, run.takes_over, run.may_be_empty)
