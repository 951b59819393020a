"""Rows of tables as DataFrames, in a real Spark session: one snapshot for all tasks, as plain SQL tells them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_logio import TableRead, databases
from airflow_logio.errors import ConfigurationError, ExternalUnavailable
from airflow_logio.spark import dataset_jobs, row_readers
from airflow_logio.spark.row_readers import TableRows, rows_frame
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.warehouse import Warehouse
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import PostgresServer, idle_for_long
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(240)]

PASSWORD = "open-sesame-3321"
MANY_TYPES = """
    CREATE TABLE sales AS
    SELECT i::bigint AS id, (i % 7)::int AS store, (i / 4.0)::numeric(12, 2) AS price, i::numeric AS loose, i * 0.5 AS half,
        CASE WHEN i % 3 = 0 THEN NULL ELSE 'Köln ' || i END AS city, i % 2 = 0 AS even,
        TIMESTAMP '2024-03-31 02:30:00.123456' + i * interval '1 hour' AS wall,
        TIMESTAMPTZ '2024-03-31 02:30:00.123456+02' + i * interval '1 hour' AS at, DATE '1582-10-04' + i AS day,
        json_build_object('i', i) AS j, gen_random_uuid() AS u, convert_to('x' || i, 'UTF8') AS raw
    FROM generate_series(1, 5000) AS i
"""


class Place:
    """Where a test reads from, and with what."""

    def __init__(self, spark: Any, epoch: EpochPayloads, url: str) -> None:
        self.spark, self.epoch, self.url = spark, epoch, url
        self.warehouse = Warehouse("wh", url)

    def rows(self, table: str, *columns: str, **how: Any) -> AbstractContextManager[Any]:
        return rows_frame(self.spark, self.epoch, self.warehouse, self.url, TableRows(table, columns, **how))

    def files(self) -> list[Path]:
        return [path for path in Path(self.epoch.root).rglob("*") if path.is_file()]


@pytest.fixture
def place(
    spark: Any,
    epoch: EpochPayloads,
    postgres_server: PostgresServer,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    """With a password, for which the server does not ask; a task for each ten blocks, or hundred numbers."""
    monkeypatch.setattr(row_readers, "BLOCKS_PER_TASK", 10)
    monkeypatch.setattr(row_readers, "NUMBERS_PER_TASK", 100)
    made = Place(spark, epoch, postgres_server.url(postgres_url.rpartition("/")[2], password=PASSWORD))
    yield made
    made.warehouse.close()


def test_tasks_read_one_snapshot_of_a_table_that_changes_under_them(place: Place, event_log: Path) -> None:
    change(place.url, MANY_TYPES)
    expected = rows_of(place.url, "SELECT * FROM sales ORDER BY id")
    fetched = place.warehouse.read(TableRead("wh", "sales"))
    with place.rows("sales") as frame:
        assert 1 < frame.rdd.getNumPartitions() <= 16
        change(place.url, "DELETE FROM sales WHERE id % 2 = 0")
        first = frame.toArrow().sort_by("id")
        change(place.url, "UPDATE sales SET city = 'gone', id = id + 10000")
        change(place.url, "INSERT INTO sales (id) SELECT generate_series(50000, 60000)")
        again = frame.toArrow().sort_by("id")
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):  # it is not written anew meanwhile
            change(place.url, "SET LOCAL lock_timeout = '100ms'; TRUNCATE sales")
        [url] = place.files()
        assert url.stat().st_mode & 0o777 == 0o600
    with place.warehouse.engine.begin() as connection:  # which is given back as it was
        connection.execute(sa.text("CREATE TABLE written (id int)"))
    assert first.equals(again)
    as_read = dataset_jobs.frame_of_table(place.spark, fetched).toArrow().sort_by("id")
    assert first.schema == as_read.schema
    assert first.equals(as_read)
    plain = first.select(["id", "store", "price", "city", "even", "day", "u"]).to_pylist()
    assert [tuple(row.values()) for row in plain] == [(*row[:3], *row[5:7], row[9], str(row[11])) for row in expected]
    assert not place.files()
    assert rows_of(place.url, "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in tr%'") == [(0,)]
    assert not [path for path in event_log.rglob("events*") if path.is_file() and PASSWORD in path.read_text()]


def test_parts_of_views_partitions_and_ranges_are_the_whole(place: Place) -> None:
    change(
        place.url,
        "CREATE TABLE t (id bigint, part int) PARTITION BY LIST (part); CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1);"
        "CREATE TABLE t2 PARTITION OF t DEFAULT; CREATE VIEW v AS SELECT id * 2 AS twice, id FROM t;"
        "INSERT INTO t SELECT i - 300, i % 3 FROM generate_series(0, 900) AS i; INSERT INTO t VALUES (NULL, 1), (NULL, 2);"
        "CREATE TABLE nothing (id int)",
    )
    for table, how, parts, where in (
        ("t", {}, 1, ""),
        ("public.t", {"by": "id"}, 10, ""),
        ("v", {}, 1, ""),
        ("v", {"by": "twice"}, 16, ""),
        ("t", {"by": "id", "where": lambda t: sa.and_(t.c.id > 100, t.c.id <= 350)}, 3, "WHERE id > 100 AND id <= 350"),
        ("nothing", {}, 1, ""),
        ("nothing", {"by": "id"}, 1, ""),
    ):
        with place.rows(table, "id", **how) as frame:
            assert frame.rdd.getNumPartitions() == parts, (table, how)
            found = sorted((row.id for row in frame.collect()), key=str)
        assert found == sorted((row[0] for row in rows_of(place.url, f"SELECT id FROM {table} {where}")), key=str)


def test_a_snapshot_that_is_gone_fails_the_whole(place: Place) -> None:
    change(place.url, MANY_TYPES)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
    with (
        pytest.raises(
            ExternalUnavailable, match=r"table 'sales' of connection 'wh', .*: the snapshot in which all of it"
        ),
        place.rows("sales") as frame,
    ):
        assert rows_of(place.url, end) == [(True,)]
        frame.toArrow()
    with place.rows("sales") as frame:
        assert frame.count() == 5000
        assert rows_of(place.url, end) == [(True,)]
    assert not place.files(), "a session that ended when everything was read is no failure"


def test_what_cannot_be_read_is_named_and_errors_of_others_come_out_as_they_are(place: Place) -> None:
    change(
        place.url,
        "CREATE TABLE odd AS SELECT 1::numeric(9, 2) AS a, 1::numeric(50, 3) AS big, now() AS at, "
        "interval '1 month' AS span FROM generate_series(1, 700); "
        "INSERT INTO odd VALUES ('NaN', 1, now())",
    )
    nan = r"table 'odd' of connection 'wh', column 'a', row 700 of those read \(counted from 0\): NaN is no decimal"
    with pytest.raises(ConfigurationError, match=nan), place.rows("odd", "a") as frame:
        frame.toArrow()
    for columns, how, says in (
        (("big",), {}, r"has column 'big' of type decimal\(50,3\), and a decimal of Spark has at most 38"),
        (("span",), {}, "'odd' of connection 'wh', column 'span': the database has it as interval, which no type of"),
        (("b",), {}, r"table 'odd' of connection 'wh' has no column 'b'"),
        (("a",), {"by": "at"}, "is read by column 'at', which is timestamptz, and no whole number"),
        (("a",), {"by": "c"}, "has no column 'c', by which it is read"),
    ):
        with pytest.raises(ConfigurationError, match=says), place.rows("odd", *columns, **how):
            pass
    with pytest.raises(ConfigurationError, match="table 'gone' is not in connection 'wh'"), place.rows("gone"):
        pass
    with pytest.raises(ValueError, match="mine"), place.rows("odd", "a"):
        raise ValueError("mine")
    assert not place.files()


def test_what_executors_may_not_be_told_the_driver_reads_however_long_its_files_take(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a bucket: its rows are one file then, of the snapshot in which the read began."""
    change(
        place.url, "CREATE TABLE sales AS SELECT i::bigint AS id, 'n' || i AS name FROM generate_series(1, 30000) AS i"
    )
    monkeypatch.setattr(row_readers, "may_hand", lambda _: False)
    monkeypatch.setattr(databases, "IDLE_IN_TRANSACTION_SECONDS", 0.2)
    place.warehouse = Warehouse("wh", place.url)
    written = dataset_jobs.written_by_driver

    def slowly(session: Any, payloads: Any, where: str, purpose: str, tables: Iterator[Any]) -> Any:
        first = [next(tables), next(tables)]
        change(place.url, "DELETE FROM sales WHERE id > 10")
        idle_for_long(place.url)
        return written(session, payloads, where, purpose, chain(first, tables))

    monkeypatch.setattr(row_readers, "written_by_driver", slowly)
    with place.rows("sales", "id", by="id") as frame:
        assert frame.rdd.getNumPartitions() == 1
        assert sorted(row.id for row in frame.collect()) == list(range(1, 30_001))
    with pytest.raises(ConfigurationError, match="which is text, and no whole number"), place.rows("sales", by="name"):
        pass
    assert not place.files()


