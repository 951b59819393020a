"""Datasets and chains in a real Spark session: values come back, what is random is drawn once, failures are named."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import DatasetWriter, FolderSource, Pipeline, TableWriter, published_files, stateless
from airflow_logio.dataflow import SourceOperator
from airflow_logio.dataflow.pipeline.definition import CallLimit
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import (
    ConfigurationError,
    ExternalUnavailable,
    LogInconsistent,
    LogUnavailable,
    OperatorFailed,
    SourceChanged,
)
from airflow_logio.launch.start_run import operator_shapes
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.values import Port
from airflow_logio.spark import dataset_jobs, determinism, schemas, spark_files
from airflow_logio.spark.session_safety import SHUFFLE_SAFETY
from airflow_logio.systems.calls import CallWatch
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import EpochPayloads, Payloads, task_files
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.store.small_disk import small_folder
from tests.support.frame_groups import driven
from tests.support.logs import Driver, replace_driver, spec, start_driver
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

# --- datasets ---------------------------------------------------------------------------------------------------------

EVERY_TYPE = """
    SELECT id, IF(id % 3 = 0, NULL, concat('Köln ', id)) AS text, CAST(id AS DECIMAL(38, 18)) / 7 AS price,
        CAST(id AS INT) AS small, CAST('NaN' AS DOUBLE) AS nan, CAST(0.1 AS FLOAT) AS real,
        TIMESTAMP '2024-03-31 02:30:00.123456' + make_interval(0, 0, 0, 0, id) AS at,
        TIMESTAMP_NTZ '2024-03-31 02:30:00.123456' AS wall, DATE '1582-10-04' AS day, id % 2 = 0 AS even,
        CAST(concat('x', id) AS BINARY) AS raw, array(id, NULL) AS many, map('a', id, 'b', NULL) AS named,
        struct(id AS a, struct('ü' AS c) AS b) AS deep, CAST(NULL AS STRING) AS never,
        concat('Straße ', id) COLLATE UTF8_LCASE AS caseless
    FROM range(0, 100, 1, 3)
