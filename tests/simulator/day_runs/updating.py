"""A table whose rows are updated by their keys (``mode="upsert"``): the greatest version of each wins, or the last event.

The statements are those of `systems/table_transaction.py` and `systems/databases/table_upserts.py`, in their order. One that
puts a row there waits for others that have put one of its key, and compares it with what they have left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from airflow_logio.errors import WriteRefused
from airflow_logio.protocol.external_rules import Contender, MarkerRow, Owner, to_apply
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.day_runs.filling import Applications, rows_in, writes
from tests.simulator.day_runs.folder import BEFORE, WRITER
from tests.simulator.day_runs.judges import GETS, OLDER, Judge
from tests.simulator.day_runs.runs import Driver, End, Run
from tests.simulator.day_runs.table import TABLE, Session, TablePlace, TableWatch

GREATEST = "the_greatest_version_of_each_key_is_there"
LAST = "the_last_event_of_each_key_is_there"
UNLIKE = "unlike_rows_of_one_version_are_refused"
TWICE = "a_key_that_an_event_has_twice_is_refused"
GIVEN_UP = "a_run_that_was_given_up_writes_no_more"
REASON = "what_is_exact_is_not_refused"
KEYS = range(1, 6)


class Keyed(NamedTuple):
    """A row."""

    key: int
    version: int
    value: str


def rows_there() -> Mapping[int, Keyed]:
    """What the table has before any run, by key."""
    return {key: Keyed(key, 0, BEFORE) for key in KEYS if key % 2}


def is_newer(row: Keyed, there: Keyed) -> bool:
    """Whether it takes the place of what is there."""
    return row.version > there.version


def is_left(row: Keyed, there: Keyed) -> bool:
    """Whether what is there at the end is the row, or newer."""
    return there.version > row.version or there == row


def taken_in_order(keys: Iterable[int]) -> list[int]:
    """In which order rows are locked."""
    return sorted(keys)


@dataclass
class Change:
    """What a transaction does to the table."""

    owner: Owner | None = None
    """The owner, as this transaction sees it."""
    empties: bool = False
    rows: dict[int, Keyed] = field(default_factory=dict)


class UpdatingTable(TablePlace):
    """With versions, or without."""

    def __init__(self, chance: Random, by_version: bool) -> None:
        super().__init__(chance, ())
        self.by_version = by_version
        self.cells = dict(rows_there())
        self.joined: Owner | None = None
        """The youngest run that has begun to write beside others."""

    def fill(self, driver: Driver, first: int, last: int) -> None:
        run, session = driver.run, self._begin(driver)
        before = self._marker(driver, session)
        pending = to_apply(WRITER, "warehouse", driver.token, writes(first, last), before)
        if not pending:
            driver.ask(session.end)
            return
        change = Change()
        if pending[0].number == FIRST_EVENT_ID:
            self._begin_to_update(driver, session, change)
        else:
            self._lock(driver, session, "owner", shared=True)
            change.owner = self._read(driver, session, lambda: self.owner)
        self._contender(run).check_owner(change.owner)
        self._contender(run).check_not_given_up(self._read(driver, session, lambda: self.given_up.get(run.uid)))
        numbers = [write.number for write in pending]
        for group in self._groups(numbers):
            self._put(driver, session, change, rows_in(run, group))
        session.changes.append(lambda: self._update(driver, numbers, change))
        driver.ask(session.commit)

    def _begin_to_update(self, driver: Driver, session: Session, change: Change) -> None:
        run, contender = driver.run, self._contender(driver.run)
        self._give_up(driver, session)
        self._lock(driver, session, "owner")
        change.owner = self._read(driver, session, lambda: self.owner)
        youngest = self._read(driver, session, lambda: self.joined)
        if contender.takes_over(change.owner):
            is_filled = self._read(driver, session, lambda: bool(self.cells))
            change.empties = contender.empties(is_filled=is_filled, youngest=youngest)
            change.owner = contender.claimed
            session.changes.append(partial(setattr, self, "owner", contender.claimed))
        if contender.is_youngest(youngest):
            session.changes.append(partial(setattr, self, "joined", contender.mine))
        given_up = dict.fromkeys(run.given_up, contender.mine)
        session.changes.append(lambda: self.given_up.update(given_up))

    def _groups(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        """Versions decide whatever the order. Without them, one write action after the other."""
        if self.by_version:
            yield numbers
        else:
            yield from ([number] for number in numbers)

    def _put(self, driver: Driver, session: Session, change: Change, rows: Sequence[Keyed]) -> None:
        """One statement. Raises `WriteRefused`."""
        newest = dict[int, Keyed]()
        for row in rows:
            if not self.by_version and row.key in newest:
                raise WriteRefused(f"key {row.key} is there twice in an event")
            if row.key not in newest or is_newer(row, newest[row.key]):
                newest[row.key] = row
        for key in taken_in_order(newest):
            self._lock(driver, session, "row", str(key))
            there = self._read(driver, session, partial(self._there, change, key))
            if there is None or not self.by_version or is_newer(newest[key], there):
                change.rows[key] = newest[key]
        for row in rows:
            self._check_put(row, self._read(driver, session, partial(self._there, change, row.key)))

    def _there(self, change: Change, key: int) -> Keyed | None:
        """What the transaction sees."""
        return change.rows.get(key) or (None if change.empties else self.cells.get(key))

    def _check_put(self, row: Keyed, there: Keyed | None) -> None:
        if there is None or not (is_left(row, there) if self.by_version else row == there):
            raise WriteRefused(f"{row} is not there, but {there}")

    def _update(self, driver: Driver, numbers: Sequence[int], change: Change) -> None:
        if change.empties:
            self.cells.clear()
        self.cells.update(change.rows)
        self.markers[driver.run.writer] = MarkerRow(numbers[-1], driver.token)
        self.watch.applied(driver, numbers)

    def _contender(self, run: Run) -> Contender:
        mine = Owner(run.uid, run.started)
        joins = self.by_version and run.on_new_run == "update"
        return Contender(TABLE, "warehouse", WRITER, mine, run.on_new_run, run.given_up, by_version=joins)


class UpdatingPlace(Protocol):
    """What its judge sees of such a table."""

    by_version: bool
    watch: TableWatch

    @property
    def cells(self) -> Mapping[int, Keyed]: ...


class UpdatingJudge(Judge, TableWatch):
    """What must be there follows from what was committed, whatever the order: the greatest version of each key, or what the
    youngest run has written last."""

    def __init__(self, place: UpdatingPlace) -> None:
        super().__init__(())
        self._place = place
        self._applied = Applications()
        self._written: list[tuple[float, int, Keyed]] = [(0.0, 0, row) for row in place.cells.values()]
        """When the run was started, the write action, and the row."""
        self._begun: dict[str, Run] = {}
        """Runs that have written to the table."""
        self._given_up: set[str] = set()
        self._rows = Counter[tuple[int, int]]()
        """Key and version → how many unlike rows there are in all that runs are to write."""
        self._known: set[Keyed] = set()
        place.watch = self

    def begun(self, run: Run) -> None:
        super().begun(run)
        for row in set(run.rows) - self._known:
            self._rows[row.key, row.version] += 1
            self._known.add(row)

    # --- what is committed --------------------------------------------------------------------------------------------

    def applied(self, driver: Driver, numbers: Sequence[int]) -> None:
        run = driver.run
        self._applied.add(driver, numbers)
        if run.uid in self._given_up:
            raise Violation(GIVEN_UP, f"{run.writer} applies {numbers}")
        if (why := self._is_shut_out(run)) is not None:
            raise Violation(OLDER, f"{run.writer} applies {numbers}: {why}")
        if run.uid not in self._begun:
            if run.on_new_run == "replace":
                self._written.clear()
            self._begun[run.uid] = run
            self._given_up.update(run.given_up)
        for number in numbers:
            rows = rows_in(run, [number])
            if not self._place.by_version and len({row.key for row in rows}) < len(rows):
                raise Violation(TWICE, f"{run.writer} applies {rows}")
            self._written += [(run.started, number, row) for row in rows]

    def _is_shut_out(self, run: Run) -> str | None:
        """Why a run must not write: a younger one has the table for itself, or this one would put away what is there, and is
        older."""
        for other in self._begun.values():
            if other.started > run.started and self._is_alone(other):
                return f"run {other.uid} has the table"
            begins_older = other.started > run.started and run.uid not in self._begun and self._is_alone(run)
            if begins_older and self._written:
                return f"run {other.uid} has begun to write there"
        return None

    def _is_alone(self, run: Run) -> bool:
        return not self._place.by_version or run.on_new_run == "replace"

    # --- what is there ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        wanted = self._greatest() if self._place.by_version else self._last()
        if wanted != self._place.cells:
            rule = GREATEST if self._place.by_version else LAST
            raise Violation(rule, f"{wanted} must be there, and it is {self._place.cells}")

    def _greatest(self) -> Mapping[int, Keyed]:
        found = dict[int, Keyed]()
        for row in {row for _, _, row in self._written}:
            there = found.get(row.key)
            if there is None or row.version > there.version:
                found[row.key] = row
        unlike = Counter((row.key, row.version) for row in {row for _, _, row in self._written})
        for row in found.values():
            if unlike[row.key, row.version] > 1:
                raise Violation(UNLIKE, f"of the version {row.version} of {row.key} there are unlike rows")
        return found

    def _last(self) -> Mapping[int, Keyed]:
        return {row.key: row for _, _, row in sorted(self._written)}

    # --- how drivers end ----------------------------------------------------------------------------------------------

    def ended(self, driver: Driver) -> None:
        run = driver.run
        if driver.end is End.DONE:
            self._applied.check_all(driver)
        if driver.end is not End.REFUSED or run.uid in self._given_up or self._is_shut_out(run) is not None:
            return
        by_version = self._place.by_version
        if not any(self._is_unlike(row) if by_version else self._is_twice(run, row) for row in run.rows):
            raise Violation(REASON, f"{run.writer} is refused: {driver.said}")

    def _is_unlike(self, row: Keyed) -> bool:
        return self._rows[row.key, row.version] > 1

    def _is_twice(self, run: Run, row: Keyed) -> bool:
        events = (rows_in(run, [number]) for number in range(2, run.last + 1))
        return any(sum(one.key == row.key for one in event) > 1 for event in events)

    def heir(self, day: str) -> str | None:
        return "a"

    def conclude(self, run: Run) -> None:
        if missing := set(run.rows) - set(self._place.cells.values()):
            raise Violation(GETS, f"{missing} of run {run.uid} are not there")
