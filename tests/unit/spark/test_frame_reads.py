"""Declared reads of mode ``dataframe`` in a group of this process, compared with plain SQL and with mode ``executors``."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_logio import FunctionRead, TableRead, Tumbling, generate, stateless
from airflow_logio.driver.spark_jobs import frame_jobs
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    LogUnavailable,
    OperatorFailed,
    SparkLost,
)
from airflow_logio.lineage.lineage_records import effect, records
from airflow_logio.spark import row_readers
from airflow_logio.spark.dataset_jobs import frame_of_table, materialized, written_by_driver
from airflow_logio.store.lineage.queries import backward
from airflow_logio.store.lineage.result import ReadNode
from airflow_logio.supervision.tidying import remove
from airflow_logio.systems.calls import CallWatch, Wait
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.databases import table_reads
from airflow_logio.systems.payloads import EpochPayloads, Payloads, clear_away
from airflow_logio.systems.payloads.manifests import is_manifest
from tests.support.frame_groups import Group, orders_at
from tests.support.warehouse import change, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

FILES = [orders_at(1, 5, 23.9), orders_at(24.1, 30, 47, first=3), orders_at(49, 75, 75.5, first=6)]
SHOPS = {
    "sqlite": "CREATE TABLE shops (store INTEGER, name TEXT, opened TIMESTAMP, rate DOUBLE PRECISION)",
    "postgres": "CREATE TABLE shops (store BIGINT, name TEXT, opened TIMESTAMP, rate DOUBLE PRECISION)",
}
FILL = (
    "INSERT INTO shops VALUES (0, 'a', '2001-01-01 10:00:00', 0.5), (1, 'b', NULL, 1.5), (1, 'b2', '1969-12-31 23:59:59', 2),"
    " (2, NULL, '2024-03-31 02:30:00', NULL), (7, 'x', NULL, 7), (NULL, 'nobody', NULL, 0)"
)


def named(orders: Any, shops: Any, everyone: Any) -> Any:
    """By a read with a key, and by one of all rows."""
    joined = orders.join(shops, "store", "left").crossJoin(everyone.groupBy().count())
    return joined.select("inset_id", "id", "name", "opened", "rate", "count")


def group_of(tmp_path: Path, sessions: SparkSessions, url: str) -> Group:
    """The same function in both modes: its two windows differ in a word."""
    group = Group(tmp_path, sessions, orders=FILES)
    group.warehouse = url or group.warehouse
    change(group.warehouse, SHOPS["postgres" if url else "sqlite"])
    change(group.warehouse, FILL)
    reads = {
        "shops": TableRead("warehouse", "shops", ("name", "store", "opened", "rate"), key="store"),
        "everyone": TableRead("warehouse", "shops"),
    }

    @stateless
    def passed(orders: pa.Table) -> pa.Table:
        return orders

    tables = group.operator("tables", passed, "from_orders")
    for mode, source, start in (("dataframe", "from_orders", "from_orders.out"), ("executors", tables, "tables.out")):
        function = generate(mode=mode, columns=("id", "store"), reads=reads, many=True)(named)
        group.save(group.operator(mode, function, source, window=Tumbling("1d", on="ts")), mode)
        group.made.lineage(start, f"{mode}.out")
    return group


def used(group: Group, mode: str, output_sets: int) -> dict[tuple[str, Any], Any]:
    """(Input Set, key of a read action) → the rows of it that are for this Input Set, as the log tells."""
    assert group.driver is not None
    found: dict[tuple[str, Any], Any] = {}
    for number in range(1, output_sets + 1):
        origin = backward(group.store, group.driver.run, f"{mode}.out", number)
        (inset,) = origin.input_sets()
        for read in origin.after(inset):
            if isinstance(read, ReadNode):
                table = effect(group.store, group.driver.run, read, inset, Payloads(str(group.payloads)))
                rows = sorted(table.to_pylist(), key=str)
                found[inset.inset_id, read.description["key"]] = (read.records, rows)
                assert read.description["table"] == "shops"
                assert ("keys" in read.description) == (read.description["key"] is not None)
    return found


def manifests(group: Group) -> list[str]:
    """Of reads that the log names."""
    rows = group.store.tables.bodies.items()
    return [
        row.ref
        for key, row in rows
        if row.ref and key.channel.startswith("read:") and is_manifest(row.ref.partition("#")[0])
    ]


@pytest.mark.parametrize(
    ("database", "most_bytes"),
    [("sqlite", 2**20), ("sqlite", 0), pytest.param("postgres", 0, marks=pytest.mark.postgres)],
)
def test_an_operator_moves_to_mode_dataframe_by_changing_one_word(
    tmp_path: Path,
    sessions: SparkSessions,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    database: str,
    most_bytes: int,
) -> None:
    """Records, read actions in the log, and the rows that each Input Set used: whatever the size, and however it was read."""
    monkeypatch.setattr(frame_jobs, "SMALL_BYTES", most_bytes)
    monkeypatch.setattr(table_reads, "KEYS_PER_QUERY", 2)
    monkeypatch.setattr(row_readers, "KEYS_PER_QUERY", 2)
    group = group_of(tmp_path, sessions, request.getfixturevalue("postgres_url") if database == "postgres" else "")
    assert group.run()
    shops = rows_of(group.warehouse, "SELECT store, name, opened, rate FROM shops")
    values = ", ".join(f"({', '.join('NULL' if one is None else repr(str(one)) for one in row)})" for row in shops)
    expected = group.expected(
        "id, name, opened::TIMESTAMP, rate::DOUBLE, 6",
        f"LEFT JOIN (VALUES {values}) AS shops(shop, name, opened, rate) ON store = shop::INT",
    )
    columns = "id, name, opened::TIMESTAMP, rate, count"
    assert group.published(columns, "dataframe") == expected
    assert group.published(columns, "executors") == expected
    by_frames = used(group, "dataframe", 4)
    assert len(by_frames) == 8
    assert by_frames == used(group, "executors", 4)
    assert bool(manifests(group)) == (most_bytes == 0)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a driver that waits says of it."""
    found: list[str] = []
    waits = CallWatch.waits

    def heard(self: CallWatch, what: str, cause: str) -> Wait:
        wait = waits(self, what, cause)
        found.append(self.longest()[0])
        return wait

    monkeypatch.setattr(CallWatch, "waits", heard)
    return found