"""


def test_values_come_back_as_they_were(spark: Any, epoch: EpochPayloads) -> None:
    frame = spark.sql(EVERY_TYPE)
    made = dataset_jobs.materialized(epoch, "event 1", "d/1", frame)
    again = dataset_jobs.frame_of(spark, made)

    assert made.num_rows == 100
    assert schemas.schema_of(again) == schemas.schema_of(frame)
    assert again.where("caseless = 'STRASSE 7' OR caseless = 'STRAßE 7'").count() == 1, "texts compare as they did"
    assert str(again.orderBy("id").collect()) == str(frame.orderBy("id").collect())
    expected = frame.orderBy("id").toArrow()
    found = made.table.sort_by("id")
    for name in ("text", "price", "small", "nan", "real", "wall", "day", "even", "raw", "many", "deep", "never"):
        assert str(found.column(name).to_pylist()) == str(expected.column(name).to_pylist()), name
    assert pa.types.is_timestamp(found.schema.field("at").type)
    utc = expected.column("at").cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    assert found.column("at").to_pylist() == utc.to_pylist(), "times are UTC without a zone"


def test_days_are_those_that_were_written_whatever_the_session_makes_of_old_files(
    spark: Any, epoch: EpochPayloads
) -> None:
    query = "SELECT DATE '1000-01-01' AS day, TIMESTAMP '0001-01-01 00:00:00' AS at"
    texts = ("CAST(day AS STRING)", "CAST(at AS STRING)")
    made = dataset_jobs.materialized(epoch, "event 1", "d/1", spark.sql(query))
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY")
    try:
        assert (
            dataset_jobs.frame_of(spark, made).selectExpr(*texts).collect()
            == spark.sql(query).selectExpr(*texts).collect()
        )
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


def test_times_of_operators_in_the_driver_are_utc_in_every_zone(spark: Any, epoch: EpochPayloads) -> None:
    at = [dt.datetime.fromisoformat(text) for text in ("2024-03-31T02:30:00", "2024-07-01T12:00:00.000001")]
    table = pa.table({"at": pa.array(at, pa.timestamp("us")), "deep": [{"at": one} for one in at]})
    for zone in ("Europe/Berlin", "America/New_York"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            made = dataset_jobs.materialized(
                epoch, "event 1", f"d/{zone[:2]}", dataset_jobs.frame_of_table(spark, table)
            )
            found = made.table.sort_by("at")
            assert found.column("at").equals(table.column("at")), zone
            deep = [row["at"].astimezone(dt.UTC).replace(tzinfo=None) for row in found.column("deep").to_pylist()]
            assert deep == at, "within others they have a zone, and are the same"
        finally:
            spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")


@pytest.mark.parametrize("partition_by", [(), ("part",)])
def test_a_job_that_fails_leaves_nothing_of_what_its_tasks_have_written(
    spark: Any, tmp_path: Path, epoch: EpochPayloads, partition_by: tuple[str, ...]
) -> None:
    """The next attempt writes all of it again, and room may be what is missing."""
    written = tmp_path / "payloads"

    def fails_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("id")[0].as_py() >= 50:
                eventually(lambda: list(written.rglob("*.parquet")), what="the other task has written")
                raise ValueError("the second task")
            yield batch

    frame = spark.range(0, 100, 1, 2).selectExpr("id", "id % 2 AS part").mapInArrow(fails_last, "id long, part long")
    with pytest.raises(Exception, match="the second task"):
        dataset_jobs.materialized(epoch, "event 1", "d/1", frame, partition_by)
    assert [path for path in written.rglob("*") if path.is_file()] == []


def test_no_records_keep_their_schema(spark: Any, epoch: EpochPayloads) -> None:
    frame = spark.sql(EVERY_TYPE).where("id < 0")
    made = dataset_jobs.materialized(epoch, "event 1", "d/1", frame)
    assert made.paths() == []
    assert made.table.num_rows == 0
    again = dataset_jobs.frame_of(spark, made)
    assert again.columns == frame.columns
    assert again.collect() == []


@pytest.mark.parametrize("sealed_by", ["driver", "tasks"])
def test_what_a_job_has_written_is_what_the_driver_sees_or_is_written_again(
    spark: Any, epoch: EpochPayloads, sealed_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a shared folder shows the driver an older view of itself."""
    if sealed_by == "tasks":
        monkeypatch.setattr(spark_files, "_DRIVER_SEALS", 0)
    rows = spark.range(0, 1_000, 1, 4).where("id < 250 OR id >= 500")
    files = spark_files.written(epoch, "d/1", rows, task_files.AS_PUBLISHED)
    assert files is not None, "Spark has said how many records there are"
    assert sorted(file.records for file in files) == [250, 250, 250], "a task without records leaves no file"
    folder = Path(epoch.root) / Path(files[0].path).parent
    assert {path.name for path in folder.iterdir()} == {Path(file.path).name for file in files}
    mask = os.umask(0o022)
    os.umask(mask)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o666 & ~mask}
    assert folder.stat().st_mode & 0o777 == 0o700, "no other user gets in"

    again = spark_files.seal(spark, epoch, str(folder.relative_to(epoch.root)), 750, task_files.AS_PUBLISHED)
    assert sorted(again, key=str) == sorted(files, key=str), "as a task does that runs twice"
    one = next(folder.iterdir())
    one.write_bytes(one.read_bytes()[:-4] + b"PARE")  # what an encrypted file ends with
    if sealed_by == "driver":
        with pytest.raises(OperatorFailed, match=r"whose footers cannot be read: .* encrypt"):
            spark_files.seal(spark, epoch, str(folder.relative_to(epoch.root)), 750, task_files.AS_PUBLISHED)
    one.unlink()
    with pytest.raises(
        LogUnavailable, match=r"have written 750 records into .*/d/1\.1, and the driver sees 2 files with 500"
    ):
        spark_files.seal(spark, epoch, str(folder.relative_to(epoch.root)), 750, task_files.OWNER_ONLY)


