"""Two writers of one table, one of them slow: it stands still anywhere in its transaction while the other one writes.

A zombie that is stopped loses its session, and its locks; one that is slow keeps both, and writes on. So what excludes the
two must be the locks of marker and owner, and nothing that only a stopped one does. On PostgreSQL alone: a transaction on
SQLite has the whole database to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_logio.dataflow.writers.action_writers import Marker, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, Fenced, WriteRefused
from airflow_logio.protocol.scope_rules import DayRun
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.systems.warehouse import TableTarget, Warehouse
from tests.support.faults import STANDS_SECONDS, Pause, place

pytestmark = pytest.mark.postgres

OLD, NEW = ("old", 1.0), ("new", 2.0)
Rows = list[tuple[int, str]]


@dataclass
class Table:
    """One table, and what two drivers do with it; `opened` are their pools of connections."""

    name: str
    opened: tuple[Warehouse, Warehouse]
    on_new_run: str = "replace"

    def apply(self, which: int, run: tuple[str, float], token: int, *numbers: int, instead_of: str = "") -> None:
        """The driver of that number, 0 or 1, executes write actions: 1 begins the run, the others insert their number."""
        uid = f"{run[0]} {self.name}"
        writer = TableWriter("wh", self.name, {"a": "bigint", "who": "text"}, on_new_run=self.on_new_run)
        actions = [
            WriteAction(uid, "publish", "wh", number, token, _records(run, number), {"action": _kind(number)})
            for number in numbers
        ]
        given_up = (f"{instead_of} {self.name}",) if instead_of else ()
        self.opened[which].apply(Marker(uid, "publish", "wh", 0, token, run[1]), writer, actions, given_up=given_up)

    def rows(self) -> Rows:
        with self.opened[1].engine.connect() as connection:
            found = connection.execute(sa.text(f"SELECT a, who FROM {self.name} ORDER BY a, who"))
            return [(row.a, row.who) for row in found]


def _kind(number: int) -> str:
    return "begin" if number == 1 else "insert"


def _records(run: tuple[str, float], number: int) -> pa.Table:
    if number == 1:
        return pa.table({})
    return pa.table({"a": pa.array([number], pa.int64()), "who": pa.array([run[0]], pa.string())})


@pytest.fixture
def opened(postgres_url: str) -> Iterator[tuple[Warehouse, Warehouse]]:
    """Two drivers' pools, with the tables of markers and owners made."""
    first, second = Warehouse("wh", postgres_url), Warehouse("wh", postgres_url)
    for which in (0, 1):
        Table("warm", (first, second)).apply(which, NEW, 1, 1, 2)
    yield first, second
    first.close()
    second.close()


Act = Callable[[Table], None]
Told = tuple[str, ...]


def _every_place(
    opened: tuple[Warehouse, Warehouse], before: Act, slow: Act, quick: Act, on_new_run: str = "replace"
) -> Iterator[tuple[str, Rows, Told]]:
    """Where the slow one stood, what is in the table in the end, and which errors the two were told ('' for none)."""
    index, reached = 0, True
    while reached:
        table = Table(f"t{index}", opened, on_new_run)
        before(table)
        pause = Pause()
        where, standing = place(opened[0], index, pause)
        with ThreadPoolExecutor(2) as pool, standing:
            first = pool.submit(slow, table)
            reached = pause.is_reached_before(first)
            second = pool.submit(quick, table)
            wait([second], STANDS_SECONDS)
            pause.release()
            told = _told([first, second])
        yield where, table.rows(), told
        index += 1
    assert index > 8, "a transaction of the warehouse has more statements than that"


def _told(outcomes: Sequence[Future[None]]) -> Told:
    errors = [outcome.exception(90) for outcome in outcomes]
    return tuple("" if error is None else type(error).__name__ for error in errors)


# --- one run: a driver that was replaced, and its successor -----------------------------------------------------------


def test_a_slow_zombie_and_its_successor_apply_an_action_once(opened: tuple[Warehouse, Warehouse]) -> None:
    """Both were given actions 3 and 4 by the log. Shows a marker that is read without its row's lock: then twice."""
    places = _every_place(
        opened,
        lambda table: table.apply(0, NEW, 1, 1, 2),
        lambda table: table.apply(0, NEW, 1, 3, 4),
        lambda table: table.apply(1, NEW, 2, 3, 4, 5),
    )
    for where, rows, (slow, quick) in places:
        assert rows == [(number, "new") for number in (2, 3, 4, 5)], f"the zombie stood {where}: {rows}"
        assert (slow in ("", Fenced.__name__), quick) == (True, ""), where