def test_what_was_answered_is_what_was_used_and_nobody_is_asked_again_once_it_is_logged(
    tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    """An answer that differs each time. Three drivers: the first fails after its read, the second one behind its commit."""
    answers: list[list[int]] = []
    failures = ["daily", "weekly"]
    outages = [LogUnavailable("payload store: No space left on device")]

    def fetch(url: str, keys: pa.Array) -> pa.Table:
        answers.append(keys.to_pylist())
        return pa.table({"store": keys, "drawn": [len(answers)] * len(keys)})

    @generate(
        mode="dataframe",
        columns=("store", "id"),
        reads={"draws": FunctionRead("warehouse", fetch, key="store")},
        many=True,
    )
    def drawn(orders: Any, draws: Any) -> Any:
        if "daily" in failures:
            raise ValueError("daily: not yet")
        return orders.join(draws, "store").selectExpr("inset_id", "window_start AS day", "id", "drawn")

    @generate(mode="dataframe")
    def weekly(days: Any) -> Any:
        if "weekly" in failures:
            raise ValueError("weekly: not yet")
        return days.select("id", "drawn")

    def written(*given: Any) -> Any:
        if outages:
            raise outages.pop()
        return written_by_driver(*given)

    monkeypatch.setattr(frame_jobs, "SMALL_BYTES", 0)
    monkeypatch.setattr(frame_jobs, "written_by_driver", written)
    group = Group(tmp_path, sessions, orders=FILES)
    daily = group.operator("daily", drawn, "from_orders", window=Tumbling("1d", on="ts"))
    group.save(group.operator("weekly", weekly, daily, window=Tumbling("1w", on="day")))
    group.made.lineage("from_orders.out", "daily.out")
    with pytest.raises(OperatorFailed, match="daily: not yet"):
        group.run()
    failures.remove("daily")
    asked_first = len(answers)
    assert not outages, "the job was repeated, with what was answered"
    assert [wait.partition(" UTC: ")[2] for wait in said] == ["payload store: No space left on device"]
    assert not list((tmp_path / "payloads").rglob("*daily/draws*/*.parquet")), (
        "no job will name what a failed job has read"
    )
    with pytest.raises(OperatorFailed, match="weekly: not yet"):
        group.run()
    failures.clear()
    asked, named_by_then = len(answers), set(manifests(group))
    assert asked > asked_first
    assert named_by_then
    assert group.run()
    assert (len(answers), set(manifests(group))) == (asked, named_by_then)
    rows = group.published("id, drawn")
    assert [id for id, _ in rows] == list(range(9))
    assert min(drawn for _, drawn in rows) > asked_first, "nothing of the first answers"
    assert group.driver is not None
    store, run, payloads = group.store, group.driver.run, Payloads(str(group.payloads))
    for number in range(1, 5):
        origin = backward(store, run, "daily.out", number)
        (event,), (inset,) = origin.roots, origin.input_sets()
        (read,) = origin.reads("daily")
        told = {row["store"]: row["drawn"] for row in effect(store, run, read, inset, payloads).to_pylist()}
        for row in records(store, run, event, payloads).to_pylist():
            assert told[row["id"] % 3] == row["drawn"]
    clear_away(str(group.payloads), store, run)
    assert {file.path for ref in manifests(group) for file in payloads.dataset("it", ref).manifest.files} <= set(
        payloads.find(run.uid)
    ), "the sweep keeps what the log names"
    remove(store, run.run_id, payloads.remove)
    assert payloads.find(run.uid) == []


# --- one read ---------------------------------------------------------------------------------------------------------


class Reader:
    """Reads of one job whose Input Sets have these records on their ports."""

    def __init__(self, spark: Any, epoch: EpochPayloads, url: str, patience: float = 5.0, **ports: pa.Table) -> None:
        self.spark, self.epoch, self.ports = spark, epoch, ports
        self.connections = Connections("p", {"wh": url}, WriterIdentity("run", 1, 0.0), patience)
        self.sessions = SparkSessions()  # which finds the session that there is

    def obtained(self, **reads: Any) -> Mapping[str, frame_jobs.ReadEffect]:
        frames = {port: frame_of_table(self.spark, table) for port, table in self.ports.items()}
        job = frame_jobs.FrameReads("op", 1, reads, self.connections, self.epoch, self.sessions, lambda: None)
        try:
            return job.obtained(self.spark, lambda: frames)
        finally:
            self.connections.close()

    def rows(self, read: Any) -> pa.Table:
        """What a function gets of it."""
        return self.obtained(it=read)["it"].frame(self.spark).toArrow()

    def files(self) -> list[Path]:
        return [path for path in Path(self.epoch.root).rglob("*") if path.is_file()]


ORDERS = pa.table({"store": pa.array([1, None, 2, 1, 9], pa.int32()), "text": ["a", "b", None, "b", "zz"]})


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_jobs, "SMALL_BYTES", 0)