def test_files_are_the_same_whatever_a_function_does_to_a_session(
    spark: Any, epoch: EpochPayloads, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its own, one that another event's function changes while Spark begins, and listeners that say nothing."""
    query = "SELECT DATE '1500-01-01' AS day, TIMESTAMP '2024-01-01 00:00:00' AS at, 1 AS id"
    old = {
        "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.variant.writeShredding.enabled": "true",
    }
    own = spark.newSession()
    for name, value in old.items():
        own.conf.set(name, value)
    found = dataset_jobs.materialized(epoch, "event 1", "d/1", own.sql(query)).table.to_pylist()
    assert [row["day"] for row in found] == [dt.date(1500, 1, 1)]
    variants = own.sql("""SELECT parse_json('{"a": ' || id || ', "b": "x"}') AS v FROM range(100)""")
    made = dataset_jobs.materialized(epoch, "event 2", "d/2", variants)
    assert {field.name for field in made.table.schema.field("v").type} == {"value", "metadata"}
    assert made.table.column("v").combine_chunks().field("value").null_count == 0

    with monkeypatch.context() as patch:
        patch.setattr(spark_files, "WRITER_SAFETY", old)
        for columns in ("day", "at"):
            with pytest.raises(
                LogUnavailable, match=r"d/3\.. in the payload store .* has dates or times of an old form"
            ):
                spark_files.written(epoch, "d/3", spark.sql(query).select(columns), task_files.OWNER_ONLY)
    for name in old:
        spark.conf.unset(name)

    monkeypatch.setattr(spark_files, "_COUNT_SECONDS", 0.0)
    assert dataset_jobs.materialized(epoch, "event 4", "d/4", spark.range(5)).num_rows == 5
    assert "listeners are slow" in caplog.text


def test_nulls_are_allowed_in_a_dataset_whoever_was_asked_for_these_columns_first(
    spark: Any, epoch: EpochPayloads
) -> None:
    """Whether a field may be null differs from plan to plan; what Arrow makes of the columns is remembered."""
    plans = ("struct(coalesce(x, 0) AS x)", "struct(x)")
    frames = [spark.sql(f"SELECT {plan} AS c FROM VALUES (1), (NULL) AS t(x)") for plan in plans]
    assert frames[0].schema != frames[1].schema
    never, some = (dataset_jobs.materialized(epoch, "event 1", f"d/{n}", frame) for n, frame in enumerate(frames))
    assert sorted(row["c"]["x"] for row in never.table.to_pylist()) == [0, 1]
    assert [row["c"]["x"] for row in some.table.to_pylist()].count(None) == 1
    assert never.manifest.arrow == some.manifest.arrow


def test_a_damaged_page_fails_the_job_that_reads_it(spark: Any, epoch: EpochPayloads) -> None:
    made = dataset_jobs.materialized(epoch, "event 1", "d/1", spark.range(0, 100_000, 1, 1))
    path = Path(made.paths()[0])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    frame = dataset_jobs.frame_of(spark, made)
    with pytest.raises(Exception, match=r"(?i)checksum|corrupt|crc"):
        frame.toArrow()
    path.unlink()
    with pytest.raises(LogInconsistent, match="has lost a file"):
        dataset_jobs.frame_of(spark, made)


@pytest.mark.parametrize(
    ("query", "partition_by", "says"),
    [
        ("SELECT 1 AS a, 2 AS a", (), r"has several columns 'a'"),
        ("SELECT 1 AS a, 2 AS A", (), r"has several columns 'a'"),
        ("SELECT 1 AS `a.b`", (), r"has a column 'a\.b', whose name Spark takes for a path"),
        ("SELECT struct(INTERVAL 1 DAY AS i) AS a", (), r"has values of type interval day"),
        ("SELECT array() AS a", (), r"has values of type void"),
        ("SELECT 1 AS a", ("b",), r"^event 1: partition_by names 'b'; the records have the columns a\. Give them that"),
        ("SELECT 1 AS a, 1.5D AS b", ("b",), r"partition_by names 'b', which is double: make it text"),
        ("SELECT 1 AS a, 'x' AS b", ("a", "b"), r"partition_by names all columns"),
    ],
)
def test_columns_that_cannot_be_written_are_refused_before_a_job(
    spark: Any, epoch: EpochPayloads, query: str, partition_by: tuple[str, ...], says: str
) -> None:
    with pytest.raises(OperatorFailed, match=says):
        dataset_jobs.materialized(epoch, "event 1", "d/1", spark.sql(query), partition_by)


# --- chains -----------------------------------------------------------------------------------------------------------


@stateless(mode="dataframe")
def drawn(orders: Any) -> Any:
    """Another value each time it is evaluated."""
    return orders.selectExpr("id", "uuid() AS drawn")


@stateless(mode="dataframe", outputs=("even", "odd"))
def split(orders: Any) -> dict[str, Any]:
    """By what was drawn before."""
    return {"even": orders.where("drawn < '8'"), "odd": orders.where("drawn >= '8'")}


@stateless(mode="dataframe", outputs=("even", "odd"))
def drawn_twice(orders: Any) -> dict[str, Any]:
    from pyspark.sql import functions as F

    numbered = orders.withColumn("luck", F.rand())
    return {"even": numbered.where("luck < 0.5"), "odd": numbered.where("luck >= 0.5")}


@stateless(mode="dataframe", outputs=("even", "odd"))
def of_now(orders: Any) -> dict[str, Any]:
    return {
        "even": orders.where("now() < TIMESTAMP '2020-01-01'"),
        "odd": orders.where("now() >= TIMESTAMP '2020-01-01'"),
    }


@stateless(mode="dataframe", outputs=("even", "odd"))
def once_each(orders: Any) -> dict[str, Any]:
    kept = orders.selectExpr("id", "id div 2 AS pair").dropDuplicates(["pair"])
    return {"even": kept.where("id % 2 = 0"), "odd": kept.where("id % 2 = 1")}


@stateless(mode="dataframe", outputs=("even", "odd"))
def sampled(orders: Any) -> dict[str, Any]:
    kept = orders.repartition(3, "id").sample(0.5, seed=7)
    return {"even": kept.where("id % 2 = 0"), "odd": kept.where("id % 2 = 1")}


@stateless(mode="dataframe", outputs=("even", "odd"))
def first_ones(orders: Any) -> dict[str, Any]:
    kept = orders.orderBy("id").limit(10)
    return {"even": kept.where("id % 2 = 0"), "odd": kept.where("id % 2 = 1")}


@stateless(mode="dataframe", outputs=("even", "odd"))
def numbered_rows(orders: Any) -> dict[str, Any]:
    kept = orders.selectExpr("id", "row_number() OVER (PARTITION BY id div 2 ORDER BY id div 2) AS place")
    return {"even": kept.where("place = 1"), "odd": kept.where("place = 2")}


@stateless(mode="dataframe", outputs=("even", "odd"))
def in_stock(orders: Any) -> dict[str, Any]:
    total = "sum(1) OVER (PARTITION BY id % 2 ORDER BY id div 2 ROWS UNBOUNDED PRECEDING) AS total"
    counted = orders.selectExpr("id", total)
    return {"even": counted.where("total <= 5"), "odd": counted.where("total > 5")}


@stateless(mode="dataframe", outputs=("even", "odd"))
def of_equals(orders: Any) -> dict[str, Any]:
    """Nothing in it depends on the order of equal records, whatever columns are called."""
    ranked = orders.selectExpr(
        "id AS `first(id)`",
        "rank() OVER (ORDER BY id div 2) AS place",
        "sum(id) OVER (PARTITION BY id div 2) AS total",
        "max(id) OVER (ORDER BY id div 10 RANGE UNBOUNDED PRECEDING) AS most",
    ).dropna()
    return {"even": ranked.where("`first(id)` % 2 = 0"), "odd": ranked.limit(0)}


@stateless(mode="dataframe")
def by_hundreds(orders: Any) -> Any:
    return orders.selectExpr("id", "id div 100 AS part")


@stateless(mode="dataframe")
def negated(orders: Any) -> Any:
    return orders.selectExpr("-id AS id", "id div 100 AS part")


@stateless(mode="dataframe")
def unchanged(orders: Any) -> Any:
    return orders


@stateless
def counted(orders: pa.Table) -> pa.Table:
    """Of mode ``driver``."""
    return pa.table({"records": [orders.num_rows]})


@stateless
def passed_on(orders: pa.Table) -> pa.Table:
    """Of mode ``driver``: a chain behind it begins with an event from the log."""
    return orders


class Work:
    """A pipeline whose operators are all in one group, run in this process."""

    def __init__(
        self, root: Path, sessions: SparkSessions, payloads: Path | None = None, source: SourceOperator | None = None
    ) -> None:
        self.orders, self.lake, self.sessions = root / "orders", root / "lake", sessions
        self.payloads = payloads or root / "payloads"
        self.warehouse = f"sqlite:///{root}/wh.db"
        self.lake.mkdir(parents=True)
        self.orders.mkdir()
        for number in range(3):
            ids = list(range(number * 100, number * 100 + 100))
            pq.write_table(pa.table({"id": ids}), self.orders / f"{number}.parquet")
        self.pipeline = Pipeline("work", params={"orders": str}, connections=["lake", "warehouse"])
        self.raw = self.pipeline.source("raw", source or FolderSource("{orders}"))
        self.stop, self.drain = threading.Event(), threading.Event()
        self.jobs_at_once: int | None = None
        self.elsewhere: Sequence[str] = ()
        """Operators of another group, which is not run."""
        self.calls = CallWatch()
        self.store = MemoryLogStore()
        self.driver: Driver | None = None
        """Of the incarnation that runs, or has run last."""

    def published(self, folder: str) -> list[dict[str, Any]]:
        files = sorted((self.lake / folder).glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def run(self, *operators: str) -> bool:
        """Whether the group of the source and these has finished; raises what ends it. Asked again, it is recovered."""
        params = {"orders": str(self.orders)}
        if self.driver is None:
            self.pipeline.group("all", self.raw, *operators, jobs_at_once=self.jobs_at_once)
            if self.elsewhere:
                self.pipeline.group("elsewhere", *self.elsewhere)
            self.pipeline.freeze()
            asked = replace(
                spec(*self.pipeline.groups, budget=RecoveryBudget(50)),
                params=params,
                operators=operator_shapes(self.pipeline),
                actions={"raw": self.raw_source().action(params)},
            )
            self.driver = driver = start_driver(self.store, group="all", run=self.store.start_run(asked))
        else:
            self.driver = driver = replace_driver(self.driver)
        run = driver.run
        urls = {"lake": str(self.lake), "warehouse": self.warehouse}
        identity = WriterIdentity(run.uid, driver.ref.incarnation, run.created_at)
        connections = Connections("work", urls, identity, 1.0, self.calls, params)
        settings = EpochSettings(
            self.pipeline,
            run,
            "all",
            connections,
            self.sessions,
            lambda _: None,
            self.stop,
            drain_requested=self.drain,
            payloads=Payloads(str(self.payloads)),
        )
        return driven(settings, driver, self.stop)

    def events(self, port: Port) -> int:
        """How many of an output port are in the log."""
        assert self.driver is not None
        return sum(row.events for row in self.store.progress(self.driver.run.run_id) if row.port == port)

    def raw_source(self) -> SourceOperator:
        found = self.pipeline.operators["raw"]
        assert isinstance(found, SourceOperator)
        return found


@pytest.fixture
def work(tmp_path: Path, sessions: SparkSessions) -> Work:
    return Work(tmp_path, sessions)


def test_what_is_drawn_is_drawn_once_for_all_receivers(work: Work) -> None:
    """Two writers, an operator of mode driver, and halves that together are the whole."""
    made = work.pipeline
    ids = made.operator("drawn", drawn, work.raw)
    made.writer("left", DatasetWriter("lake", "left"), ids)
    made.writer("right", DatasetWriter("lake", "right"), made.operator("copy", unchanged, ids))
    halves = made.operator("split", split, ids)
    made.writer("even", DatasetWriter("lake", "even"), "split.even")
    made.writer("odd", DatasetWriter("lake", "odd"), "split.odd")
    counts = made.operator("counts", counted, ids)
    made.writer("save", TableWriter("warehouse", "counts", {"records": "bigint"}), counts)
    assert halves is not None
    assert work.run("drawn", "left", "right", "copy", "split", "even", "odd", "counts", "save")
    left = work.published("left")
    assert sorted(row["id"] for row in left) == list(range(300))
    assert {row["id"]: row["drawn"] for row in left} == {row["id"]: row["drawn"] for row in work.published("right")}
    even, odd = work.published("even"), work.published("odd")
    assert sorted(row["id"] for row in even + odd) == list(range(300)), "no order is in both halves, or in none"
    assert rows_of(work.warehouse, "SELECT records FROM counts") == [(100,)] * 3
    receipts = [json.loads(path.read_text()) for path in sorted((work.lake / "left" / "_logio").glob("*.json"))]
    assert [receipt["number"] for receipt in receipts] == [1, 2, 3]


@pytest.mark.parametrize("mode", ["replace", "overwrite"])
def test_a_new_run_takes_over_what_the_one_before_has_published(
    tmp_path: Path, sessions: SparkSessions, mode: str
) -> None:
    """Executors copy the files of the first one, its payload store is on another file system; the second one links."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as elsewhere:
        assert os.stat(elsewhere).st_dev != tmp_path.stat().st_dev
        first, second = (Work(tmp_path / name, sessions, Path(elsewhere)) for name in ("first", "second"))
        for path in (second.orders / "0.parquet", second.orders / "2.parquet"):
            path.unlink()
        second.payloads, second.lake = tmp_path / "payloads", first.lake
        for work, function in ((first, by_hundreds), (second, negated)):
            parts = work.pipeline.operator("parts", function, work.raw)
            writer = DatasetWriter("lake", "out", partition_by=("part",), on_new_run=mode)
            work.pipeline.writer("save", writer, parts)
            assert work.run("parts", "save")
    kept = [] if mode == "replace" else [*range(100), *range(200, 300)]
    with duckdb.connect() as database:
        found = database.execute(f"SELECT id FROM '{first.lake}/out/*/*.parquet' ORDER BY id").fetchall()
    assert [one for (one,) in found] == [*range(-199, -99), *kept]
    counted = [
        pq.ParquetFile(file.path).read().column("id").to_pylist() for file in published_files(first.lake / "out")
    ]
    assert sorted(one for ids in counted for one in ids) == [*range(-199, -99), *kept]


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (drawn_twice, "depends on something random"),
        (of_now, r"depends on now\(\)"),
        (once_each, r"depends on the order of records, by dropDuplicates\(\) or distinct\(\)"),
        (sampled, r"depends on the order of records, by sample\(\)"),
        (first_ones, r"depends on the order of records, by limit\(\)"),
        (numbered_rows, r"depends on the order of records, by row_number\(\)"),
        (in_stock, r"depends on the order of records, by a window of rows \(rowsBetween\)"),
    ],
)
def test_outputs_that_would_not_be_parts_of_one_whole_are_refused(work: Work, function: Any, says: str) -> None:
    """Each output is a job of its own: records would be in both, or in none."""
    work.pipeline.operator("bad", function, work.raw)
    work.pipeline.writer("even", DatasetWriter("lake", "even"), "bad.even")
    work.pipeline.writer("odd", DatasetWriter("lake", "odd"), "bad.odd")
    with pytest.raises(
        OperatorFailed, match=f"operator 'bad': .*'even', one of 2, {says}.*one output compute that before"
    ):
        work.run("bad", "even", "odd")


def test_outputs_that_are_parts_of_one_whole_are_not_refused(work: Work) -> None:
    """Behind a column that has the name of the function which has made it."""
    work.pipeline.operator("fine", of_equals, work.raw)
    work.pipeline.operator("again", again_by_name, "fine.even")
    work.pipeline.writer("one", DatasetWriter("lake", "one"), "again.even")
    work.pipeline.writer("two", DatasetWriter("lake", "two"), "again.odd")
    work.pipeline.writer("odd", DatasetWriter("lake", "odd"), "fine.odd")
    assert work.run("fine", "again", "one", "two", "odd")
    ids = sorted(row["first(id)"] for folder in ("one", "two") for row in work.published(folder))
    assert ids == list(range(0, 300, 2))
    assert work.published("odd") == []


@stateless(mode="dataframe", outputs=("even", "odd"))
def again_by_name(orders: Any) -> dict[str, Any]:
    return {"even": orders.where("`first(id)` % 4 = 0"), "odd": orders.where("`first(id)` % 4 > 0")}


@stateless(mode="dataframe", materialize_input=True)
def with_last(orders: Any) -> Any:
    """Two actions of its own on what was drawn before."""
    from pyspark.sql import functions as F

    (last,) = orders.agg(F.max("drawn")).first()
    return orders.withColumn("last", F.lit(last)).withColumn("records", F.lit(orders.count()))


def test_a_function_whose_input_is_in_files_sees_what_its_result_is_made_of(work: Work) -> None:
    """Also behind another function: what was random is drawn once, and the function is one link of a longer chain."""
    ids = work.pipeline.operator("drawn", drawn, work.raw)
    work.pipeline.operator("last", with_last, ids)
    copied = work.pipeline.operator("copied", unchanged, "last.out")
    work.pipeline.writer("save", DatasetWriter("lake", "out"), copied)
    assert work.run("drawn", "last", "copied", "save")
    rows = work.published("out")
    assert sorted(row["id"] for row in rows) == list(range(300))
    for event in range(3):
        own = [row for row in rows if row["id"] // 100 == event]
        assert {row["last"] for row in own} == {max(row["drawn"] for row in own)}
        assert {row["records"] for row in own} == {100}


def counting(orders: Any) -> Any:
    return orders.limit(orders.count())


def listing(orders: Any) -> Any:
    return orders.where(orders.id.isin([row.id for row in orders.collect()]))


def pivoting(orders: Any) -> Any:
    return orders.groupBy("id").pivot("id").count()


@pytest.mark.parametrize(
    ("function", "from_log", "says"),
    [
        (listing, False, r"`collect at .*test_chains\.py:\d+`"),
        (listing, True, r"`collect at .*test_chains\.py:\d+`"),
        (counting, False, r"an action whose name Spark does not tell \(such as count\(\)"),
        (pivoting, False, r"an action whose name Spark does not tell .* pivot\(\) without values\)"),
    ],
)
def test_an_action_in_a_lazy_function_is_refused_wherever_its_input_comes_from(
    work: Work, function: Any, from_log: bool, says: str
) -> None:
    before = work.pipeline.operator("before", passed_on, work.raw) if from_log else work.raw
    work.pipeline.operator("bad", stateless(mode="dataframe")(function), before)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), "bad.out")
    event = r"port bad\.in, event 1 of before" if from_log else r"source 'raw', read action 1 after 0 records"
    with pytest.raises(
        OperatorFailed,
        match=rf"{event}.*operator 'bad': its function has run a job of Spark, {says}.*materialize_input",
    ):
        work.run("bad", "save", *(["before"] if from_log else []))
    assert work.published("out") == []


def test_a_function_may_let_spark_look_for_the_columns_of_files(work: Work, spark: Any) -> None:
    """That is a job, and none on the function's input."""
    for path in (work.orders / "1.parquet", work.orders / "2.parquet"):
        path.unlink()
    folders = {kind: str(work.lake.parent / kind) for kind in ("parquet", "orc", "json", "csv")}
    for kind, folder in folders.items():
        numbers = spark.range(0, 300, 1, 1).selectExpr("id", "id % 7 AS rest")
        numbers.write.option("header", True).save(folder, format=kind)

    def joined(orders: Any) -> Any:
        session = orders.sparkSession
        for kind, folder in folders.items():
            more = {"header": True, "inferSchema": True} if kind == "csv" else {}
            by_name = getattr(session.read, kind)(folder, **more)
            assert set(session.read.load(folder, format=kind, **more).columns) == set(by_name.columns)
        return orders.join(session.sql(f"SELECT * FROM parquet.`{folders['parquet']}`"), "id")

    work.pipeline.operator("joined", stateless(mode="dataframe")(joined), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), "joined.out")
    assert work.run("joined", "save")
    assert sorted((row["id"], row["rest"]) for row in work.published("out")) == [(id, id % 7) for id in range(100)]


def failing(orders: Any) -> Any:
    """Fails in a task of the second file."""

    def checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 150 in batch.column("id").to_pylist():
                raise ValueError("150 is no order")
            yield batch

    return orders.mapInArrow(checked, "id long")


def locked(orders: Any) -> Any:
    """Of a lock that a function for tasks holds on to."""
    lock = threading.Lock()

    def under_lock(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    return orders.mapInArrow(under_lock, "id long")


def other_columns() -> Callable[[Any], Any]:
    calls = iter(range(100))

    def made(orders: Any) -> Any:
        return orders if next(calls) < 1 else orders.selectExpr("CAST(id AS STRING) AS id")

    return made


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (failing, r"^pipeline 'work', source 'raw', read action 2 after 0 records: .*150 is no order"),
        (
            lambda orders: orders.toArrow(),
            r"^pipeline 'work', source 'raw', read .* 0 records: operator 'bad': .*returned pyarrow\.Table",
        ),
        (lambda orders: orders.select("price"), r"operator 'bad'.*price"),
        (other_columns(), r"schema|columns"),
        (
            locked,
            r"^pipeline 'work', source 'raw', read .* 0 records: operator 'bad': PicklingError.*cannot pickle.*"
            r"make locks, sessions, .* inside of it",
        ),
    ],
    ids=["udf", "table", "column", "other columns", "closure"],
)
def test_an_error_of_the_author_is_told_with_its_place(work: Work, function: Callable[[Any], Any], says: str) -> None:
    bad = work.pipeline.operator("bad", stateless(mode="dataframe")(function), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), bad)
    with pytest.raises(OperatorFailed, match=f"(?s){says}"):
        work.run("bad", "save")