def test_a_slow_zombie_and_its_successor_begin_the_run_once(opened: tuple[Warehouse, Warehouse]) -> None:
    """Neither has a marker yet: the one that comes second finds the one that the first has made."""
    places = _every_place(
        opened,
        lambda table: table.apply(0, OLD, 1, 1, 2),
        lambda table: table.apply(0, NEW, 1, 1, 2),
        lambda table: table.apply(1, NEW, 2, 1, 2, 3),
    )
    for where, rows, (slow, quick) in places:
        assert rows == [(2, "new"), (3, "new")], f"the zombie stood {where}: {rows}"
        assert (slow in ("", Fenced.__name__), quick) == (True, ""), where


def test_a_slow_successor_is_not_overtaken_by_the_zombie(opened: tuple[Warehouse, Warehouse]) -> None:
    """The other way round: what the zombie finds, it finds behind its successor's transaction, or before it."""
    places = _every_place(
        opened,
        lambda table: table.apply(0, NEW, 1, 1, 2),
        lambda table: table.apply(0, NEW, 2, 3, 4),
        lambda table: table.apply(1, NEW, 1, 3, 4),
    )
    for where, rows, (slow, quick) in places:
        assert rows == [(number, "new") for number in (2, 3, 4)], f"the successor stood {where}: {rows}"
        assert (slow, quick in ("", Fenced.__name__)) == ("", True), where


# --- two runs: whose the table is -------------------------------------------------------------------------------------


def test_a_slow_run_writes_nothing_into_a_table_that_a_newer_one_has_taken(opened: tuple[Warehouse, Warehouse]) -> None:
    """Shows an owner that a writer reads without its row's lock: its rows come into the newer run's table."""
    places = _every_place(
        opened,
        lambda table: table.apply(0, OLD, 1, 1, 2),
        lambda table: table.apply(0, OLD, 1, 3),
        lambda table: table.apply(1, NEW, 1, 1, 2),
    )
    for where, rows, (slow, quick) in places:
        assert rows == [(2, "new")], f"the older run stood {where}: {rows}"
        assert (slow in ("", WriteRefused.__name__), quick) == (True, ""), where


def test_a_run_that_is_slow_to_begin_leaves_no_row_of_an_older_one(opened: tuple[Warehouse, Warehouse]) -> None:
    """Shows an owner that `begin` reads without its row's lock: what is written meanwhile stays behind the DELETE."""
    places = _every_place(
        opened,
        lambda table: table.apply(1, OLD, 1, 1, 2),
        lambda table: table.apply(0, NEW, 1, 1, 2),
        lambda table: table.apply(1, OLD, 1, 3),
    )
    for where, rows, (slow, quick) in places:
        assert rows == [(2, "new")], f"the newer run stood {where}: {rows}"
        assert (slow, quick in ("", WriteRefused.__name__)) == ("", True), where


@pytest.mark.parametrize("slow_run", [OLD, NEW], ids=["the older run is slow", "the newer run is slow"])
def test_two_runs_begin_at_once_and_the_newer_one_has_the_table(
    opened: tuple[Warehouse, Warehouse], slow_run: tuple[str, float]
) -> None:
    """It has no owner yet, and is not there: no row to lock. Shows a `begin` without its advisory lock."""
    other = NEW if slow_run is OLD else OLD
    places = _every_place(
        opened,
        lambda _table: None,
        lambda table: table.apply(0, slow_run, 1, 1, 2),
        lambda table: table.apply(1, other, 1, 1, 2),
    )
    for where, rows, told in places:
        assert rows == [(2, "new")], f"{slow_run[0]} stood {where}: {rows}"
        older, newer = told if slow_run is OLD else told[::-1]
        assert (older in ("", WriteRefused.__name__), newer) == (True, ""), where


