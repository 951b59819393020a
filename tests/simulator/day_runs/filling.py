"""A table in which runs fill their days at once (``switch="at once"``), beside runs that close them.

The statements are those of `systems/table_transaction.py` and `systems/table_days.py`, in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from airflow_logio.protocol.external_rules import MarkerRow, to_apply
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.protocol.writes import PendingWrite
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.day_runs.folder import WRITER
from tests.simulator.day_runs.judges import FILLS, GETS, LINES, OLDER, ONCE, TOKEN, WHOLE, SeenTable, TableJudge
from tests.simulator.day_runs.runs import Driver, End, Rows, Run
from tests.simulator.day_runs.table import Session, TablePlace


def writes(first: int, last: int) -> Sequence[PendingWrite]:
    """Write actions as the log has them, without their records."""
    return [PendingWrite(WRITER, "warehouse", number, {}, 0, b"") for number in range(first, last + 1)]


class FillingTable(TablePlace):
    """One transaction for each group of write actions of a run that fills its day."""

    def fill(self, driver: Driver, first: int, last: int) -> None:
        session = self._begin(driver)
        before = self._marker(driver, session)
        pending = to_apply(WRITER, "warehouse", driver.token, writes(first, last), before)
        if not pending:
            driver.ask(session.end)
            return
        if pending[0].number == FIRST_EVENT_ID:
            self._begin_to_fill(driver, session)
        else:
            self._lock(driver, session, "owner", shared=True)
            self._contender(driver.run).check_owner(self._read(driver, session, lambda: self.owner))
        given_up = self._read(driver, session, lambda: self.given_up.get(driver.run.uid))
        self._contender(driver.run).check_not_given_up(given_up)
        if pending[0].number != FIRST_EVENT_ID:
            self._lock_scope(driver, session, shared=True)
            self._scope(driver.run).check_fill(self._read(driver, session, lambda: self.scopes.get(driver.run.day)))
        session.changes.append(partial(self._fill, driver, [write.number for write in pending]))
        driver.ask(session.commit)

    def _begin_to_fill(self, driver: Driver, session: Session) -> None:
        run, row = driver.run, self._begin_day(driver, session)
        has_begun = self._read(driver, session, lambda: self._has_begun_elsewhere(run))
        if self._scope(run).clears(row, has_begun=has_begun):
            session.changes.append(partial(self._clear, run))

    def _has_begun_elsewhere(self, run: Run) -> bool:
        others = {run.uid, f"{run.uid}[1]"} - {run.writer}
        return any(self.markers.get(writer, MarkerRow()).number for writer in others)

    def _clear(self, run: Run) -> None:
        self._delete(run.day)
        row = self.scopes[run.day]
        self.scopes[run.day] = row._replace(live_ordinal=run.ordinal, live_run=run.uid, live_write=FIRST_EVENT_ID)

    def _fill(self, driver: Driver, numbers: Sequence[int]) -> None:
        run = driver.run
        self._insert(run, rows_in(run, numbers))
        self.markers[run.writer] = MarkerRow(numbers[-1], driver.token)
        self.watch.applied(driver, numbers)


def rows_in(run: Run, numbers: Iterable[int]) -> Rows:
    """The rows of write actions, in their order. The first one has none."""
    actions = (run.actions[number - 2] for number in numbers if number != FIRST_EVENT_ID)
    return tuple(row for action in actions for file in action for row in file)


class Applications:
    """Which write actions each writer has applied, and with which token."""

    def __init__(self) -> None:
        self._done: dict[str, list[int]] = {}
        self._tokens = Counter[str]()

    def __getitem__(self, writer: str) -> Sequence[int]:
        return self._done.get(writer, ())

    def add(self, driver: Driver, numbers: Sequence[int]) -> None:
        """Raises `Violation` for what was applied, and for a driver that was replaced."""
        writer = driver.run.writer
        done = self._done.setdefault(writer, [])
        if twice := sorted(set(done).intersection(numbers)):
            raise Violation(ONCE, f"{writer} applies {twice} a second time")
        if driver.token < self._tokens[writer]:
            raise Violation(TOKEN, f"token {driver.token} of {writer} has applied {numbers}")
        done += numbers
        self._tokens[writer] = driver.token

    def check_all(self, driver: Driver) -> None:
        """Raises `Violation` unless all that the driver had to write was applied."""
        wanted = list(range(FIRST_EVENT_ID, driver.run.last + 1))
        if sorted(self[driver.run.writer]) != wanted:
            raise Violation(GETS, f"{driver.run.writer} is done, and has applied {self[driver.run.writer]} of {wanted}")


class FillingJudge(TableJudge):
    """A run that fills its day has exactly what it has applied there, from its first write action until another run has the
    day."""

    def __init__(self, place: SeenTable, days: Iterable[str]) -> None:
        super().__init__(place, days)
        self._applied = Applications()
        self._parts: dict[str, list[Run]] = {}
        """Run → a part for each of its writers."""

    def begun(self, run: Run) -> None:
        super().begun(run)
        self._parts.setdefault(run.uid, []).append(run)

    def claimed(self, run: Run) -> None:
        last = self._last(run.day)
        if last is not None and last.uid == run.uid:
            return  # by another writer of it
        if run.uid in self.days[run.day].claims:
            invariant = OLDER if last is not None and last.log == run.log else LINES
            raise Violation(invariant, f"run {run.uid} claims {run.day} again, which {last and last.uid} has by now")
        super().claimed(run)
        if run.fills:
            self._live[run.day] = run.uid

    def applied(self, driver: Driver, numbers: Sequence[int]) -> None:
        run, last = driver.run, self._last(driver.run.day)
        self._applied.add(driver, numbers)
        if last is None or last.uid != run.uid:
            raise Violation(OLDER, f"run {run.uid} fills {run.day}, which {last and last.uid} has claimed last")

    def ended(self, driver: Driver) -> None:
        if driver.end is End.DONE and driver.run.fills:
            self._applied.check_all(driver)

    def rows_of(self, day: str) -> Rows:
        live = self._live.get(day, "")
        if live in self.runs and self.runs[live].fills:
            return tuple(row for part in self._parts[live] for row in rows_in(part, self._applied[part.writer]))
        return super().rows_of(day)

    def _rule(self, day: str) -> str:
        live = self._live.get(day, "")
        return FILLS if live in self.runs and self.runs[live].fills else WHOLE
