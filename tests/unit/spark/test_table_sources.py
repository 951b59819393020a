"""Tables by a rising column as sources, in a real Spark session: every row once, whichever writes, and whichever dies."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from airflow_logio import DatasetWriter, RangeConnection, RangeSource, TableSource
from airflow_logio.crash import CrashPoint
from airflow_logio.databases import kept_open
from airflow_logio.driver import committer, source_reader
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, OperatorFailed, SourceChanged
from airflow_logio.protocol.values import Port
from airflow_logio.spark import row_readers, spark_effects, spark_files
from tests.support.waiting import eventually
from tests.support.warehouse import change, rows_of
from tests.unit.spark.test_chains import unchanged
from tests.unit.spark.test_spark_sources import Reading, kill

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(240)]

TABLE = "CREATE TABLE sales (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, cents int, note text)"
FILL = "INSERT INTO sales (cents, note) SELECT i % 100, 'n' || i FROM generate_series(1, {}) AS i"


class Shop(Reading):
    """A pipeline from table ``sales`` to folder ``out``."""

    def __init__(self, root: Path, sessions: SparkSessions, url: str, **how: Any) -> None:
        super().__init__(root, sessions, TableSource("warehouse", "sales", **how))
        self.warehouse = url
        self.pipeline.writer("save", DatasetWriter("lake", "out"), self.pipeline.operator("same", unchanged, self.raw))
        self.names = ("same", "save")

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.published("out"))


@pytest.fixture
def shop_url(postgres_url: str) -> str:
    change(postgres_url, TABLE)
    return postgres_url


DEATHS = (
    (source_reader, CrashPoint.AFTER_NEXT_ACTION, 1),
    (source_reader, CrashPoint.BEFORE_READ, 1),
    (spark_files, CrashPoint.AFTER_DATASET_JOB, 1),
    (source_reader, CrashPoint.AFTER_READ, 1),
    (committer, CrashPoint.AFTER_COMMIT, 2),
)
"""Before a range is logged, before and while it is read, and between its event and the next range."""


def test_a_run_reads_what_was_there_exactly_once_wherever_it_dies(
    tmp_path: Path, sessions: SparkSessions, shop_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that come when the run has begun are another run's: also for those who recover it."""
    change(shop_url, FILL.format(1000))
    change(shop_url, "INSERT INTO sales (cents) VALUES (NULL)")
    expected = rows_of(shop_url, "SELECT * FROM sales ORDER BY id")
    one = Shop(tmp_path, sessions, shop_url, rows_per_event=300, append_only=True)
    for module, point, nth in DEATHS:
        with monkeypatch.context() as patch:
            kill(patch, module, point, nth)
            one.die()
        if point is CrashPoint.BEFORE_READ:
            change(shop_url, FILL.format(50))
    one.finish()
    assert one.rows() == expected
    assert len(list((one.lake / "out" / "_logio").glob("*.json"))) == 4
    one.assert_nothing_left()