def test_columns_stay_the_same_when_another_driver_takes_over(work: Work) -> None:
    """It knows from the log which they were: all that its own function has made are text."""
    calls, dies = itertools.count(), [True]

    def changing(orders: Any) -> Any:
        if next(calls) == 0:
            return orders
        if dies:
            eventually(lambda: work.published("out"), what="the first event is published", timeout=60)
            raise ValueError("not yet")
        return orders.selectExpr("CAST(id AS STRING) AS id")

    made = work.pipeline.operator("changing", stateless(mode="dataframe")(changing), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), made)
    with pytest.raises(OperatorFailed, match="not yet"):
        work.run("changing", "save")
    dies.clear()
    with pytest.raises(
        OperatorFailed,
        match=r"^pipeline 'work', operator 'changing', port 'in', event 2 of raw\.out: output port 'out' has had records "
        r"with the columns id long, and now gets id string: they have one schema for the whole run",
    ):
        work.run("changing", "save")
    assert sorted(row["id"] for row in work.published("out")) == list(range(100))


def test_a_folder_that_would_get_other_columns_from_python_is_named(work: Work) -> None:
    """Events of mode ``driver`` may differ, as long as their receivers take them."""
    calls = itertools.count()

    def changing(orders: pa.Table) -> pa.Table:
        return orders if next(calls) == 0 else orders.cast(pa.schema([("id", pa.string())]))

    made = work.pipeline.operator("changing", stateless(changing), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), made)
    says = r"operator 'save', .*folder 'out' of connection 'lake' has had records with the columns id long, and now gets id"
    with pytest.raises(OperatorFailed, match=says):
        work.run("changing", "save")