def test_through_a_pooler_that_gives_one_session_to_many(spark: Any, epoch: EpochPayloads, postgres_url: str) -> None:
    change(postgres_url, MANY_TYPES)
    with pgbouncer(postgres_url, pool_mode="transaction") as through:
        place = Place(spark, epoch, through)
        with place.rows("sales", "id", by="id") as frame:
            change(postgres_url, "DELETE FROM sales")
            assert frame.count() == 5000
        place.warehouse.close()


def test_rows_of_sqlite_pass_through_the_driver_in_pieces(spark: Any, epoch: EpochPayloads, tmp_path: Path) -> None:
    place = Place(spark, epoch, f"sqlite:///{tmp_path}/shop.db")
    change(place.url, "CREATE TABLE sales (id INTEGER PRIMARY KEY, at TIMESTAMP, price DECIMAL_TEXT(9, 2), note TEXT)")
    change(
        place.url,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000) "
        "INSERT INTO sales SELECT i, '2024-03-31 02:30:00', i || '.25', 'n' || i FROM n",
    )
    with place.rows("sales", where=lambda t: t.c.id > 10) as frame:
        change(place.url, "DELETE FROM sales WHERE id > 20000")
        found = frame.orderBy("id").toArrow()
        fetched = place.warehouse.read(TableRead("wh", "sales"))
        assert frame.count() == 29_990
    shown = found.slice(0, 19_990)
    expected = dataset_jobs.frame_of_table(spark, fetched.slice(10)).toArrow()
    assert shown.schema == expected.schema
    assert shown.equals(expected)
    assert not place.files()
    change(place.url, "UPDATE sales SET price = 'dear' WHERE id = 5000")
    with pytest.raises(ConfigurationError, match=r"column 'price', row 4999 of those read"), place.rows("sales"):
        pass
    assert not place.files()
    place.warehouse.close()