def test_what_was_deleted_or_added_behind_a_logged_range_is_noticed(
    tmp_path: Path, sessions: SparkSessions, shop_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(shop_url, FILL.format(500))
    one = Shop(tmp_path, sessions, shop_url, rows_per_event=300, append_only=True)
    with monkeypatch.context() as patch:
        kill(patch, source_reader, CrashPoint.AFTER_READ, 1)
        one.die()
    change(shop_url, "DELETE FROM sales WHERE id = 17")
    says = r"table 'sales' of connection 'warehouse', rows with id <= 300 had 300 rows there when .* and has 299 now"
    with pytest.raises(SourceChanged, match=says):
        one.run(*one.names)
    change(shop_url, "INSERT INTO sales OVERRIDING SYSTEM VALUE VALUES (17, 17, 'n17')")
    one.finish()
    assert one.rows() == rows_of(shop_url, "SELECT * FROM sales ORDER BY id")


WHERE_IT_CHANGES = {
    "between two ranges of a driver": (CrashPoint.BEFORE_READ, False, False),
    "when its driver has died before the next range": (CrashPoint.BEFORE_READ, True, True),
    "when its driver has died behind the event": (CrashPoint.BEFORE_NEXT_ACTION, True, False),
}


@pytest.mark.parametrize(("point", "dies", "store"), WHERE_IT_CHANGES.values(), ids=WHERE_IT_CHANGES)
def test_a_column_that_gets_another_type_in_the_middle_of_a_run_parks_its_group(
    point: CrashPoint,
    dies: bool,
    store: bool,
    tmp_path: Path,
    sessions: SparkSessions,
    shop_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its event does not get into the log: the writer is in another group, and could only refuse it for ever."""
    one = elsewhere(tmp_path, sessions, shop_url, store=store)
    says = (
        r"source 'raw', read action 3 after 0 records: the source has had .* id long, cents long, note string, and "
        r"now gets id long, cents decimal\(9,2\), note string: .*\. Make it return the columns it had, "
    )
    with monkeypatch.context() as patch:
        alter(patch, one, point, "ALTER TABLE sales ALTER COLUMN cents TYPE numeric(9, 2)", dies=dies)
        with pytest.raises(OperatorFailed if dies else SourceChanged, match="killed" if dies else says):
            one.run()
    with pytest.raises(SourceChanged, match=says):
        one.run()
    assert one.events(RAW) == 1, "the receiver gets none that it could not take"
    change(shop_url, "ALTER TABLE sales ALTER COLUMN cents TYPE int")
    assert one.run()
    assert one.events(RAW) == 2


@pytest.mark.parametrize("dies", [False, True])
def test_a_run_keeps_the_columns_that_it_has_begun_with(
    dies: bool,
    tmp_path: Path,
    sessions: SparkSessions,
    shop_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that has come since is left out, and said; one that was made anew is at the end of its table, and not here."""
    one = elsewhere(tmp_path, sessions, shop_url, store=dies)
    made_anew = "ALTER TABLE sales ADD COLUMN city text, ADD COLUMN again text; UPDATE sales SET again = note"
    made_anew += "; ALTER TABLE sales DROP COLUMN note; ALTER TABLE sales RENAME COLUMN again TO note"
    with monkeypatch.context() as patch:
        alter(patch, one, CrashPoint.BEFORE_READ, made_anew, dies=dies)
        if dies:
            one.die()
        else:
            assert one.run()
    assert not dies or one.run()
    assert one.events(RAW) == 2
    sent = [dataset.manifest for dataset in one.datasets()]
    assert [[field["name"] for field in json.loads(one.schema)["fields"]] for one in sent] == [
        ["id", "cents", "note"]
    ] * 2
    assert "source raw: columns that have come since its first event are left out: city" in caplog.text


RAW = Port("raw", "out")


def elsewhere(root: Path, sessions: SparkSessions, url: str, *, store: bool) -> Reading:
    """A source of two events whose receiver is in a group that is not run."""
    change(url, FILL.format(500))
    one = Reading(
        root, sessions, TableSource("warehouse", "sales", rows_per_event=300, append_only=not store, store=store)
    )
    one.warehouse, one.elsewhere = url, ("save",)
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    return one


def alter(patch: pytest.MonkeyPatch, one: Reading, point: CrashPoint, statements: str, *, dies: bool) -> None:
    """Change the table at the second pass of `point`, when the first event is in the log."""
    passed = itertools.count(1)

    def crash_here(here: CrashPoint) -> None:
        if here is point and next(passed) == 2:
            eventually(lambda: one.events(RAW) == 1, what="the first event is in the log", timeout=60)
            for statement in statements.split("; "):
                change(one.warehouse, statement)
            if dies:
                raise RuntimeError("killed")

    patch.setattr(source_reader, "crash_here", crash_here)


@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_stored_ranges_are_read_once_and_may_change_afterwards(
    database: str,
    tmp_path: Path,
    sessions: SparkSessions,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows are changed and deleted when their range is stored: what was stored leaves."""
    if database == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
        change(url, "CREATE TABLE sales (id INTEGER PRIMARY KEY AUTOINCREMENT, cents INT, note TEXT)")
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
        change(url, f"{numbers} INSERT INTO sales (cents, note) SELECT i % 100, 'n' || i FROM n")
    else:
        url = str(request.getfixturevalue("shop_url"))
        change(url, FILL.format(500))
    expected = rows_of(url, "SELECT * FROM sales ORDER BY id")
    one = Shop(tmp_path, sessions, url, rows_per_event=200, store=True)
    for module, point, nth in (
        (spark_effects, CrashPoint.BEFORE_STORE, 1),
        (spark_effects, CrashPoint.AFTER_STORE, 1),
        (committer, CrashPoint.AFTER_COMMIT, 2),
    ):
        with monkeypatch.context() as patch:
            kill(patch, module, point, nth, one.has_effect if module is committer else lambda: True)
            one.die()
        one.sweep()
    change(url, "UPDATE sales SET note = 'changed' WHERE id <= 200")
    change(url, "DELETE FROM sales WHERE id = 400")
    one.finish()
    assert one.rows() == [row for row in expected if row[0] != 400]
    assert len(list((one.lake / "out" / "_logio").glob("*.json"))) == 3
    one.assert_nothing_left()


def test_an_empty_table_ends_a_run(tmp_path: Path, sessions: SparkSessions, shop_url: str) -> None:
    for number, how in enumerate(({"append_only": True}, {"store": True})):
        one = Shop(tmp_path / str(number), sessions, shop_url, **how)
        one.finish()
        assert one.rows() == []
        one.assert_nothing_left()


def test_all_rows_of_many_writers_are_read_once_until_it_is_drained(
    tmp_path: Path, sessions: SparkSessions, shop_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their transactions overlap, and some are rolled back."""
    monkeypatch.setattr(source_reader, "RANGE_POLL_SECONDS", 0.05)
    ended = threading.Event()
    threads = [threading.Thread(target=_write, args=(shop_url, number, ended)) for number in range(4)]
    one = Shop(tmp_path, sessions, shop_url, rows_per_event=200, append_only=True, unbounded=True)

    def end() -> None:
        time.sleep(5)
        ended.set()
        for thread in threads:
            thread.join()
        total = rows_of(shop_url, "SELECT count(*) FROM sales")[0][0]
        deadline = time.monotonic() + 60
        while len(one.rows()) < total and time.monotonic() < deadline:
            time.sleep(0.2)
        one.drain.set()

    for thread in (*threads, ending := threading.Thread(target=end)):
        thread.start()
    one.finish()
    ending.join()
    rows = one.rows()
    assert len(rows) > 300
    assert rows == rows_of(shop_url, "SELECT * FROM sales ORDER BY id")
    assert len(list((one.lake / "out" / "_logio").glob("*.json"))) > 2


def _write(url: str, number: int, ended: threading.Event) -> None:
    luck = random.Random(number)
    connection = psycopg2.connect(url)
    with connection.cursor() as cursor:
        while not ended.is_set():
            for _ in range(luck.randint(1, 4)):
                cursor.execute("INSERT INTO sales (cents, note) VALUES (%s, 'w')", (number,))
                time.sleep(luck.choice((0.001, 0.02)))
            (connection.rollback if luck.random() < 0.2 else connection.commit)()
    connection.close()


class Latest(RangeSource):
    """Of an author: the rows up to the largest number, in halves."""

    def __init__(self, connection: RangeConnection | None = None) -> None:
        self._connection = connection

    def connections(self) -> tuple[str, ...]:
        return ("warehouse",)

    def connected(self, connections: Callable[[str], RangeConnection]) -> RangeSource:
        return Latest(connections("warehouse"))

    def first(self, params: Mapping[str, Any]) -> int:
        return 0

    def last(self, params: Mapping[str, Any]) -> int:
        assert self._connection is not None
        [found] = self._connection.query("SELECT max(id) AS last FROM sales", {}, {"last": "bigint"})
        return int(found.column("last")[0].as_py())

    def latest(self, params: Mapping[str, Any], start: int, limit: int | None) -> int:
        assert limit is not None
        return min(limit, start + 250)

    def frame(self, spark: Any, params: Mapping[str, Any], start: int, end: int) -> Any:
        assert self._connection is not None
        return self._connection.rows("sales", ("id", "note"), by="id", after=start, until=end)


def test_a_source_of_an_author_gets_its_connection_from_the_run(
    tmp_path: Path, sessions: SparkSessions, shop_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked by drivers only; where it ends is decided once."""
    change(shop_url, FILL.format(500))
    one = Reading(tmp_path, sessions, Latest())
    one.warehouse = shop_url
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    one.names = ("save",)
    with monkeypatch.context() as patch:
        kill(patch, source_reader, CrashPoint.AFTER_READ, 2)
        one.die()
    change(shop_url, FILL.format(50))
    one.finish()
    published = sorted(tuple(row.values()) for row in one.published("out"))
    assert published == rows_of(shop_url, "SELECT id, note FROM sales WHERE id <= 500 ORDER BY id")


def test_what_cannot_be_followed_parks_the_group_before_anything_is_read(
    tmp_path: Path, sessions: SparkSessions, postgres_url: str
) -> None:
    change(postgres_url, "CREATE TABLE sales (id bigint GENERATED ALWAYS AS IDENTITY (CACHE 10))")
    one = Shop(tmp_path, sessions, postgres_url, append_only=True)
    with pytest.raises(
        ConfigurationError, match="whose sequence sales_id_seq has CACHE 10: a session takes numbers ahead"
    ):
        one.run(*one.names)


END_IDLE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in%'"


def test_what_tasks_find_in_the_job_of_a_range_is_told_as_it_is(
    tmp_path: Path, sessions: SparkSessions, shop_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value that Arrow cannot hold; and a session that ends before tasks import its snapshot: all is read again then."""
    change(shop_url, "ALTER TABLE sales ADD price numeric(9, 2)")
    change(shop_url, FILL.format(400))
    one = Shop(tmp_path, sessions, shop_url, append_only=True)
    before = kept_open
    ended: list[Any] = []

    @contextmanager
    def ending(connection: Any) -> Iterator[None]:
        if not ended:
            ended.extend(
                rows_of(shop_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in%'")
            )
        with before(connection):
            yield

    monkeypatch.setattr(row_readers, "kept_open", ending)
    change(shop_url, "UPDATE sales SET price = 'NaN' WHERE id = 17")
    says = r"source 'raw', table 'sales' of .* rows with id <= 400, column 'price', row .*, where id = 17: NaN is no decimal"
    with pytest.raises(ConfigurationError, match=says):
        one.run(*one.names)
    assert ended == [(True,)]
    change(shop_url, "UPDATE sales SET price = 1 WHERE id = 17")
    ended.clear()
    one.finish()
    assert ended == [(True,)]
    assert len(one.rows()) == 400