def test_a_group_that_halts_does_not_wait_for_its_job_which_is_a_call_meanwhile(work: Work, spark: Any) -> None:
    def slow(orders: Any) -> Any:
        def sleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            time.sleep(60)
            yield from batches

        return orders.mapInArrow(sleep, "id long")

    bad = work.pipeline.operator("slow", stateless(mode="dataframe")(slow), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), bad)
    tracker = spark.sparkContext.statusTracker()
    work.calls.limits = {"save": CallLimit(0.5)}
    seen: list[Any] = []

    def stop_when_it_runs() -> None:
        while not work.calls.longest()[0].startswith("`job`") and not work.stop.wait(0.1):
            pass
        while not tracker.getActiveJobsIds() and not work.stop.wait(0.1):
            pass
        time.sleep(1.0)
        seen.extend([work.calls.longest(), work.calls.overrun(), time.monotonic()])
        work.stop.set()

    stopping = threading.Thread(target=stop_when_it_runs, daemon=True)
    stopping.start()
    assert not work.run("slow", "save")
    stopping.join()
    (said, seconds), over, asked = seen
    assert time.monotonic() - asked < 40
    assert not tracker.getActiveJobsIds(), "it was cancelled"
    assert said == "`job` of what comes of read action 1 of operator 'raw' of operator 'save'" and 0.9 < seconds < 60
    assert over is not None and over[0].point.operator == "save", "the limit of the operator whose files it makes"