@pytest.mark.postgres
@pytest.mark.usefixtures("everything_is_large")
def test_a_table_is_read_again_as_a_whole_when_its_snapshot_is_gone(
    spark: Any, epoch: EpochPayloads, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By places and by keys: rows of two snapshots never meet, and of the first attempt nothing is left."""
    change(
        postgres_url, "CREATE TABLE shops AS SELECT i::bigint AS store, 1 AS version FROM generate_series(1, 2000) AS i"
    )
    ends = ["SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"]

    def interrupted(payloads: Any, where: str, purpose: str, frame: Any) -> Any:
        if not purpose.endswith("-keys") and ends:
            assert rows_of(postgres_url, ends.pop()) == [(True,)]
            change(postgres_url, "UPDATE shops SET version = version + 1")
        return materialized(payloads, where, purpose, frame)

    monkeypatch.setattr(frame_jobs, "materialized", interrupted)
    end = ends[0]
    whole = Reader(spark, epoch, postgres_url, patience=60.0).rows(TableRead("wh", "shops"))
    assert (whole.num_rows, set(whole.column("version").to_pylist())) == (2000, {2})
    ends.append(end)
    keys = pa.table({"store": pa.array([1, 2, 3, 4000])})
    some = Reader(spark, epoch, postgres_url, patience=60.0, orders=keys).rows(TableRead("wh", "shops", key="store"))
    assert sorted(some.to_pylist(), key=str) == [{"store": number, "version": 3} for number in (1, 2, 3)]
    assert not ends


@pytest.mark.postgres
@pytest.mark.parametrize("most_bytes", [2**20, 0], ids=["small", "large"])
def test_keys_are_compared_as_the_database_compares(
    spark: Any, epoch: EpochPayloads, postgres_url: str, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """Nulls are no keys; text is compared with its blanks, or without; types that only a cast makes equal are refused."""
    monkeypatch.setattr(frame_jobs, "SMALL_BYTES", most_bytes)
    monkeypatch.setattr(table_reads, "KEYS_PER_QUERY", 1)
    monkeypatch.setattr(row_readers, "KEYS_PER_QUERY", 1)
    change(
        postgres_url,
        "CREATE TABLE shops (store NUMERIC(9, 2), text CHAR(3), at TIMESTAMP, day DATE); INSERT INTO shops VALUES "
        "(1, 'a', '2024-03-31 02:30:00', '2024-03-31'), (2, NULL, NULL, NULL), "
        "(NULL, 'b', '1969-12-31 23:59:59.5', '1582-10-04')",
    )
    times = pa.array([None, "2024-03-31 02:30:00", "1969-12-31 23:59:59.5"]).cast(pa.timestamp("us"))
    orders = ORDERS.append_column("day", pa.array([None, None, None, None, dt.date(2024, 3, 31)]))

    def found(key: str, table: pa.Table) -> list[Any]:
        made = Reader(spark, epoch, postgres_url, orders=table).rows(TableRead("wh", "shops", key=key))
        return sorted(str(one) for one in made.column(key).to_pylist())

    assert found("store", orders) == ["1.00", "2.00"]
    assert found("text", orders) == ["a", "b"], "as the records have them, and not with their blanks"
    assert found("day", orders) == ["2024-03-31"]
    assert len(found("at", pa.table({"at": times}))) == 2
    assert found("store", orders.slice(1, 1)) == [], "no key at all"
    assert found("text", pa.table({"text": ["a", "a ", "A", "abcd"]})) == ["a", "a "], "each has its row"
    for key, keys, found_type in (("store", ["1"], r"numeric\(9,2\)"), ("text", [1], "character")):
        with pytest.raises(ConfigurationError, match=f"{key}.*in the records and {found_type} in the database"):
            found(key, pa.table({key: keys}))


def fetched(answer: Any) -> Callable[..., Any]:
    def fetch(*_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    return fetch


FULL = pa.table(
    {"store": [1, 2], "at": pa.array([0, None], pa.timestamp("ms")), "kind": pa.array(["x", "y"]).dictionary_encode()}
)


@pytest.mark.usefixtures("everything_is_large")
def test_what_cannot_be_read_is_named_and_leaves_nothing_behind(
    spark: Any, epoch: EpochPayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_jobs, "MOST_IN_DRIVER", 2)
    url = f"sqlite:///{tmp_path}/wh.db"
    change(url, SHOPS["sqlite"])
    change(url, FILL)
    text = pa.table({"store": ["1"]})
    good = FunctionRead("wh", fetched(FULL))
    cases: list[tuple[Any, dict[str, pa.Table], type[Exception], str]] = [
        (TableRead("wh", "shops", key="nope"), {"in": ORDERS}, OperatorFailed, "'nope', not a column of the records"),
        (
            TableRead("wh", "shops", key="store"),
            {"a": ORDERS, "b": text},
            OperatorFailed,
            "is int on port 'a', string on",
        ),
        (
            TableRead("wh", "shops", key="text"),
            {"in": ORDERS.slice(0, 2)},
            ConfigurationError,
            "no column 'text', by which",
        ),
        (
            TableRead("wh", "shops", key="store"),
            {"in": ORDERS},
            OperatorFailed,
            "more than 2 distinct values in one Input",
        ),
        (TableRead("wh", "gone"), {}, ConfigurationError, "table 'gone' is not in connection 'wh'"),
        (TableRead("wh", "shops", ("nope",)), {}, ConfigurationError, "has no column 'nope'"),
        (FunctionRead("wh", fetched(KeyError("x"))), {}, OperatorFailed, "of connection 'wh': KeyError: 'x'"),
        (FunctionRead("wh", fetched([1])), {}, OperatorFailed, "the read by function .* list"),
        (FunctionRead("wh", fetched(pa.table({"a.b": [1]}))), {}, OperatorFailed, "a column 'a.b'"),
        (FunctionRead("wh", fetched(ConnectionError("down"))), {}, ExternalUnavailable, "still unavailable"),
    ]
    for read, ports, error, says in cases:
        reader = Reader(spark, epoch, url, **ports)
        reader.connections.replay_seconds = 0.3
        with pytest.raises(error, match=says):
            reader.obtained(good=good, bad=read)
        assert not reader.files(), says
    monkeypatch.setattr(frame_jobs, "written_by_driver", fetched(ConnectionRefusedError("the JVM is gone")))
    with pytest.raises(SparkLost, match="Spark ended while operator 'op' read"):
        Reader(spark, epoch, url).obtained(good=good)


@pytest.mark.parametrize("most_bytes", [2**20, 0], ids=["small", "large"])
def test_a_function_gets_the_same_types_whatever_the_size(
    spark: Any, epoch: EpochPayloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """The session is in Tokyo, and a time without a zone is UTC."""
    monkeypatch.setattr(frame_jobs, "SMALL_BYTES", most_bytes)
    reader = Reader(spark, epoch, f"sqlite:///{tmp_path}/wh.db")
    frame = reader.obtained(it=FunctionRead("wh", fetched(FULL)))["it"].frame(spark)
    assert frame.schema.simpleString() == "struct<store:bigint,at:timestamp,kind:string>"
    assert [tuple(row) for row in frame.selectExpr("store", "unix_micros(at)", "kind").sort("store").collect()] == [
        (1, 0, "x"),
        (2, None, "y"),
    ]
    assert bool(reader.files()) == (most_bytes == 0)
