"""Rows of a table that are updated by their keys: the greatest version wins, or the last event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import Fenced, WriteRefused
from airflow_logio.systems.warehouse import Warehouse
from tests.support.upserts import BY_VERSION, COLUMNS, LAST_WINS, Run, contents, execute, greatest

NEW, OLD = Run("new", 2.0), Run("old", 1.0)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/wh.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def warehouse(url: str) -> Iterator[Warehouse]:
    opened = Warehouse("wh", url)
    yield opened
    opened.close()


def test_the_greatest_version_of_each_key_is_left(warehouse: Warehouse) -> None:
    NEW.write(warehouse, (1, 10, "a"), (2, 10, "b"), (1, 11, "c"), (1, 9, "d"))
    assert contents(warehouse) == [(1, 11, "c"), (2, 10, "b")]
    NEW.apply(warehouse, {3: [(1, 5, "old"), (3, 1, "e")], 4: [(2, 11, "f"), (2, 11, "f")], 5: [(2, 10, "b")]})
    assert contents(warehouse) == [(1, 11, "c"), (2, 11, "f"), (3, 1, "e")]
    NEW.apply(warehouse, {4: [(2, 99, "again")], 5: [(2, 99, "again")]})
    assert contents(warehouse)[1] == (2, 11, "f")
    with pytest.raises(Fenced):
        replace(NEW, token=0).apply(warehouse, {6: [(1, 99, "zombie")]})


@pytest.mark.parametrize("seed", range(4))
def test_whatever_the_order_the_result_is_the_maximum(warehouse: Warehouse, seed: int) -> None:
    """Runs, slots, groups of write actions, repetitions after a kill, and rows that were there: as plain Python says."""
    random = Random(seed)
    there = [(number, random.randint(0, 20), "there") for number in range(0, 30, 3)]
    OLD.begin(warehouse)
    execute(warehouse, *(f"INSERT INTO t VALUES ({a}, {b}, '{c}')" for a, b, c in there))
    runs = [Run(f"run{n}", float(n), slot=n % 2) for n in range(2, 5)]
    written: list[tuple[Any, ...]] = []
    left = []
    for run in runs:
        run.begin(warehouse)
        rows = [[(key, at, f"{key}-{at}") for key, at in pairs(random)] for _ in range(8)]
        written += [row for event in rows for row in event]
        left.append((run, dict(enumerate(rows, 2))))
    while any(actions for _, actions in left):
        run, actions = random.choice([one for one in left if one[1]])
        group = dict(list(actions.items())[: random.randint(1, 4)])
        run.apply(warehouse, group)
        if random.random() < 0.7:  # else the log has not learnt of it
            for number in group:
                del actions[number]
    assert contents(warehouse) == greatest(*there, *written)


def pairs(random: Random) -> list[tuple[int, int]]:
    """Versions that no row of the table has, with their key in them: a version of a key has one row."""
    return [(random.randint(0, 30), 100 + random.randint(0, 50)) for _ in range(random.randint(1, 40))]


def test_equal_versions_of_unlike_rows_are_refused_with_what_differs(warehouse: Warehouse) -> None:
    NEW.write(warehouse, (1, 10, "a"))
    said = r"table 't', row with id = 1: two rows have version 'at' = 10, .* differ in who: .*Nothing is written"
    with pytest.raises(WriteRefused, match=said):
        NEW.apply(warehouse, {3: [(2, 1, "x")], 4: [(1, 10, "other")]})
    with pytest.raises(WriteRefused, match=said):
        NEW.apply(warehouse, {3: [(1, 10, None)]})
    with pytest.raises(WriteRefused, match=r"row with id = 7: two rows have version 'at' = 3"):
        NEW.apply(warehouse, {3: [(7, 3, "a"), (7, 3, "b"), (7, 2, "b")]})
    assert contents(warehouse) == [(1, 10, "a")]
    NEW.apply(warehouse, {3: [(7, 3, "a"), (7, 3, "b"), (7, 4, "c"), (1, 10, "a")]})  # neither is the greatest
    assert contents(warehouse) == [(1, 10, "a"), (7, 4, "c")]


@pytest.mark.parametrize("stored", ["NULL"])
def test_a_version_that_is_null_is_refused_where_it_is(warehouse: Warehouse, stored: str) -> None:
    with pytest.raises(WriteRefused, match=r"row with id = 2: its version 'at' is null"):
        NEW.write(warehouse, (1, 1, "a"), (2, None, "b"))
    NEW.write(warehouse, (1, 1, "a"))
    execute(warehouse, f"INSERT INTO t VALUES (5, {stored}, 'x')")
    with pytest.raises(
        WriteRefused, match=r"row with id = 5: the row in the table has version 'at' = None.*Give that row"
    ):
        NEW.apply(warehouse, {3: [(5, 9, "y")]})
    NEW.apply(warehouse, {3: [(4, 9, "y")]})
    assert contents(warehouse) == [(1, 1, "a"), (4, 9, "y"), (5, None, "x")]


def test_without_a_version_the_last_event_wins(warehouse: Warehouse) -> None:
    run = replace(NEW, writer=LAST_WINS)
    run.begin(warehouse)
    run.apply(warehouse, {2: [(1, 10, "a"), (2, 1, "b")], 3: [(1, 5, "c")], 4: [(1, 4, "d"), (3, 1, "e")]})
    assert contents(warehouse) == [(1, 4, "d"), (2, 1, "b"), (3, 1, "e")]
    with pytest.raises(WriteRefused, match=r"one event has 2 rows with id = 9, and nothing says which"):
        run.apply(warehouse, {5: [(9, 1, "x"), (8, 1, "x"), (9, 2, "y")]})
    with pytest.raises(WriteRefused, match=r"its key 'id' is null"):
        run.apply(warehouse, {5: [(None, 1, "x")]})
    assert len(contents(warehouse)) == 3


def test_without_a_version_a_newer_run_shuts_earlier_ones_out(warehouse: Warehouse) -> None:
    old, new = replace(OLD, writer=LAST_WINS), replace(NEW, writer=LAST_WINS)
    old.write(warehouse, (1, 1, "old"), (2, 1, "old"))
    new.write(warehouse, (1, 1, "new"))
    with pytest.raises(WriteRefused, match="belongs to run new"):
        old.apply(warehouse, {3: [(1, 1, "late")]})
    assert contents(warehouse) == [(1, 1, "new"), (2, 1, "old")]


def test_with_a_version_earlier_runs_write_on(warehouse: Warehouse) -> None:
    OLD.write(warehouse, (1, 1, "old"))
    NEW.write(warehouse, (1, 3, "new"))
    OLD.apply(warehouse, {3: [(1, 2, "late"), (2, 1, "late")]})
    assert contents(warehouse) == [(1, 3, "new"), (2, 1, "late")]
    late = replace(OLD, uid="older", started_at=0.5, writer=LAST_WINS)
    with pytest.raises(WriteRefused, match=r"run new writes to it as well.*must not put older rows over its rows"):
        late.begin(warehouse)


def test_a_run_that_replaces_begins_with_an_empty_table(warehouse: Warehouse) -> None:
    OLD.write(warehouse, (1, 9, "old"), (2, 9, "old"))
    run = replace(NEW, writer=TableWriter("wh", "t", COLUMNS, ("id",), "replace", mode="upsert", version="at"))
    run.write(warehouse, (1, 1, "a"), (1, 2, "b"))
    assert contents(warehouse) == [(1, 2, "b")]
    with pytest.raises(WriteRefused, match="belongs to run new"):
        OLD.apply(warehouse, {3: [(1, 99, "late")]})
    refuses = TableWriter("wh", "t", COLUMNS, ("id",), "error", mode="upsert", version="at")
    with pytest.raises(WriteRefused, match="is not empty"):
        Run("third", 3.0, refuses).begin(warehouse)


def test_a_run_that_was_given_up_is_shut_out(warehouse: Warehouse) -> None:
    OLD.write(warehouse, (1, 1, "old"))
    NEW.begin(warehouse, given_up=("old",))
    with pytest.raises((Fenced, WriteRefused)):
        OLD.apply(warehouse, {3: [(1, 99, "zombie")]})
    assert contents(warehouse) == [(1, 1, "old")]


# --- tables that are there --------------------------------------------------------------------------------------------


def test_a_table_without_the_key_is_refused_beforehand_with_what_makes_it(warehouse: Warehouse) -> None:
    execute(warehouse, "CREATE TABLE t (id BIGINT, at BIGINT, who TEXT)", "CREATE UNIQUE INDEX two ON t (id, at)")
    attempts: list[Callable[[], None]] = [lambda: NEW.begin(warehouse), lambda: warehouse.rehearse(BY_VERSION)]
    for attempt in attempts:
        with pytest.raises(
            WriteRefused, match=r"no unique index of exactly id, .*CREATE UNIQUE INDEX .*ON "
        ) as refused:
            attempt()
    statement = str(refused.value).partition(": CREATE")[2]
    execute(warehouse, f"CREATE{statement}")
    NEW.write(warehouse, (1, 1, "a"), (1, 2, "b"))
    assert contents(warehouse) == [(1, 2, "b")]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            "CREATE TABLE t (id BIGINT, at TEXT, who TEXT, UNIQUE (id))",
            "column 'at' is text, and a version is of a type",
        ),
        ("CREATE TABLE t (id BIGINT, who TEXT, UNIQUE (id))", "has no column 'at'"),
        ("CREATE VIEW t AS SELECT 1 AS id, 2 AS at, 'x' AS who", "is a view, which has no keys"),
    ],
)
def test_a_table_that_cannot_be_updated_is_refused_beforehand(warehouse: Warehouse, made: str, why: str) -> None:
    execute(warehouse, made)
    writer = TableWriter("wh", "t", None, ("id",), mode="upsert", version="at")
    run = replace(NEW, writer=writer)
    attempts: list[Callable[[], None]] = [lambda: run.begin(warehouse), lambda: warehouse.rehearse(writer)]
    for attempt in attempts:
        with pytest.raises(WriteRefused, match=why):
            attempt()


def test_columns_that_are_not_written_stay(warehouse: Warehouse) -> None:
    execute(warehouse, "CREATE TABLE t (id BIGINT PRIMARY KEY, at BIGINT, who TEXT, note TEXT DEFAULT 'ours')")
    writer = TableWriter("wh", "t", None, ("id",), mode="upsert", version="at")
    run = replace(NEW, writer=writer)
    run.write(warehouse, (1, 1, "a"))
    execute(warehouse, "UPDATE t SET note = 'kept'")
    run.apply(warehouse, {3: [(1, 2, "b"), (2, 1, "c")]})
    assert contents(warehouse) == [(1, 2, "b", "kept"), (2, 1, "c", "ours")]


def test_the_event_of_a_row_is_no_part_of_it(warehouse: Warehouse) -> None:
    """The same row, that comes with another event, is the same."""
    writer = TableWriter("wh", "t", COLUMNS, ("id",), mode="upsert", version="at", lineage_column="event")
    schema = pa.schema([*Run().schema, pa.field("event", pa.int64())])
    run = replace(NEW, writer=writer, schema=schema)
    run.write(warehouse, (1, 1, "a", 41))
    run.apply(warehouse, {3: [(1, 1, "a", 42), (2, 1, "a", 42)]})
    assert contents(warehouse) == [(1, 1, "a", 41), (2, 1, "a", 42)]


VERSIONS: dict[str, list[Any]] = {
    "int": [3, 1, 2],
    "double": [0.5, -1e300, 1e300],
    "decimal(38,3)": [
        Decimal(text)
        for text in (
            "9.5",
            "10.25",
            "-3",
            "12345678901234567890123456789012345.002",
            "12345678901234567890123456789012345.001",
        )
    ],
    "timestamp": [pa.scalar(n, pa.timestamp("us")).as_py() for n in (10**15, 10**15 + 1, -5)],
    "timestamptz": [pa.scalar(n, pa.timestamp("us", "UTC")).as_py() for n in (10**15, 10**15 + 1, 1)],
    "date": [pa.scalar(n, pa.date32()).as_py() for n in (20_000, 20_001, 3)],
}


@pytest.mark.parametrize("kind", VERSIONS)
def test_versions_are_compared_by_their_values(warehouse: Warehouse, kind: str) -> None:
    """A decimal is a text in SQLite, where 9.5 comes after 10.25."""
    writer = TableWriter("wh", "t", {"id": "bigint", "at": kind, "who": "text"}, ("id",), mode="upsert", version="at")
    run = replace(NEW, writer=writer)
    run.begin(warehouse)
    values = VERSIONS[kind]
    for number, value in enumerate(values, 2):
        table = pa.table({"id": [1], "at": [value], "who": [str(value)]})
        run.apply(warehouse, {number: table})
        run.apply(warehouse, {number: table})
    run.apply(
        warehouse, {len(values) + 2: pa.table({"id": [2] * len(values), "at": values, "who": ["x"] * len(values)})}
    )
    greatest_one = max(values)
    assert [row[2] for row in contents(warehouse)] == [str(greatest_one), "x"]
    with pytest.raises(WriteRefused, match="two rows have version"):
        run.apply(warehouse, {len(values) + 3: pa.table({"id": [1], "at": [greatest_one], "who": ["other"]})})


def test_a_key_of_several_columns_and_odd_names(warehouse: Warehouse) -> None:
    columns = {"a b": "text", "x%d": "date", "at": "bigint", 'sel"ect': "json"}
    columns = {name: kind for name, kind in columns.items() if '"' not in name} | {"select": "json"}
    writer = TableWriter("wh", "Order", columns, ("a b", "x%d"), mode="upsert", version="at")
    day = pa.array([1, 1, 2], pa.date32())
    run = replace(NEW, writer=writer)
    one = pa.table({"a b": ["k", "k", "k"], "x%d": day, "at": [1, 2, 1], "select": ['{"a": 1}', '{"a":2}', None]})
    run.apply(warehouse, {1: pa.table({}), 2: one})
    run.apply(warehouse, {3: one})
    with warehouse.engine.connect() as connection:
        assert connection.exec_driver_sql('SELECT count(*), max("at") FROM "Order"').one() == (2, 2)
    with pytest.raises(WriteRefused, match="differ in select"):
        run.apply(warehouse, {4: one.set_column(3, "select", pa.array([None, '{"a": 2}', None]))})


def test_a_table_of_keys_alone(warehouse: Warehouse) -> None:
    writer = TableWriter("wh", "t", {"a": "bigint", "b": "text"}, ("a", "b"), mode="upsert")
    run = replace(NEW, writer=writer)
    run.apply(
        warehouse, {1: pa.table({}), 2: pa.table({"a": [1, 1], "b": ["x", "y"]}), 3: pa.table({"a": [1], "b": ["x"]})}
    )
    assert contents(warehouse) == [(1, "x"), (1, "y")]


@pytest.mark.parametrize("writer", [BY_VERSION, LAST_WINS])
def test_a_row_that_the_database_refuses_is_named(warehouse: Warehouse, writer: TableWriter) -> None:
    run = replace(NEW, writer=writer)
    execute(warehouse, "CREATE TABLE t (id BIGINT PRIMARY KEY, at BIGINT, who TEXT CHECK (who <> 'bad'))")
    run.write(warehouse, (1, 1, "a"))
    with pytest.raises(WriteRefused, match=r"table 't', write action 4, row 1 \(counted from 0\)"):
        run.apply(warehouse, {3: [(1, 2, "b")], 4: [(1, 3, "c"), (2, 1, "bad")]})
    assert contents(warehouse) == [(1, 1, "a")]


def test_more_rows_than_a_statement_takes(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key twice in one event is found wherever the two are."""
    monkeypatch.setattr("airflow_logio.systems.databases.table_inserts.ROWS_PER_STATEMENT", 10)
    rows = [(n % 50, n, f"{n}") for n in range(105)]
    NEW.write(warehouse, *rows)
    assert contents(warehouse) == greatest(*rows)
    with pytest.raises(WriteRefused, match="one event has 3 rows with id = 0"):
        replace(NEW, uid="last", started_at=3.0, writer=LAST_WINS).write(warehouse, *rows[:101])


def test_a_rehearsal_updates_nothing(warehouse: Warehouse) -> None:
    NEW.write(warehouse, (1, 1, "a"))
    action = NEW.action(2, [(1, 2, "b"), (3, 1, "c")])
    warehouse.rehearse(BY_VERSION, [action])
    with pytest.raises(WriteRefused, match="two rows have version"):
        warehouse.rehearse(BY_VERSION, [NEW.action(2, [(1, 1, "b")])])
    assert contents(warehouse) == [(1, 1, "a")]


def test_two_runs_at_once_wait_for_no_circle(warehouse: Warehouse) -> None:
    """Rows of the same keys, in opposite orders: nothing is lost, and nothing is refused."""
    runs = [Run("a", 1.0), Run("b", 2.0)]
    for run in runs:
        run.begin(warehouse)
    failures: list[BaseException] = []

    def write(run: Run, order: int) -> None:
        try:
            for number in range(2, 12):
                rows = [(key, number * 10 + run.started_at, run.uid) for key in range(200)][::order]
                run.apply(warehouse, {number: [(a, int(b), c) for a, b, c in rows]})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(run, order)) for run, order in zip(runs, (1, -1), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert contents(warehouse) == [(key, 112, "b") for key in range(200)]