@pytest.mark.parametrize("files_first", [False, True])
def test_a_job_of_a_function_ends_with_the_epoch(work: Work, spark: Any, files_first: bool) -> None:
    def slow(orders: Any) -> Any:
        def sleep(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            time.sleep(60)
            yield from batches

        return orders.limit(orders.mapInArrow(sleep, "id long").count())

    bad = work.pipeline.operator("slow", stateless(mode="dataframe", materialize_input=files_first)(slow), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), bad)
    tracker = spark.sparkContext.statusTracker()
    seen: list[Any] = []

    def stop_when_it_runs() -> None:
        while not work.calls.longest()[0].startswith("`frames`") and not work.stop.wait(0.1):
            pass
        while not tracker.getActiveJobsIds() and not work.stop.wait(0.1):
            pass
        seen.extend([work.calls.longest()[0], time.monotonic()])
        work.stop.set()

    stopping = threading.Thread(target=stop_when_it_runs, daemon=True)
    stopping.start()
    assert not work.run("slow", "save")
    stopping.join()
    said, asked = seen
    assert said.startswith("`frames`") and "'slow'" in said
    assert time.monotonic() - asked < 40
    assert not tracker.getActiveJobsIds(), "it was cancelled"


def test_a_file_that_is_overwritten_before_spark_reads_it_is_noticed_and_not_used(work: Work) -> None:
    """A DataFrame is lazy: Spark reads after the source has looked at its files."""

    def overwriting(orders: Any) -> Any:
        pq.write_table(pa.table({"id": list(range(1000, 1100))}), work.orders / "0.parquet")
        return orders

    bad = work.pipeline.operator("bad", stateless(mode="dataframe")(overwriting), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), bad)
    with pytest.raises(SourceChanged, match=r"source 'raw', read action 1 .* was changed while it was read"):
        work.run("bad", "save")
    assert work.published("out") == []


