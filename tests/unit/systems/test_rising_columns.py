"""How far a table can be read by its numbers: no row appears later at or below what was settled."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from airflow_logio.dataflow.sources.connected import Settled
from airflow_logio.errors import ConfigurationError, SourceChanged
from airflow_logio.systems import rising_columns
from airflow_logio.systems.rising_columns import FollowedColumn, rising_column
from airflow_logio.systems.warehouse import Warehouse
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(120)]

IDENTITY = "id bigint GENERATED ALWAYS AS IDENTITY"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rising_columns, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(rising_columns, "LONGEST_PAUSE_SECONDS", 0.02)


@pytest.fixture
def warehouse(postgres_url: str) -> Iterator[Warehouse]:
    made = Warehouse("wh", postgres_url)
    yield made
    made.close()


def column(warehouse: Warehouse, table: str = "t", by: str = "id", *, append_only: bool = True) -> FollowedColumn:
    return rising_column(warehouse, table, by, append_only=append_only)


@contextmanager
def session(url: str) -> Iterator[Any]:
    """A cursor in a transaction that the test ends."""
    connection = psycopg2.connect(url)
    try:
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


@pytest.mark.parametrize("ending", ["commit", "rollback", "prepare", "to a savepoint"])
def test_a_smaller_number_that_is_not_committed_is_waited_for(
    warehouse: Warehouse,
    postgres_url: str,
    ending: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rising_columns, "TOLD_AFTER_SECONDS", 0.0)
    change(postgres_url, f"CREATE TABLE t ({IDENTITY}, note text)")
    rising = column(warehouse)
    assert rising.settled(None) == Settled(None)
    with session(postgres_url) as slow:
        slow.execute("INSERT INTO t (note) VALUES ('slow')")
        change(postgres_url, "INSERT INTO t (note) VALUES ('fast'), ('fast')")
        with caplog.at_level(logging.WARNING):
            assert rising.settled(None) is None
        pid = slow.connection.info.backend_pid
        assert f"for the transaction of pid {pid}, begun at 20" in caplog.text
        change(postgres_url, "INSERT INTO t (note) VALUES ('later')")  # no session waits for the source
        if ending == "prepare":
            slow.execute("PREPARE TRANSACTION 'two phases'")
            assert [rising.settled(None) for _ in range(3)] == [None] * 3
            assert column(warehouse).settled(None) is None, "who asks first when it is prepared waits as well"
            slow.connection.rollback()
            slow.connection.autocommit = True
            slow.execute("COMMIT PREPARED 'two phases'")
        elif ending == "to a savepoint":
            slow.execute("SAVEPOINT s; INSERT INTO t (note) VALUES ('gone'); ROLLBACK TO s")
            assert rising.settled(None) is None
            slow.connection.commit()
        else:
            getattr(slow.connection, ending)()
    assert rising.settled(None) == Settled(3)
    expected = 2 if ending == "rollback" else 3
    assert rising.behind(None, 3, 10) == (3, expected)
    assert rising.behind(None, 3, 2) == (2 if expected == 3 else 3, 2)
    assert rising.behind(3, 3, 2) is None
    assert rising.settled(3) == Settled(4), "what came while it waited is settled by the next question"


def test_who_writes_is_asked_behind_the_largest_number(
    warehouse: Warehouse, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between both questions one draws a number and does not commit, and another one commits the next: asked the other way
    round, the second is settled and the first is never read."""
    change(postgres_url, f"CREATE TABLE t ({IDENTITY}, note text); INSERT INTO t (note) VALUES ('early')")
    with session(postgres_url) as slow:
        asked: list[str] = []

        def watched(name: str) -> Any:
            real = getattr(rising_columns, name)

            def ask(*arguments: Any) -> Any:
                found = real(*arguments)
                asked.append(name)
                if len(asked) == 1:
                    slow.execute("INSERT INTO t (note) VALUES ('slow')")
                    change(postgres_url, "INSERT INTO t (note) VALUES ('fast')")
                return found

            return ask

        for name in ("largest", "writers_of"):
            monkeypatch.setattr(rising_columns, name, watched(name))
        rising = column(warehouse)
        assert rising.settled(None) in (None, Settled(1)), "a row whose number is smaller is not committed yet"
        assert asked[:2] == ["largest", "writers_of"]
        slow.connection.commit()
    settled = rising.settled(None)
    assert settled == Settled(1) and rising.behind(None, 1, 10) == (1, 1)
    assert rising.settled(1) == Settled(3) and rising.behind(1, 3, 10) == (3, 2)