@pytest.mark.parametrize("has_begun", [True, False], ids=["which has written", "which has written nothing"])
@pytest.mark.parametrize("slow_run", [OLD, NEW], ids=["the one given up is slow", "the fresh run is slow"])
def test_a_run_that_was_given_up_appends_nothing_once_the_fresh_one_has_begun(
    opened: tuple[Warehouse, Warehouse], slow_run: tuple[str, float], has_begun: bool
) -> None:
    """Wherever either stands. Another run that appends is concerned by neither."""
    found: dict[str, int] = {}

    def given_up(table: Table) -> None:
        table.apply(0 if slow_run is OLD else 1, OLD, 1, *((3,) if has_begun else (1, 3)))

    def fresh(table: Table) -> None:
        table.apply(0 if slow_run is NEW else 1, NEW, 1, 1, 2, instead_of="old")
        found[table.name] = table.rows().count((3, "old"))

    def before(table: Table) -> None:
        table.apply(1, ("healthy", 0.5), 1, 1, 2)
        if has_begun:
            table.apply(1, OLD, 1, 1, 2)

    slow, quick = (given_up, fresh) if slow_run is OLD else (fresh, given_up)
    for number, (where, rows, told) in enumerate(_every_place(opened, before, slow, quick, "append")):
        old, new = told if slow_run is OLD else told[::-1]
        table = Table(f"t{number}", opened, "append")
        assert rows.count((3, "old")) == found[table.name] == (old == ""), f"{slow_run[0]} stood {where}: {rows}"
        assert (old in ("", Fenced.__name__, WriteRefused.__name__), new) == (True, ""), where
        table.apply(1, ("healthy", 0.5), 1, 3)
        assert [row for row in table.rows() if row[1] != "old"] == [(2, "healthy"), (2, "new"), (3, "healthy")]


def test_runs_that_append_do_not_disturb_each_other(opened: tuple[Warehouse, Warehouse]) -> None:
    places = _every_place(
        opened,
        lambda table: table.apply(0, OLD, 1, 1, 2),
        lambda table: table.apply(0, OLD, 1, 3),
        lambda table: table.apply(1, NEW, 1, 1, 2),
        on_new_run="append",
    )
    for where, rows, told in places:
        assert told == ("", ""), where
        assert sorted(rows) == [(2, "new"), (2, "old"), (3, "old")], where


# --- without the lock of the marker's row -----------------------------------------------------------------------------


def test_where_no_lock_is_rendered_the_marker_alone_lets_an_action_through_once(
    opened: tuple[Warehouse, Warehouse],
) -> None:
    """As a database does whose dialect knows no FOR UPDATE: the marker is advanced only from what was read."""
    for warehouse in opened:
        sa.event.listen(warehouse.engine, "before_cursor_execute", _without_locks_of_markers, retval=True)
    places = _every_place(
        opened,
        lambda table: table.apply(0, NEW, 1, 1, 2),
        lambda table: table.apply(0, NEW, 1, 3, 4),
        _applies_and_tries_again,
    )
    late = set()
    for where, rows, (slow, quick) in places:
        assert rows == [(number, "new") for number in (2, 3, 4, 5)], f"the zombie stood {where}: {rows}"
        assert quick == "", where
        late.add(slow)
    assert ExternalUnavailable.__name__ in late, "the marker was changed under it: nothing of it stays"


def _applies_and_tries_again(table: Table) -> None:
    """As its writer thread does when the zombie's commit has come first."""
    try:
        table.apply(1, NEW, 2, 3, 4, 5)
    except ExternalUnavailable as error:
        assert "was changed by another driver" in str(error)
        table.apply(1, NEW, 2, 3, 4, 5)


def _without_locks_of_markers(
    _connection: object, _cursor: object, statement: str, parameters: object, *_: object
) -> tuple[str, object]:
    return (statement.replace(" FOR UPDATE", "") if "FROM logio_marker" in statement else statement), parameters


# --- days that runs own by value --------------------------------------------------------------------------------------


@dataclass
class Day:
    """A run of 2026-03-01 or of the day after, in one table: its opening and its closing action, or what fills it at once."""

    ordinal: int
    day: str = "2026-03-01"
    token: int = 1
    given_up: tuple[str, ...] = ()
    switch: str = "at the end"

    def opening(self, table: Table, which: int) -> None:
        target, marker = self._target(table, which), self._marker(table)
        target.apply(table.opened[which], marker, [self._action(table, 1, "begin", pa.table({}))])

    def closing(self, table: Table, which: int) -> None:
        target, marker = self._target(table, which), self._marker(table)
        page = [self._action(table, 2, "insert", self._records())]
        if self.switch == "at once":
            target.apply(table.opened[which], marker, page)
            return
        closing = self._action(table, 3, "close", pa.table({}))
        target.apply_held(table.opened[which], marker, HeldGroup(2, 3, 1), closing, iter([page]))

    def both(self, table: Table, which: int) -> None:
        self.opening(table, which)
        self.closing(table, which)

    def _uid(self, table: Table) -> str:
        return f"run{self.ordinal} {table.name}"

    def _records(self) -> pa.Table:
        who = pa.array([self.day], pa.string())
        return pa.table({"a": pa.array([self.ordinal], pa.int64()), "who": who})

    def _marker(self, table: Table) -> Marker:
        return Marker(self._uid(table), "save", "wh", 0, self.token, float(self.ordinal))

    def _action(self, table: Table, number: int, kind: str, records: pa.Table) -> WriteAction:
        return WriteAction(self._uid(table), "save", "wh", number, self.token, records, {"action": kind})

    def _target(self, table: Table, which: int) -> TableTarget:
        columns = {"a": "bigint", "who": "text"}
        writer = TableWriter("wh", table.name, columns, on_new_run="overwrite", by=("who",), switch=self.switch)
        owned = writer.for_run({"who": self.day, "who_start": f"{self.day}T00:00:00+00:00"})
        run = DayRun("clicks", "log", self.ordinal, self._uid(table))
        given_up = tuple(f"{uid} {table.name}" for uid in self.given_up)
        return TableTarget(owned, table.opened[which], given_up, run)


