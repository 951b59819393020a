"""What was computed from a day of a table that was replaced since is marked, whenever the day was replaced: real tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from airflow_logio import Count, Days, Pipeline, QuerySource
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.days_read import with_days_read
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape
from airflow_logio.protocol.scope_rules import DayAsRead
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.day_records import Standing
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.systems.warehouse import Warehouse
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support import table_days
from tests.support.logs import spec, start_driver
from tests.support.table_days import D1, execute, rows

PARTITION = {"partition": "Days", "name": "day", "zone": "UTC", "rules": "r"}
AT_ONCE = (("switch", "at once"),)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a warehouse."""
    is_sqlite = request.param == "sqlite"
    return f"sqlite:///{tmp_path}/wh.db" if is_sqlite else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def warehouse(url: str) -> Iterator[Warehouse]:
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


class Day:
    """A table with one day, the run that writes it, and the run that reads it: each step is one of the two."""

    def __init__(self, store: LogStore, warehouse: Warehouse, url: str, table: str = "t", *, at_once: bool = False):
        self.store, self.warehouse, self.url, self.table, self.at_once = store, warehouse, url, table, at_once
        self.seen: object = None
        self._reads: RunSpec | None = None

    # --- the run that writes the day

    def start(self, dag_run: str = "clicks", **other: Any) -> None:
        shape = WriterShape("save", "its table", ("dwh", self.table), Together.BY_PARTITION, Repeats.REPLACED)
        one = replace(spec("g", dag_run=dag_run), partition=D1, graph={"partition": PARTITION}, writers=(shape,))
        self.writes = self.store.start_run(one)
        given: dict[str, Any] = {"uid": self.writes.uid, "log_uid": self.store.log_uid(), **other}
        pipeline, options = self.writes.spec.key.pipeline, AT_ONCE if self.at_once else ()
        self.day = table_days.Run(self.writes.ordinal, table=self.table, pipeline=pipeline, options=options, **given)

    def open(self) -> None:
        self.day.open(self.warehouse)

    def close(self) -> None:
        self.day.close(self.warehouse, 10, 11)

    def fill(self) -> None:
        self.day.fill(self.warehouse, 10)

    def fill_more(self) -> None:
        self.day.fill(self.warehouse, 11, first=3)

    def conclude(self) -> None:
        start_driver(self.store, run=self.writes).session.commit([fx.FinishGroup()])

    def all(self, dag_run: str = "clicks", **other: Any) -> Run:
        self.start(dag_run, **other)
        for step in self.steps[1:]:
            getattr(self, step)()
        return self.writes

    @property
    def steps(self) -> Sequence[str]:
        inner = ("fill", "fill_more") if self.at_once else ("close",)
        return ("start", "open", *inner, "conclude")

    # --- the run that reads it

    def ask(self) -> None:
        pipeline = Pipeline("top", partition=Days("day"), connections=["wh"])
        source = QuerySource("wh", f"SELECT a FROM {self.table} WHERE day = :day", columns={"a": "bigint"})
        pipeline.sink("count", Count(), pipeline.source("clicks", source, days={self.table: "day={day}"}))
        one = spec("g", dag_run=f"reads {self.table}")
        one = replace(one, key=replace(one.key, pipeline="top"), params={"day": D1}, connections={"wh": "warehouse_db"})
        self._reads = with_days_read(pipeline, one, lambda _: self.url)

    def create(self) -> None:
        assert self._reads is not None
        self.reads = self.store.start_run(self._reads)

    def read(self) -> None:
        self.seen = self._there()

    def is_as_it_was_read(self) -> bool:
        return self.seen == self._there()

    def mark(self) -> tuple[Standing, str | None]:
        (found,) = self.store.days_read([self.reads.run_id])[self.reads.run_id]
        assert (found.operator, found.scope) == ("clicks", f"day={D1}")
        return found.standing, found.by

    def _there(self) -> object:
        return [row[1:] for row in rows(self.warehouse, self.table)]


def interleaved(one: Sequence[str], other: Sequence[str]) -> Iterator[list[str]]:
    """All orders of the steps of two, each in its own order."""
    for places in combinations(range(len(one) + len(other)), len(other)):
        first, second = iter(one), iter(other)
        yield [next(second) if place in places else next(first) for place in range(len(one) + len(other))]