def test_writers_of_partitions_and_of_what_is_above_them_are_waited_for(
    warehouse: Warehouse, postgres_url: str
) -> None:
    """A number is drawn before the row finds its partition, and one may insert into the partition itself."""
    change(
        postgres_url,
        "CREATE TABLE t (id bigserial, part int) PARTITION BY LIST (part);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1) PARTITION BY LIST (id); CREATE TABLE t11 PARTITION OF t1 DEFAULT;"
        "CREATE TABLE t2 PARTITION OF t DEFAULT; INSERT INTO t (part) VALUES (1)",
    )
    for read, written, waits in (("t", "t11", True), ("t11", "t", True), ("t1", "t1", True), ("t2", "t11", False)):
        change(postgres_url, f"INSERT INTO {read} (part) VALUES ({2 if read == 't2' else 1})")
        with session(postgres_url) as slow:
            slow.execute(f"INSERT INTO {written} (part) VALUES (1)")
            rising = column(warehouse, read)
            assert (rising.settled(None) is None) == waits, (read, written)
            slow.connection.commit()
        assert rising.settled(None) is not None


def test_readers_and_other_tables_are_not_waited_for(warehouse: Warehouse, postgres_url: str) -> None:
    change(postgres_url, f"CREATE TABLE t ({IDENTITY}); CREATE TABLE other (id int); INSERT INTO t DEFAULT VALUES")
    with session(postgres_url) as reader:
        reader.execute("SELECT * FROM t FOR SHARE; INSERT INTO other VALUES (1)")
        assert column(warehouse).settled(None) == Settled(1)


def _write(url: str, number: int, ended: threading.Event) -> None:
    """Rows one after the other, and a pause before they are committed, rolled back, or prepared and committed."""
    luck = random.Random(number)
    with session(url) as cursor:
        while not ended.is_set():
            for _ in range(luck.randint(1, 3)):
                cursor.execute(
                    "INSERT INTO t (writer) SELECT %s FROM generate_series(1, %s)", (number, luck.randint(1, 4))
                )
                time.sleep(luck.choice((0, 0, 0.001, 0.03)))
            how = luck.choice(("commit", "commit", "rollback", "prepare"))
            if how != "prepare":
                getattr(cursor.connection, how)()
                continue
            cursor.execute(f"PREPARE TRANSACTION 'w{number}'")
            time.sleep(0.01)
            cursor.connection.rollback()
            cursor.connection.autocommit = True
            cursor.execute(f"COMMIT PREPARED 'w{number}'")
            cursor.connection.autocommit = False


def test_nothing_appears_below_what_was_settled_while_many_write(warehouse: Warehouse, postgres_url: str) -> None:
    change(postgres_url, f"CREATE TABLE t ({IDENTITY} PRIMARY KEY, writer int)")
    ended = threading.Event()

    threads = [threading.Thread(target=_write, args=(postgres_url, number, ended)) for number in range(5)]
    for thread in threads:
        thread.start()
    seen: dict[int, list[int]] = {}
    rising, read, after = column(warehouse), [], None
    try:
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < 4 or (len(seen) <= 5 and waited < 40):  # on a slow machine, longer
            settled = rising.settled(after)
            if settled is None or settled.number in (None, after):
                continue
            seen[settled.number] = [
                row[0] for row in rows_of(postgres_url, f"SELECT id FROM t WHERE id <= {settled.number}")
            ]
            while (found := rising.behind(after, settled.number, 50)) is not None:
                rows = rows_of(postgres_url, f"SELECT id FROM t WHERE id > {after or 0} AND id <= {found[0]}")
                assert len(rows) == found[1]
                read += [row[0] for row in rows]
                after = found[0]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    final = sorted(row[0] for row in rows_of(postgres_url, "SELECT id FROM t"))
    assert len(seen) > 5
    for number, ids in seen.items():
        assert sorted(ids) == [one for one in final if one <= number]
    assert after is not None and sorted(read) == [one for one in final if one <= after]


REFUSED = (
    ("CREATE TABLE t (id bigint NOT NULL)", "has no sequence as its default"),
    ("CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY (CACHE 20))", r"whose sequence t_id_seq has CACHE 20"),
    ("CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY (INCREMENT -1))", "falls, or begins anew"),
    ("CREATE TABLE t (id int GENERATED BY DEFAULT AS IDENTITY (CYCLE))", "falls, or begins anew"),
    ("CREATE UNLOGGED TABLE t (id bigserial)", "is not logged: a crash of the server empties it"),
    ("CREATE SEQUENCE s; CREATE TABLE t (id bigint DEFAULT nextval('s'))", "may have rows without id"),
    ("CREATE SEQUENCE s; CREATE TABLE t (id bigint NOT NULL DEFAULT nextval('s') % 10)", r"fills it by \(nextval\("),
    (
        "CREATE TABLE a (id bigserial); CREATE VIEW t AS SELECT * FROM a",
        "is a view: it is not known here which transactions write to it",
    ),
    ("CREATE TABLE t (id text)", "which is text: it must be a column of whole numbers"),
    ("CREATE TABLE t (number int)", "has no column 'id', by which it is read"),
    ("SELECT 1", "table 't' is not in connection 'wh'"),
    (
        "CREATE TABLE t (id bigserial) PARTITION BY RANGE (id); CREATE TABLE p (id bigserial);"
        "ALTER TABLE t ATTACH PARTITION p DEFAULT",
        r"has several sequences \(p_id_seq, t_id_seq\)",
    ),
)