DAY = [(2, "2026-03-01")]
"""What the younger run of the day leaves."""
REFUSED, REPLACED = WriteRefused.__name__, Fenced.__name__


def _replaces(table: Table, which: int) -> None:
    """A newer run empties the whole table."""
    table.apply(which, ("new", 9.0), 1, 1, 2)


@pytest.mark.parametrize(
    ("older", "other", "left", "refusals"),
    [
        pytest.param(Day(1), Day(2).both, DAY, [REFUSED], id="a younger run of the day"),
        pytest.param(Day(1), Day(2, given_up=("run1",)).both, DAY, [REPLACED, REFUSED], id="the run in its place"),
        pytest.param(Day(2), Day(2, token=2).closing, DAY, [REPLACED], id="its successor"),
        pytest.param(Day(2), _replaces, [(2, "new")], [REFUSED], id="a run that replaces the table"),
    ],
)
def test_a_closing_is_done_or_refused_as_a_whole_wherever_it_stands(
    opened: tuple[Warehouse, Warehouse],
    older: Day,
    other: Callable[[Table, int], None],
    left: Rows,
    refusals: list[str],
) -> None:
    """What it puts there before the other one claims, that one replaces."""
    places = _every_place(
        opened,
        lambda table: older.opening(table, 0),
        lambda table: older.closing(table, 0),
        lambda table: other(table, 1),
    )
    for where, rows, (slow, quick) in places:
        assert (rows, quick) == (left, ""), f"the closing stood {where}: {rows}"
        assert slow in ("", *refusals), where


def test_an_opening_is_overtaken_wherever_it_stands(opened: tuple[Warehouse, Warehouse]) -> None:
    older, younger, other = Day(1), Day(2), Day(9, "2026-03-09")
    places = _every_place(
        opened,
        lambda table: other.opening(table, 0),
        lambda table: older.opening(table, 0),
        lambda table: younger.both(table, 1),
    )
    for where, rows, (_, quick) in places:
        assert (rows, quick) == (DAY, ""), f"the older one stood {where}: {rows}"


def test_an_older_run_of_the_day_is_refused_wherever_the_younger_one_stands(
    opened: tuple[Warehouse, Warehouse],
) -> None:
    older, younger = Day(1), Day(2)
    places = _every_place(
        opened,
        lambda table: older.opening(table, 1),
        lambda table: younger.both(table, 0),
        lambda table: older.closing(table, 1),
    )
    for where, rows, (slow, quick) in places:
        assert (rows, slow) == (DAY, ""), f"the younger one stood {where}: {rows}"
        assert quick in ("", REFUSED), where


ONCE = "at once"


@pytest.mark.parametrize(
    ("other", "left", "refusals"),
    [
        pytest.param(Day(2).both, DAY, [REFUSED], id="a younger run of the day"),
        pytest.param(Day(2, switch=ONCE).both, DAY, [REFUSED], id="a younger run that fills it at once"),
        pytest.param(Day(2, given_up=("run1",), switch=ONCE).both, DAY, [REPLACED, REFUSED], id="the run in its place"),
        pytest.param(Day(1, token=2, switch=ONCE).closing, [(1, "2026-03-01")], [REPLACED], id="its successor"),
        pytest.param(_replaces, [(2, "new")], [REFUSED], id="a run that replaces the table"),
    ],
)
def test_what_fills_a_day_at_once_leaves_nothing_behind_a_younger_run(
    opened: tuple[Warehouse, Warehouse], other: Callable[[Table, int], None], left: Rows, refusals: list[str]
) -> None:
    """Wherever its transaction stands: what it has inserted before the other one claims, that one deletes."""
    older = Day(1, switch=ONCE)
    places = _every_place(
        opened,
        lambda table: older.opening(table, 0),
        lambda table: older.closing(table, 0),
        lambda table: other(table, 1),
    )
    for where, rows, (slow, quick) in places:
        assert (rows, quick) == (left, ""), f"it stood {where}: {rows}"
        assert slow in ("", *refusals), where


