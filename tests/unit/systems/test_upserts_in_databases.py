"""Rows that are updated by their keys, and what is special in a database: what it takes for equal, what else changes rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import WriteRefused
from airflow_logio.systems.warehouse import Warehouse
from tests.support.upserts import BY_VERSION, LAST_WINS, Run, contents, execute
from tests.support.waiting import eventually

UNDECLARED = TableWriter("wh", "t", None, ("id",), mode="upsert", version="at")
RUN = Run(writer=UNDECLARED)
TABLE = "CREATE TABLE t (id BIGINT PRIMARY KEY, at BIGINT, who TEXT)"
TWO = "two rows have version 'at' = 1"


@pytest.fixture
def server(postgres_url: str) -> Iterator[Warehouse]:
    opened = Warehouse("wh", postgres_url)
    yield opened
    opened.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Warehouse]:
    opened = Warehouse("wh", f"sqlite:///{tmp_path}/wh.db")
    yield opened
    opened.close()


def one(**values: Any) -> pa.Table:
    return pa.table({name: [value] for name, value in values.items()})


# --- PostgreSQL: what is equal ----------------------------------------------------------------------------------------


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("double precision", float("nan"), float("nan")),
        ("numeric", Decimal("1.5"), Decimal("1.50")),
        ("json", '{"a": 1}', '{"a": 1}'),
        ("jsonb", '{"a": 1, "b": 2}', '{"b": 2,   "a": 1}'),
        ("bigint[]", [1, None, 2], [1, None, 2]),
        ("char(3)", "abc", "abc"),
        ("bytea", b"\0a", b"\0a"),
        ("bytea", bytes(range(256)) * 1_000, bytes(range(256)) * 1_000),
        ("text", "x" * 100_000, "x" * 100_000),
        ("text", None, None),
        ("uuid", "7F3C1A50-0d5e-4b0a-9c57-1f2d3e4b5a6c", "7f3c1a50-0d5e-4b0a-9c57-1f2d3e4b5a6c"),
    ],
)
def test_rows_that_are_equal_in_everything_are_one(server: Warehouse, kind: str, first: Any, second: Any) -> None:
    execute(server, f"CREATE TABLE t (id bigint PRIMARY KEY, at bigint, who {kind})")
    RUN.apply(server, {1: pa.table({}), 2: one(id=1, at=1, who=first)})
    as_text = "SELECT CAST(who AS text) FROM t"
    with server.engine.connect() as connection:
        before = connection.exec_driver_sql(as_text).all()
    RUN.apply(server, {3: one(id=1, at=1, who=second)})
    with server.engine.connect() as connection:
        assert connection.exec_driver_sql(as_text).all() == before


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("kind", "first", "second"),
    [
        ("double precision", 0.0, -0.0),
        ("double precision", float("nan"), None),
        ("json", '{"a": 1}', '{"a":1}'),
        ("bigint[]", [1, 2], [2, 1]),
        ("text", "", None),
        ("numeric", Decimal("1.5"), Decimal("1.51")),
    ],
)
def test_rows_that_differ_in_a_bit_are_refused(server: Warehouse, kind: str, first: Any, second: Any) -> None:
    """Which of them is left would depend on which comes first."""
    execute(server, f"CREATE TABLE t (id bigint PRIMARY KEY, at bigint, who {kind})")
    RUN.apply(server, {1: pa.table({}), 2: one(id=1, at=1, who=first)})
    before = contents(server)
    with pytest.raises(WriteRefused, match=f"{TWO}.* differ in who"):
        RUN.apply(server, {3: one(id=1, at=1, who=second)})
    assert str(contents(server)) == str(before)


@pytest.mark.postgres
def test_a_key_in_another_spelling_is_refused_and_never_changed(server: Warehouse) -> None:
    """Zero has a sign in a double, and is the same key with either."""
    execute(server, "CREATE TABLE t (id double precision PRIMARY KEY, at bigint, who text)")
    RUN.apply(server, {1: pa.table({}), 2: one(id=0.0, at=1, who="x")})
    with pytest.raises(WriteRefused, match=r"in id\b.*another spelling"):
        RUN.apply(server, {3: one(id=-0.0, at=2, who="y")})
    with pytest.raises(WriteRefused, match=f"{TWO}.* differ in id"):
        RUN.apply(server, {3: one(id=-0.0, at=1, who="x")})
    RUN.apply(server, {3: one(id=-0.0, at=0, who="older"), 4: one(id=0.0, at=3, who="z")})
    assert str(contents(server)) == "[(0.0, 3, 'z')]"


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["double precision", "real", "numeric"])
def test_a_version_that_is_no_number_is_refused(server: Warehouse, kind: str) -> None:
    execute(server, f"CREATE TABLE t (id bigint PRIMARY KEY, at {kind}, who text)")
    with pytest.raises(WriteRefused, match="id = 1: its version 'at' is null or NaN"):
        RUN.apply(server, {1: pa.table({}), 2: one(id=1, at=float("nan"), who="x")})
    assert contents(server) == []
    execute(server, "INSERT INTO t VALUES (1, 'NaN', 'theirs'), (2, 'infinity', 'theirs')")
    with pytest.raises(WriteRefused, match="id = 1: the row in the table has version 'at' = NaN, with which none"):
        RUN.apply(server, {1: pa.table({}), 2: one(id=1, at=5.0, who="x")})
    RUN.apply(server, {1: pa.table({}), 2: one(id=2, at=5.0, who="x")})
    assert contents(server)[1][2] == "theirs"


# --- PostgreSQL: what else changes rows -------------------------------------------------------------------------------

_FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$"


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("when", "does", "why"),
    [
        ("BEFORE INSERT", "RETURN NULL;", "is not in the table after it was written"),
        ("BEFORE INSERT", "NEW.who := upper(NEW.who); RETURN NEW;", "other values than were written, in who"),
        ("BEFORE INSERT OR UPDATE", "NEW.at := NEW.at + 100; RETURN NEW;", "other values than were written, in at"),
        ("AFTER INSERT", "UPDATE t SET at = 1000 WHERE id = NEW.id AND at < 1000; RETURN NEW;", "were written, in at"),
        ("AFTER INSERT", "DELETE FROM t WHERE id = NEW.id; RETURN NEW;", "is not in the table"),
    ],
)
@pytest.mark.parametrize("writer", [UNDECLARED, LAST_WINS])
def test_a_trigger_that_drops_or_changes_rows_is_found(
    server: Warehouse, when: str, does: str, why: str, writer: TableWriter
) -> None:
    execute(server, TABLE, _FUNCTION.format(does), f"CREATE TRIGGER x {when} ON t FOR EACH ROW EXECUTE FUNCTION f()")
    with pytest.raises(WriteRefused, match=why):
        replace(RUN, writer=writer).write(server, (1, 5, "a"))
    assert contents(server) == []


@pytest.mark.postgres
def test_columns_that_the_database_fills_are_its_own(server: Warehouse) -> None:
    execute(
        server,
        "CREATE TABLE t (id bigint PRIMARY KEY, at bigint, who text, n bigint DEFAULT 0, twice bigint GENERATED ALWAYS AS "
        "(at * 2) STORED)",
        _FUNCTION.format("NEW.n := OLD.n + 1; RETURN NEW;"),
        "CREATE TRIGGER x BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION f()",
    )
    RUN.write(server, (1, 5, "a"))
    RUN.apply(server, {3: [(1, 6, "b")], 4: [(1, 4, "c")]})
    assert contents(server) == [(1, 6, "b", 1, 12)]


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("made", "why"),
    [
        ([TABLE, "CREATE TABLE below () INHERITS (t)"], "tables that inherit from it"),
        (["CREATE TABLE t (id bigint UNIQUE DEFERRABLE, at bigint, who text)"], "no unique index of exactly id"),
        (
            ["CREATE TABLE t (id bigint, at bigint, who text)", "CREATE UNIQUE INDEX ON t (id) WHERE at > 0"],
            "no unique index of exactly id",
        ),
        (
            ["CREATE TABLE t (id bigint, at bigint, who text)", "CREATE UNIQUE INDEX ON t (id) INCLUDE (at)"],
            "",
        ),
        (
            ["CREATE TABLE t (id text, at bigint, who text)", 'CREATE UNIQUE INDEX ON t (id COLLATE "C")'],
            "no unique index of exactly id",
        ),
        (["CREATE TABLE t (id bigint PRIMARY KEY, at bigint, who text) PARTITION BY HASH (id)"], ""),
    ],
)
def test_which_tables_can_be_updated(server: Warehouse, made: list[str], why: str) -> None:
    execute(server, *made)
    if "PARTITION BY" in made[0]:
        execute(
            server, *(f"CREATE TABLE t{n} PARTITION OF t FOR VALUES WITH (modulus 2, remainder {n})" for n in (0, 1))
        )
    if why:
        with pytest.raises(WriteRefused, match=why):
            RUN.begin(server)
        return
    RUN.write(server, (1, 1, "a"), (2, 2, "b"), (2, 3, "c"))
    RUN.apply(server, {3: [(1, 2, "d"), (2, 2, "e")]})
    assert contents(server) == [(1, 2, "d"), (2, 3, "c")]


@pytest.mark.postgres
def test_a_rehearsal_says_which_right_is_missing(server: Warehouse, postgres_url: str) -> None:
    execute(server, TABLE)
    RUN.begin(server)
    execute(
        server,
        "CREATE ROLE loader LOGIN PASSWORD 'x'",
        "GRANT SELECT, INSERT ON t TO loader",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON logio_marker, logio_owner TO loader",
    )
    try:
        with server.engine.connect() as connection:
            url = connection.engine.url.set(username="loader", password="x").render_as_string(hide_password=False)
        other = Warehouse("wh", url)
        try:
            with pytest.raises(WriteRefused, match="permission denied for table t"):
                other.rehearse(UNDECLARED)
        finally:
            other.close()
    finally:
        execute(server, "DROP OWNED BY loader", "DROP ROLE loader")


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        ("INSERT INTO t VALUES (1, 5, 'theirs')", "two rows have version 'at' = 5"),
        ("INSERT INTO t VALUES (1, 4, 'theirs')", ""),
        ("INSERT INTO t VALUES (1, 6, 'theirs')", ""),
        ("UPDATE t SET at = 5 WHERE id = 2", "two rows have version 'at' = 5"),
        ("DELETE FROM t WHERE id = 2", ""),
    ],
)
def test_what_commits_while_a_row_is_waited_for_is_compared(server: Warehouse, theirs: str, why: str) -> None:
    """Another transaction has put, changed or deleted a row of the same key, and commits when this one waits for it."""
    execute(server, TABLE, "INSERT INTO t VALUES (2, 1, 'there')")
    RUN.begin(server)
    told: list[BaseException] = []

    def write() -> None:
        try:
            RUN.apply(server, {2: [(1, 5, "mine"), (2, 5, "mine")]})
        except BaseException as error:
            told.append(error)

    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
    with server.engine.connect() as connection, server.engine.connect() as asking:
        connection.exec_driver_sql(theirs)
        thread = Thread(target=write)
        thread.start()
        eventually(lambda: asking.exec_driver_sql(waits).scalar_one() == 1)
        connection.commit()
        thread.join()
    if why:
        assert why in str(told[0])
    else:
        assert told == []
        mine = [(1, 5, "mine"), (2, 5, "mine")]
        assert contents(server) == ([(1, 6, "theirs"), mine[1]] if "6" in theirs else mine)


# --- SQLite -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("BEFORE INSERT ON t WHEN NEW.id = 1 BEGIN SELECT RAISE(IGNORE); END", "is not in the table after"),
        ("AFTER INSERT ON t BEGIN UPDATE t SET who = 'other'; END", "were written, in who"),
        ("AFTER INSERT ON t BEGIN UPDATE t SET at = 1000; END", "were written, in at"),
    ],
)
@pytest.mark.parametrize("writer", [BY_VERSION, LAST_WINS])
def test_a_trigger_of_sqlite_that_drops_or_changes_rows_is_found(
    file: Warehouse, does: str, why: str, writer: TableWriter
) -> None:
    execute(file, TABLE, f"CREATE TRIGGER x {does}")
    with pytest.raises(WriteRefused, match=why):
        replace(RUN, writer=writer).write(file, (1, 5, "a"))
    assert contents(file) == []


def test_keys_of_sqlite_are_compared_as_their_index_does(file: Warehouse) -> None:
    execute(file, "CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY, at BIGINT, who TEXT COLLATE NOCASE)")
    RUN.apply(file, {1: pa.table({}), 2: one(id="a", at=1, who="x")})
    with pytest.raises(WriteRefused, match=f"{TWO}.* differ in who"):
        RUN.apply(file, {3: one(id="a", at=1, who="X")})
    with pytest.raises(WriteRefused, match=r"in id\b.*another spelling"):
        RUN.apply(file, {3: one(id="A", at=2, who="y")})
    RUN.apply(file, {3: one(id="A", at=0, who="older"), 4: one(id="a", at=3, who="z")})
    both = pa.table({"id": ["b", "B"], "at": [1, 1], "who": ["x", "y"]})
    with pytest.raises(WriteRefused, match="one event has 2 rows"):
        last = TableWriter("wh", "t", None, ("id",), mode="upsert")
        Run("last", 9.0, last).apply(file, {1: pa.table({}), 2: both})
    assert contents(file) == [("a", 3, "z")]


def test_a_key_of_sqlite_that_puts_rows_away_is_refused(file: Warehouse) -> None:
    """The row of another key would go with no word, as it has the same value there."""
    execute(file, "CREATE TABLE t (id BIGINT PRIMARY KEY, at BIGINT, who TEXT UNIQUE ON CONFLICT REPLACE)")
    with pytest.raises(WriteRefused, match=r"ON CONFLICT REPLACE: .*one of another key"):
        Run(writer=BY_VERSION).write(file, (1, 10, "a"), (2, 10, "a"))


def test_a_key_of_sqlite_that_trims_is_refused(file: Warehouse) -> None:
    execute(file, "CREATE TABLE t (id TEXT COLLATE RTRIM PRIMARY KEY, at BIGINT, who TEXT)")
    with pytest.raises(WriteRefused, match="blanks at their ends"):
        RUN.begin(file)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TABLE t (id INTEGER PRIMARY KEY, at BIGINT, who TEXT)",
        "CREATE TABLE t (Id BIGINT, at BIGINT, who TEXT, PRIMARY KEY (Id)) WITHOUT ROWID",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, at INTEGER, who TEXT) STRICT",
        "CREATE TABLE logio_rows (id INTEGER PRIMARY KEY, at BIGINT, who TEXT)",
    ],
)
def test_tables_of_sqlite_that_have_no_common_index(file: Warehouse, made: str) -> None:
    execute(file, made)
    name = made.split()[2]
    run = replace(RUN, writer=TableWriter("wh", name, None, ("id",), mode="upsert", version="at"))
    run.write(file, (1, 1, "a"), (1, 2, "b"), (3, 1, "c"))
    run.apply(file, {3: [(1, 1, "d"), (3, 4, "e")]})
    assert contents(file, name) == [(1, 2, "b"), (3, 4, "e")]
    with pytest.raises(WriteRefused, match="its key 'id' is null"):
        run.apply(file, {4: [(None, 1, "x")]})


def test_times_and_decimals_of_sqlite_are_compared_by_what_they_are(file: Warehouse) -> None:
    """Another program has stored them in another form. A text that is no time is no version."""
    columns = {"id": "bigint", "at": "timestamp", "price": "decimal(10,2)"}
    run = replace(RUN, writer=TableWriter("wh", "t", columns, ("id",), mode="upsert", version="at"))
    run.begin(file)
    execute(
        file,
        "INSERT INTO t VALUES (1, '2026-03-01T10:00:00', '9.5'), (2, 'yesterday', '1.00'), (3, '2026-03-02', '1.00')",
    )

    def row(key: int, time: str, price: str) -> pa.Table:
        at = pa.array([time]).cast(pa.timestamp("us"))
        return pa.table({"id": [key], "at": at, "price": pa.array([Decimal(price)], pa.decimal128(10, 2))})

    run.apply(file, {2: row(1, "2026-03-01 10:00:00", "9.50"), 3: row(3, "2026-03-01 23:59:59", "2.00")})
    with pytest.raises(WriteRefused, match="differ in price"):
        run.apply(file, {4: row(1, "2026-03-01 10:00:00", "9.51")})
    with pytest.raises(WriteRefused, match=r"row with id = 2: the row in the table has version 'at' = yesterday"):
        run.apply(file, {4: row(2, "2026-03-01 10:00:00", "9.51")})
    run.apply(file, {4: row(1, "2026-03-01 10:00:01", "10.00")})
    assert contents(file)[0] == (1, "2026-03-01 10:00:01.000000", "10.00")