@pytest.mark.parametrize("at_once", [False, True], ids=["at the end", "at once"])
@pytest.mark.parametrize("was_there", [False, True], ids=["a first run", "again"])
def test_whenever_a_day_is_replaced_what_was_read_before_is_marked(
    was_there: bool, at_once: bool, tmp_path: Path
) -> None:
    """Also between the question and the beginning, and between that and the reading. What had ended by then is not marked."""
    url = f"sqlite:///{tmp_path}/wh.db"
    warehouse = Warehouse("wh", url)
    marks = 0
    writes = Day(MemoryLogStore(), warehouse, url, at_once=at_once).steps
    for number, steps in enumerate(interleaved(writes, ("ask", "create", "read"))):
        day = Day(MemoryLogStore(), warehouse, url, f"t{number}", at_once=at_once)
        execute(warehouse, f"CREATE TABLE t{number} (day DATE, a BIGINT, who TEXT)")
        if was_there:
            day.all("before")
        for step in steps:
            getattr(day, step)()
        marked = day.mark() == (Standing.REPLACED, day.writes.uid)
        assert marked or (day.is_as_it_was_read() and day.mark()[0] is Standing.AS_READ), (steps, day.mark())
        if steps.index("conclude") < steps.index("ask"):
            assert not marked, steps
        marks += marked
    assert marks
    warehouse.close()


@pytest.mark.parametrize("at_once", [False, True], ids=["at the end", "at once"])
def test_a_day_is_marked_when_it_was_replaced_and_not_before(
    at_once: bool, log_store: LogStore, warehouse: Warehouse, url: str
) -> None:
    """With each kind of log and of database: replaced before, between question and reading, and behind it."""
    day = Day(log_store, warehouse, url, at_once=at_once)
    day.all("before")
    for step in ("ask", "create", "read"):
        getattr(day, step)()
    assert day.mark() == (Standing.AS_READ, None) and day.is_as_it_was_read()
    day.start("again")
    day.open()
    assert day.mark() == (Standing.AGAIN, day.writes.uid)
    for step in day.steps[2:]:
        getattr(day, step)()
    assert day.mark() == (Standing.REPLACED, day.writes.uid) and not day.is_as_it_was_read()
    log_store.supersede(day.reads.run_id)
    day.ask()
    again = day.all("once more")
    day.create()
    assert day.mark() == (Standing.REPLACED, again.uid)


def test_who_reads_a_first_day_before_it_is_there_is_marked(
    log_store: LogStore, warehouse: Warehouse, url: str
) -> None:
    """No run had claimed it, so the log looks for runs that own that day of such a table."""
    execute(warehouse, "CREATE TABLE t (day DATE, a BIGINT, who TEXT)")
    day = Day(log_store, warehouse, url)
    for step in ("ask", "create", "read"):
        getattr(day, step)()
    assert day.mark() == (Standing.AS_READ, None)
    day.start()
    assert day.mark() == (Standing.AGAIN, day.writes.uid)
    for step in day.steps[1:]:
        getattr(day, step)()
    assert day.mark() == (Standing.REPLACED, day.writes.uid)


def test_a_day_of_another_log_is_said_to_be_of_one(log_store: LogStore, warehouse: Warehouse, url: str) -> None:
    table_days.Run(7, uid="e" * 32, log_uid="another").all(warehouse, 10)
    day = Day(log_store, warehouse, url)
    day.ask()
    day.create()
    assert day.mark() == (Standing.ELSEWHERE, None)
    table_days.Run(8, uid="f" * 32, log_uid="another").open(warehouse)
    assert day.mark() == (Standing.ELSEWHERE, None)


def test_a_warehouse_that_is_away_fails_no_start_and_marks_too_much(
    log_store: LogStore, warehouse: Warehouse, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    day = Day(log_store, warehouse, url)
    written = day.all()
    day.url = "postgresql://nobody@127.0.0.1:1/none"
    day.ask()
    day.create()
    assert "which run had left the days of table 't' is not known" in caplog.text
    assert day.mark() == (Standing.REPLACED, written.uid), "it may have been, for all that is known"


def test_what_is_wrong_is_refused_before_a_run_begins_and_not_of_one_that_resumes(
    warehouse: Warehouse, url: str
) -> None:
    pipeline = Pipeline("top", partition=Days("day"), connections=["wh"])
    source = QuerySource("wh", "SELECT 1 AS a", columns={"a": "bigint"})
    pipeline.sink("count", Count(), pipeline.source("clicks", source, days={"none": "day={day}"}))
    one = replace(spec("g"), params={"day": D1}, connections={"wh": "warehouse_db"})
    with pytest.raises(ConfigurationError, match=r"source 'clicks': days of table 'none': there is no table '.*none'"):
        with_days_read(pipeline, one, lambda _: url)
    noted = with_days_read(pipeline, one, lambda _: url, resumes=lambda: True).days_read
    assert noted["clicks"] == (DayAsRead("table none of connection warehouse_db", f"day={D1}", "", is_whole=False),)