@pytest.mark.parametrize("switch", ["at the end", ONCE])
def test_a_younger_run_that_fills_the_day_at_once_is_slow(opened: tuple[Warehouse, Warehouse], switch: str) -> None:
    older, younger = Day(1, switch=switch), Day(2, switch=ONCE)
    places = _every_place(
        opened,
        lambda table: older.opening(table, 1),
        lambda table: younger.both(table, 0),
        lambda table: older.closing(table, 1),
    )
    for where, rows, (slow, quick) in places:
        assert (rows, slow) == (DAY, ""), f"the younger one stood {where}: {rows}"
        assert quick in ("", REFUSED), where


def test_two_runs_take_a_table_over_at_the_same_time(opened: tuple[Warehouse, Warehouse]) -> None:
    """Of two days: a run that replaces owned it before. Both close, and neither forgets what the other has claimed."""
    first, second = Day(3), Day(4, "2026-03-02")
    places = _every_place(
        opened,
        lambda table: table.apply(0, ("old", 0.5), 1, 1),
        lambda table: first.both(table, 0),
        lambda table: second.both(table, 1),
    )
    for where, rows, told in places:
        assert (rows, told) == ([(3, "2026-03-01"), (4, "2026-03-02")], ("", "")), f"the first one stood {where}"


# --- rows that are updated by their keys --------------------------------------------------------------------------------

COLUMNS_OF_UPSERTS = {"a": "bigint", "who": "text", "at": "bigint"}


def _update(table: Table, which: int, at: int | None, version: str | None = "at") -> None:
    """Two rows; only begin the run without a version of them."""
    uid = f"run{which} {table.name}"
    writer = TableWriter("wh", table.name, COLUMNS_OF_UPSERTS, ("a",), mode="upsert", version=version)
    rows = pa.table({"a": [1, 2], "who": [f"run{which}"] * 2, "at": [at, at]})
    number, records, kind = (1, pa.table({}), "begin") if at is None else (2, rows, "insert")
    action = WriteAction(uid, "publish", "wh", number, 1, records, {"action": kind})
    table.opened[which].apply(Marker(uid, "publish", "wh", 0, 1, float(which)), writer, [action])


@pytest.mark.parametrize(("slow", "quick"), [(5, 6), (6, 5), (5, 5)])
def test_a_slow_update_beside_another_runs(opened: tuple[Warehouse, Warehouse], slow: int, quick: int) -> None:
    """Of the same keys, new in the table. The greater version is left; of two unlike rows of one version, the second one is
    refused, and never lost without a word: shows a comparison that comes before the rows are locked."""

    def begin(table: Table) -> None:
        _update(table, 0, None)
        _update(table, 1, None)

    places = _every_place(opened, begin, lambda table: _update(table, 0, slow), lambda table: _update(table, 1, quick))
    seen = set()
    for where, rows, told in places:
        if slow != quick:
            who = "run0" if slow > quick else "run1"
            assert (rows, told) == ([(1, who), (2, who)], ("", "")), f"the slow one stood {where}: {rows}"
            continue
        assert sorted(told) == ["", REFUSED], where
        who = f"run{told.index('')}"
        assert rows == [(1, who), (2, who)], where
        seen.add(who)
    assert slow != quick or seen == {"run0", "run1"}, "it stood before the other one's commit, and behind it"


def test_a_slow_update_without_a_version_is_shut_out_by_a_newer_run(opened: tuple[Warehouse, Warehouse]) -> None:
    def newer(table: Table) -> None:
        _update(table, 1, None, None)
        _update(table, 1, 1, None)

    places = _every_place(
        opened, lambda table: _update(table, 0, None, None), lambda table: _update(table, 0, 9, None), newer
    )
    for where, rows, (slow, quick) in places:
        assert (rows, quick) == ([(1, "run1"), (2, "run1")], ""), f"it stood {where}: {rows}"
        assert slow in ("", REFUSED), where
