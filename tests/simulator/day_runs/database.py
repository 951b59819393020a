"""A real database in which runs own days, own what they have written, or update rows. Each call is a transaction.

The judges are those of the simulated tables. What was applied is read from the marker, what is there from the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, WriteRefused
from airflow_logio.protocol.scope_rules import DayRun
from airflow_logio.protocol.values import FIRST_EVENT_ID
from airflow_logio.systems.warehouse import Warehouse
from airflow_logio.testing.simulator.violation import Violation
from tests.simulator.day_runs.filling import FillingJudge, rows_in
from tests.simulator.day_runs.folder import BEFORE, rows_before
from tests.simulator.day_runs.judges import STAYS, Judge, TableJudge
from tests.simulator.day_runs.runs import DayLog, Driver, Place, Rows, Run
from tests.simulator.day_runs.schedule import DAYS, SCHEDULES, DaySchedule
from tests.simulator.day_runs.table import LOST, TableWatch
from tests.simulator.day_runs.updating import Keyed, UpdatingJudge, rows_there
from tests.support import table_days, table_runs, upserts

TABLES = ("t", "logio_marker", "logio_owner", "logio_scope")


class DatabasePlace:
    """Calls of `Warehouse`. Their answers may be lost."""

    def __init__(self, chance: Random, url: str, script: Sequence[str]) -> None:
        self.now = 0
        self.chance = chance
        self.watch = TableWatch()
        self.warehouse = Warehouse("wh", url)
        table_days.execute(self.warehouse, *(f"DROP TABLE IF EXISTS {table}" for table in TABLES), *script)
        self.rows = self._read_rows()

    def open(self, driver: Driver) -> None:
        driver.ask(partial(self._change, driver, lambda: self._apply(driver, FIRST_EVENT_ID, FIRST_EVENT_ID)))

    def fill(self, driver: Driver, first: int, last: int) -> None:
        driver.ask(partial(self._change, driver, lambda: self._apply(driver, first, last)))

    def close(self, driver: Driver) -> None:
        pages = [self._records(driver.run, rows) for _, files in driver.pages() for rows in [sum(files, ())]]
        driver.ask(partial(self._change, driver, lambda: self._owning(driver).close(self.warehouse, pages=pages)))

    def end(self, driver: Driver) -> None:
        """No call is open."""

    def _change(self, driver: Driver, call: Callable[[], None]) -> None:
        before = self._marked(driver)
        call()
        self.rows = self._read_rows()
        if numbers := range(before + 1, self._marked(driver) + 1):
            self._tell(driver, numbers)
        if self.chance.random() < LOST:
            raise ExternalUnavailable("the answer is lost")

    def _tell(self, driver: Driver, numbers: Sequence[int]) -> None:
        if FIRST_EVENT_ID in numbers:
            self.watch.claimed(driver.run)
        if driver.run.fills:
            self.watch.applied(driver, numbers)
        elif driver.run.last in numbers:
            self.watch.closed(driver.run, driver)

    def _marked(self, driver: Driver) -> int:
        with self.warehouse.engine.connect() as connection:
            if not sa.inspect(connection).has_table("logio_marker"):
                return 0
            query = sa.text("SELECT last_write FROM logio_marker WHERE run_uid = :uid AND slot = :slot")
            return connection.execute(query, {"uid": driver.run.uid, "slot": driver.run.slot}).scalar() or 0

    def _read_rows(self) -> Sequence[Any]:
        with self.warehouse.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sa.text("SELECT * FROM t"))]

    def _apply(self, driver: Driver, first: int, last: int) -> None:
        own = self._owning(driver)
        actions = [own.action(number, *self._action(driver.run, number)) for number in range(first, last + 1)]
        own.target(self.warehouse).apply(self.warehouse, own.marker, actions)

    def _action(self, run: Run, number: int) -> tuple[pa.Table, str]:
        if number == FIRST_EVENT_ID:
            return pa.table({}), "begin"
        return self._records(run, rows_in(run, [number])), "insert"

    def _owning(self, driver: Driver) -> table_days.Run:
        run = driver.run
        said = (run.takes_over, run.may_be_empty, run.given_up)
        options = (("switch", "at once"),) if run.fills else ()
        return table_days.Run(
            *(run.ordinal, run.day, run.uid, driver.token, "clicks", run.log),
            *said,
            options=options,
            slot=run.slot,
        )

    def _records(self, run: Run, rows: Rows) -> pa.Table:
        return table_of((run.day, row, run.uid) for row in rows)


def table_of(rows: Iterable[tuple[str, int, str]]) -> pa.Table:
    made = [table_days.records(*row) for row in rows]
    return pa.concat_tables(made) if made else table_days.records(DAYS[0], 0, "").slice(1)


class DatabaseOfDays(DatabasePlace):
    """Days are owned by value."""

    def __init__(self, chance: Random, url: str) -> None:
        there = [f"('{day}', {row}, '{BEFORE}')" for day in DAYS for row in rows_before(day)]
        made = "CREATE TABLE t (day DATE, a BIGINT, who TEXT)"
        super().__init__(chance, url, [made, f"INSERT INTO t VALUES {', '.join(there)}"])

    def day(self, day: str) -> Sequence[tuple[str, int]]:
        return [(who, row) for one, row, who in self.rows if str(one) == day]


# --- rows that runs own -----------------------------------------------------------------------------------------------


class DatabaseOfRuns(DatabasePlace):
    """Rows belong to the partition of the run that has written them, wherever they lie. A day is ``2026-03-01@a``, of the
    pipeline of the log ``a``. Persons adopt rows, and delete the row of a scope."""

    def __init__(self, chance: Random, url: str) -> None:
        key = "PRIMARY KEY (day, a, logio_run)"
        made = f"CREATE TABLE t (day DATE, a BIGINT, who TEXT, logio_run BIGINT NOT NULL DEFAULT 0, {key})"
        index = "CREATE INDEX of_runs ON t (logio_run)"
        there = ", ".join(f"('{day}', {row}, '{BEFORE}')" for day in DAYS for row in rows_before(day))
        super().__init__(chance, url, [made, index, f"INSERT INTO t (day, a, who) VALUES {there}"])
        self.judge: RunsJudge | None = None

    def day(self, day: str) -> Sequence[tuple[str, int]]:
        """By the runs that have written them, and never by their numbers."""
        assert self.judge is not None
        runs = self.judge.runs
        return [(who, row) for _, row, who, _ in self.rows if who in runs and runs[who].day == day]

    def before(self) -> Sequence[int]:
        """Rows that were there before."""
        return sorted(row for _, row, who, _ in self.rows if who == BEFORE)

    def delete_scope(self, day: str) -> bool:
        """A person takes the row of a scope for rubbish; whether there was one."""
        assert self.judge is not None
        key, _, line = day.partition("@")
        delete = f"DELETE FROM logio_scope WHERE scope = 'day={key}@clicks_{line}'"
        with self.warehouse.engine.begin() as connection:
            if not sa.inspect(connection).has_table("logio_scope") or not connection.exec_driver_sql(delete).rowcount:
                return False
        self.judge.scope_deleted(day)
        return True

    def adopt(self, log: DayLog, day: str, row: int) -> bool:
        """A person gives a row from before to a partition; whether it took it."""
        assert self.judge is not None
        key, _, line = day.partition("@")
        own = table_runs.Superseding(1, key, pipeline=f"clicks_{line}")
        nobodys = DayRun(own.pipeline, log.name, 0, "adopt")
        try:
            self.warehouse.adopt(own.writer, nobodys, f"a = {row}", expected=1)
        except WriteRefused:  # it is of some partition already
            return False
        self.rows = self._read_rows()
        self.judge.adopted(day, row)
        return True

    def _owning(self, driver: Driver) -> table_days.Run:
        run, (key, _, line) = driver.run, driver.run.day.partition("@")
        said = (run.takes_over, run.may_be_empty, run.given_up)
        return table_runs.Superseding(run.ordinal, key, run.uid, driver.token, f"clicks_{line}", run.log, *said)

    def _records(self, run: Run, rows: Rows) -> pa.Table:
        """In all days."""
        return table_of((DAYS[row % len(DAYS)], row, run.uid) for row in rows)


class RunsJudge(TableJudge):
    """A run replaces what earlier ones of its partition and pipeline have written, and what was adopted; nothing else."""

    def __init__(self, place: DatabaseOfRuns, days: Iterable[str]) -> None:
        super().__init__(place, days)
        place.judge = self
        self._table = place
        self._before = {row: "" for row in place.before()}
        """Row from before → the partition that has adopted it."""
        self._orphans: dict[str, list[int]] = {}
        """Partition → rows that no run replaces any more."""

    def closed(self, run: Run, driver: Driver) -> None:
        super().closed(run, driver)
        self._before = {row: day for row, day in self._before.items() if day != run.day}

    def adopted(self, day: str, row: int) -> None:
        if self._before.get(row) != "":
            raise Violation(STAYS, f"{row} is adopted by {day}, and is {self._before.get(row, 'gone')!r}")
        self._before[row] = day

    def scope_deleted(self, day: str) -> None:
        self._orphans.setdefault(day, []).extend(self._own(day))
        self._live.pop(day, None)
        self.days[day].claims.clear()
        self._before = {row: "nobody" if one == day else one for row, one in self._before.items()}

    def look(self) -> None:
        super().look()
        if self._table.before() != sorted(self._before):
            raise Violation(STAYS, f"of {sorted(self._before)} from before there are {self._table.before()}")

    def rows_of(self, day: str) -> Rows:
        return (*self._own(day), *self._orphans.get(day, ()))

    def _own(self, day: str) -> Rows:
        return self.runs[self._live[day]].rows if day in self._live else ()

    def _is_filled(self, day: str) -> bool:
        return bool(self._own(day)) or day in self._before.values()

    def heir(self, day: str) -> str | None:
        return day.partition("@")[2]


class RunsSchedule(DaySchedule):
    """Runs of two pipelines, with persons between them."""

    place: DatabaseOfRuns

    def _choose(self) -> None:
        roll = self.chance.random()
        log = self.chance.choice(self.logs)
        day = f"{self.chance.choice(DAYS)}@{log.name}"
        if roll < 0.03:
            self._tell(f"the scope of {day} is deleted")
            self.figures["scopes deleted"] += self.place.delete_scope(day)
        elif roll < 0.1:
            row = self.chance.choice(self.chance.choice([rows_before(one) for one in DAYS]))
            self._tell(f"{row} is adopted by {day}")
            self.figures["adopted"] += self.place.adopt(log, day, row)
        else:
            super()._choose()

    def _made(self, log: DayLog, day: str, above: int, takes_over: bool) -> Sequence[Run]:
        return super()._made(log, f"{day}@{log.name}", above, takes_over)

    def _days(self) -> Sequence[str]:
        return [f"{day}@{log.name}" for day in DAYS for log in self.logs]


# --- rows that are updated --------------------------------------------------------------------------------------------


class DatabaseOfKeys(DatabasePlace):
    """Rows are updated by their keys."""

    def __init__(self, chance: Random, url: str, by_version: bool) -> None:
        self.by_version = by_version
        there = ", ".join(f"({row.key}, {row.version}, '{row.value}')" for row in rows_there().values())
        made = "CREATE TABLE t (id BIGINT PRIMARY KEY, at BIGINT, who TEXT)"
        super().__init__(chance, url, [made, f"INSERT INTO t VALUES {there}"])

    @property
    def cells(self) -> Mapping[int, Keyed]:
        return {row[0]: Keyed(*row) for row in self.rows}

    def _apply(self, driver: Driver, first: int, last: int) -> None:
        run = driver.run
        writer = upserts.BY_VERSION if self.by_version else upserts.LAST_WINS
        if run.on_new_run == "replace":
            said: dict[str, Any] = {"mode": "upsert", "version": "at", "on_new_run": "replace"}
            writer = TableWriter("wh", "t", upserts.COLUMNS, ("id",), **said)
        own = upserts.Run(run.uid, run.started, writer, driver.token, run.slot)
        actions = {
            number: pa.table({}) if number == FIRST_EVENT_ID else upserts.records(rows_in(run, [number]))
            for number in range(first, last + 1)
        }
        own.apply(self.warehouse, actions, given_up=run.given_up)


# --- schedules --------------------------------------------------------------------------------------------------------


def schedule_of(kind: str, seed: int, url: str) -> DaySchedule:
    """One that meets a real database, of which nothing is left but this schedule's."""

    def made(chance: Random) -> tuple[Place, Judge]:
        if kind in ("versions", "last_events"):
            keyed = DatabaseOfKeys(chance, url, by_version=kind == "versions")
            return keyed, UpdatingJudge(keyed)
        if kind == "superseded":
            owned = DatabaseOfRuns(chance, url)
            return owned, RunsJudge(owned, [f"{day}@{line}" for day in DAYS for line in "ab"])
        days = DatabaseOfDays(chance, url)
        return days, (FillingJudge if kind == "days_at_once" else TableJudge)(days, DAYS)

    return ({"superseded": RunsSchedule} | dict(SCHEDULES)).get(kind, DaySchedule)(kind, seed, made)


KINDS = ("days_in_a_table", "days_at_once", "superseded", "versions", "last_events")