@pytest.mark.parametrize(("made", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_gives_no_rising_numbers_is_refused(warehouse: Warehouse, postgres_url: str, made: str, says: str) -> None:
    change(postgres_url, made)
    with pytest.raises(ConfigurationError, match=says):
        column(warehouse).check()
    with pytest.raises(ConfigurationError, match=says):
        column(warehouse).settled(None)


def test_a_sequence_that_is_altered_while_a_run_lasts_is_noticed(warehouse: Warehouse, postgres_url: str) -> None:
    change(postgres_url, "CREATE TABLE t (id serial); INSERT INTO t DEFAULT VALUES")
    rising = column(warehouse)
    assert rising.settled(None) == Settled(1)
    change(postgres_url, "ALTER SEQUENCE t_id_seq CACHE 5")
    with pytest.raises(ConfigurationError, match="has CACHE 5"):
        rising.settled(1)


def test_numbers_that_are_right(warehouse: Warehouse, postgres_url: str) -> None:
    change(postgres_url, 'CREATE TABLE a ("Id" serial PRIMARY KEY); CREATE TABLE b (id smallserial, PRIMARY KEY (id))')
    change(
        postgres_url, "CREATE SCHEMA x; CREATE SEQUENCE x.s; CREATE TABLE x.c (id int NOT NULL DEFAULT nextval('x.s'))"
    )
    assert column(warehouse, "a", "Id").check() is None
    assert column(warehouse, "b").check() is None
    assert "has no index that begins with 'id'" in str(column(warehouse, "x.c").check())
    change(postgres_url, "CREATE TABLE below (id int GENERATED ALWAYS AS IDENTITY (MINVALUE -9 START -9), n int)")
    change(postgres_url, "INSERT INTO below (n) VALUES (1), (2)")
    assert column(warehouse, "below").settled(None) == Settled(-8)
    assert column(warehouse, "below").behind(-9, -8, 10) == (-8, 1)


def test_a_user_that_may_only_read_the_table_follows_it(warehouse: Warehouse, postgres_url: str) -> None:
    """It may neither ask the sequence, nor see since when transactions of others last."""
    change(postgres_url, f"CREATE TABLE t ({IDENTITY}, n int); DROP ROLE IF EXISTS reader; CREATE ROLE reader LOGIN")
    change(postgres_url, "GRANT SELECT ON t TO reader; INSERT INTO t (n) VALUES (1)")
    reader = Warehouse("wh", postgres_url.replace("postgres@", "reader@"))
    rising = column(reader)
    assert rising.check() is not None
    with session(postgres_url) as slow:
        slow.execute("INSERT INTO t (n) VALUES (2)")
        assert rising.settled(None) is None
        slow.connection.commit()
    assert rising.settled(None) == Settled(1)
    assert rising.behind(None, 1, 10) == (1, 1)
    reader.close()
    change(postgres_url, "DROP OWNED BY reader; DROP ROLE reader")


@pytest.mark.parametrize(
    ("done", "append_only", "says"),
    [
        (
            "INSERT INTO t (id) VALUES (900)",
            False,
            r"has id = 900, or had it .* last number of its sequence is 3: rows to come",
        ),
        ("ALTER SEQUENCE t_id_seq RESTART", False, r"has id = 3, or had it when it was read, and the last .* is none"),
        ("TRUNCATE t RESTART IDENTITY", False, "has id = 3, or had it when it was read"),
        ("DELETE FROM t WHERE id = 3", True, r"was read up to id = 3, and its largest id is 2 now: rows were deleted"),
        ("DELETE FROM t", False, None),
    ],
)
def test_a_table_that_begins_anew_is_noticed(
    warehouse: Warehouse, postgres_url: str, done: str, append_only: bool, says: str | None
) -> None:
    change(postgres_url, "CREATE TABLE t (id serial); INSERT INTO t SELECT FROM generate_series(1, 3)")
    rising = column(warehouse, append_only=append_only)
    assert rising.settled(None) == Settled(3)
    change(postgres_url, done)
    if says is None:
        assert rising.settled(3) == Settled(None)
        return
    with pytest.raises(SourceChanged, match=says):
        rising.settled(3)


def test_an_sqlite_file_is_read_by_the_number_of_its_rows(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    warehouse = Warehouse("wh", url)
    change(url, "CREATE TABLE t (id INTEGER PRIMARY KEY, n INT)")
    change(url, "CREATE TABLE safe (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    change(url, "CREATE TABLE wide (id INTEGER PRIMARY KEY) WITHOUT ROWID")
    change(url, "INSERT INTO t (n) VALUES (7), (8), (9)")
    assert column(warehouse).settled(None) == Settled(3)
    assert column(warehouse).behind(1, 3, 1) == (2, 1)
    assert column(warehouse, "safe", append_only=False).settled(None) == Settled(None)
    for table, by, append_only, says in (
        ("t", "n", True, "which is not its INTEGER PRIMARY KEY"),
        ("wide", "id", True, "which is not its INTEGER PRIMARY KEY"),
        ("t", "id", False, "gives the number of a deleted last row to the next one"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            column(warehouse, table, by, append_only=append_only).check()
    warehouse.close()