def test_a_full_disk_is_a_store_that_is_unavailable(tmp_path: Path, sessions: SparkSessions) -> None:
    with small_folder(tmp_path / "otherwise") as small:
        work = Work(tmp_path, sessions, payloads=small.path)

        filled = []

        def wide(orders: Any) -> Any:
            small.fill()
            filled.append(True)
            return orders.selectExpr("id", "repeat(uuid(), 2000) AS noise")

        bad = work.pipeline.operator("wide", stateless(mode="dataframe")(wide), work.raw)
        work.pipeline.writer("save", DatasetWriter("lake", "out"), bad)
        try:
            says = r"payload store .*, or a local disk of an executor: No space left on device.* action 1 of operator 'raw': "
            with pytest.raises(ExternalUnavailable, match=says):
                work.run("wide", "save")
        finally:
            if filled:
                small.make_room()
        assert not list(small.path.rglob("*.parquet"))
        sessions.get()._jvm.System.gc()  # Spark leaves files open that it could not write


class Unlucky:
    """A function whose jobs fail so often as if a worker was lost with what others had shuffled."""

    def __init__(self, times: int, *, acts: bool = False) -> None:
        self.left = times
        self.calls = 0
        self.acts = acts

    def __call__(self, orders: Any) -> Any:
        self.calls += 1
        self.left -= 1
        if self.left < 0:
            return orders
        said = "Job aborted due to stage failure: A shuffle map stage with indeterminate output was failed and retried."
        made = orders.selectExpr(f"IF(id >= 0, raise_error('{said}'), id) AS id")
        return made.collect() if self.acts else made


@pytest.mark.parametrize("acts", [False, True])
def test_an_event_whose_shuffle_was_lost_is_evaluated_again_and_nobody_is_to_blame(work: Work, acts: bool) -> None:
    """Whether the job was that of the chain, or one of the function's own."""
    unlucky = Unlucky(2, acts=acts)
    function = stateless(mode="dataframe", materialize_input=acts)(unlucky.__call__)
    work.pipeline.operator("unlucky", function, work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), "unlucky.out")
    assert work.run("unlucky", "save")
    assert sorted(row["id"] for row in work.published("out")) == list(range(300))
    assert unlucky.calls == 2 + 3


def test_where_shuffles_are_lost_again_and_again_a_person_is_asked_after_some_attempts(work: Work) -> None:
    unlucky = Unlucky(100)
    work.pipeline.operator("unlucky", stateless(mode="dataframe")(unlucky.__call__), work.raw)
    work.pipeline.writer("save", DatasetWriter("lake", "out"), "unlucky.out")
    with pytest.raises(ExternalUnavailable, match=r"Spark has lost executors while it evaluated raw"):
        work.run("unlucky", "save")
    assert unlucky.calls >= 3
    assert work.published("out") == []


def test_a_spark_that_would_ignore_what_protects_chains_is_refused(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes a property that it does not know without a word. This one knows them all, but for one of ours, and was
    launched as one that does."""
    SparkSessions(has_frames=True).get()
    known = SHUFFLE_SAFETY
    monkeypatch.setattr(determinism, "SHUFFLE_SAFETY", {**known, "spark.sql.shuffle.notOfThisSpark": "true"})
    monkeypatch.setattr(determinism, "ONE_ATTEMPT", {"spark.stage.maxConsecutiveAttempts": "0"})
    says = r"^spark\.stage\.maxConsecutiveAttempts is .*, and Spark 4\.\S+ .*\.maxConsecutiveAttempts=0 .* 4\.2"
    with pytest.raises(ConfigurationError, match=says):
        SparkSessions(has_frames=True).get()
