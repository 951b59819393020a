"""Sources whose DataFrames Spark reads: stored before they are used, exact wherever they die, forgotten when that is safe."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_logio import (
    DatasetWriter,
    RangeSource,
    SourceOperator,
    SparkSource,
    TableWriter,
    Tumbling,
    generate,
    stateless,
)
from airflow_logio.crash import CrashPoint
from airflow_logio.driver import committer, source_reader
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ExternalUnavailable, InputMissing, LogInconsistent, OperatorFailed
from airflow_logio.protocol.values import Port
from airflow_logio.spark import spark_effects
from airflow_logio.spark.session_safety import FRAMES_SAFETY
from airflow_logio.systems.payloads import Payloads, sweep_group, sweep_run
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.systems.payloads.manifests import StoredFrame
from tests.support.warehouse import rows_of
from tests.unit.spark.test_chains import Work, unchanged

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ORDERS = 300
DRAWN = f"""
    id, TIMESTAMP '2024-03-01 00:00:00' + make_interval(0, 0, 0, 0, 0, CAST(id * 37 % 300 AS INT) * 10) AS at,
    uuid() AS drawn, split(concat({", ".join(["uuid()"] * 40)}), '-') AS noise
"""
"""Orders of two days, in another order than that of their ids; other values each time."""

_AUTHORS = {
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.HadoopMapReduceCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.hadoop.mapreduce.lib.output.FileOutputCommitter",
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.writeLegacyFormat": "true",
}
"""What an author may have set, where false is no value."""


def kill(
    patch: pytest.MonkeyPatch, module: ModuleType, point: CrashPoint, nth: int, when: Callable[[], bool] = lambda: True
) -> None:
    """The thread that passes a point for the n-th time dies there, and the epoch with it. Once; counted only `when`."""
    passed = itertools.count(1)

    def crash_here(here: CrashPoint) -> None:
        if here is point and when() and next(passed) == nth:
            raise RuntimeError("killed")

    patch.setattr(module, "crash_here", crash_here)


class Reading(Work):
    """A group with a source of DataFrames, which dies in this process and is recovered."""

    def __init__(self, root: Path, sessions: SparkSessions, source: SourceOperator) -> None:
        super().__init__(root, sessions, source=source)
        self.names: tuple[str, ...] = ()

    def die(self) -> None:
        with pytest.raises(Exception, match="killed"):
            self.run(*self.names)

    def sweep(self) -> None:
        """As the next driver does it, before it begins. It is put off if an effect is discarded, and the log names it."""
        assert self.driver is not None
        below = self.driver.ref.incarnation + 1
        with contextlib.suppress(LogInconsistent):
            sweep_group(Payloads(str(self.payloads)), self.store, self.driver.run, "all", below=below)

    def finish(self) -> None:
        assert self.run(*self.names)

    def refs(self) -> list[str]:
        assert self.driver is not None
        return sorted(self.store.references(self.driver.run.run_id, self.driver.run.uid))

    def files(self) -> set[str]:
        """What is in the payload store."""
        return {str(path.relative_to(self.payloads)) for path in self.payloads.rglob("*") if path.is_file()}

    def datasets(self) -> list[Dataset]:
        """Those that rows of the log name."""
        payloads = Payloads(str(self.payloads))
        return [payloads.dataset("a row", ref) for ref in self.refs() if ".effect#" not in ref]

    def has_effect(self) -> bool:
        """The log names a stored effect."""
        return any(".effect#" in ref for ref in self.refs())

    def effect(self) -> StoredFrame:
        """The stored effect that the log names."""
        (ref,) = (ref for ref in self.refs() if ".effect#" in ref)
        found = Payloads(str(self.payloads)).stored_frame(ref.partition("#")[0])
        assert found is not None
        return found

    def assert_nothing_left(self) -> None:
        """After the sweep, what rows name, and no effect."""
        assert self.driver is not None
        payloads = Payloads(str(self.payloads))
        sweep_run(payloads, self.store, self.driver.run)
        refs = self.refs()
        named = {file.path for ref in refs for file in payloads.dataset("a row", ref).manifest.files}
        assert self.files() == named | {ref.partition("#")[0] for ref in refs}
        assert not [ref for ref in refs if ".effect#" in ref]


def journal(root: Path) -> tuple[Callable[[], None], Callable[[], int]]:
    """To note a read, and to count them."""
    path = root / "reads"

    def note() -> None:
        with path.open("a") as file:
            file.write("read\n")

    return note, lambda: len(path.read_text().splitlines())


# --- what comes out ---------------------------------------------------------------------------------------------------


@generate
def per_day(orders: pa.Table, window_start: Any) -> pa.Table:
    return pa.table({"day": [window_start.date().isoformat()], "orders": [orders.num_rows]})


DEATHS = (
    (spark_effects, CrashPoint.IN_STORE, 2),
    (spark_effects, CrashPoint.AFTER_STORE, 1),
    (committer, CrashPoint.AFTER_COMMIT, 1),
    (committer, CrashPoint.AFTER_COMMIT, 3),
    (source_reader, CrashPoint.AFTER_DROP, 1),
)
"""While events get their manifests, when the effect is stored and when the log has it, between two events, and at the end."""
READS = 3


def test_what_cannot_be_read_again_is_read_once_behind_its_commit(
    tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records were drawn; they are published, and counted by day, in their order, although three events are evaluated at
    once. Compared with DuckDB."""
    note, count = journal(tmp_path)

    def drawn(spark: Any, params: Mapping[str, Any]) -> Any:
        note()
        spark.read.parquet(params["orders"]).createOrReplaceTempView("orders")
        return spark.sql(f"SELECT {DRAWN} FROM orders")

    one = Reading(tmp_path, sessions, SparkSource(drawn, ordered_by="at", bytes_per_event="60 kB"))
    one.jobs_at_once = 3
    copied = one.pipeline.operator("copied", stateless(mode="dataframe")(lambda orders: orders.drop("noise")), one.raw)
    one.pipeline.writer("save", DatasetWriter("lake", "out"), copied)
    days = one.pipeline.operator("days", per_day, one.raw, window=Tumbling("1d", on="at"))
    one.pipeline.writer("count", TableWriter("warehouse", "days", {"day": "text", "orders": "bigint"}), days)
    one.names = ("copied", "save", "days", "count")
    stored = None
    for module, point, nth in DEATHS:
        with monkeypatch.context() as patch:
            kill(patch, module, point, nth, one.has_effect if module is committer else lambda: True)
            one.die()
        if (point, nth) == (CrashPoint.AFTER_COMMIT, 1):
            stored = one.effect()
            assert count() == READS
        one.sweep()
    one.finish()
    assert count() == READS
    assert stored is not None
    sizes = [sum(file.size for file in part.files) for part in stored.parts]
    assert len(sizes) > 3 and max(sizes) < 70_000, sizes
    published = one.published("out")
    assert sorted(row["id"] for row in published) == list(range(ORDERS))
    assert len({row["drawn"] for row in published}) == ORDERS
    events = events_of(one)
    assert [len(event) for event in events] == [part.records for part in stored.parts]
    assert all(max(before) <= min(after) for before, after in itertools.pairwise(events))
    day = "strftime(make_timestamp(epoch_us(\"at\")), '%Y-%m-%d')"
    query = f"SELECT {day}, count(*) FROM '{one.lake}/out/*.parquet' GROUP BY 1 ORDER BY 1"
    with duckdb.connect() as database:
        expected = database.execute(query).fetchall()
    assert len(expected) > 1
    assert rows_of(one.warehouse, "SELECT day, orders FROM days ORDER BY day") == expected
    one.assert_nothing_left()


def events_of(one: Reading) -> list[list[Any]]:
    """The times of each published event, in sequence."""
    receipts = [json.loads(path.read_text()) for path in sorted((one.lake / "out" / "_logio").glob("*.json"))]
    receipts.sort(key=lambda receipt: receipt["number"])
    files = [[one.lake / "out" / file["path"] for file in receipt["files"]] for receipt in receipts]
    return [[at for file in event for at in pq.read_table(file).column("at").to_pylist()] for event in files]


def test_a_dataframe_is_evaluated_once_and_its_files_go_with_its_effect(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    """Where one plan reads them and no row names them. An empty one ends the stream."""
    note, count = journal(tmp_path)
    partitions = []

    def noted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        note()
        yield from batches

    def orders(spark: Any, params: Mapping[str, Any]) -> Any:
        for name in FRAMES_SAFETY:
            spark.conf.set(name, _AUTHORS.get(name, "false"))
        found = spark.read.parquet(params["orders"])
        partitions.append(found.rdd.getNumPartitions())
        return found.mapInArrow(noted, "id long").where("id >= 0")

    one = Reading(tmp_path, sessions, SparkSource(orders))
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.pipeline.operator("same", unchanged, one.raw))
    one.names = ("same", "save")
    one.finish()
    assert sorted(row["id"] for row in one.published("out")) == list(range(ORDERS))
    assert count() == sum(partitions)
    assert {name: sessions.get().conf.get(name) for name in FRAMES_SAFETY} == FRAMES_SAFETY, "it is not switched off"
    assert not [path for path in one.files() if "/raw" in path or ".effect" in path], "no driver has swept"

    (tmp_path / "none").mkdir()
    none = Reading(tmp_path / "none", sessions, SparkSource(lambda spark: spark.sql("SELECT 1 AS id WHERE false")))
    none.pipeline.writer("save", DatasetWriter("lake", "out"), none.raw)
    none.names = ("save",)
    none.finish()
    assert none.published("out") == []
    none.assert_nothing_left()


@pytest.mark.parametrize(
    ("module", "point", "published"),
    [(spark_effects, CrashPoint.AFTER_STORE, 0), (committer, CrashPoint.AFTER_COMMIT, ORDERS)],
)
def test_a_drain_lets_what_was_read_leave_and_reads_nothing_more(
    tmp_path: Path,
    sessions: SparkSessions,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    point: CrashPoint,
    published: int,
) -> None:
    """What the log has as read leaves; what is stored and not in the log counts as not read."""
    one = Reading(tmp_path, sessions, SparkSource(lambda spark: spark.range(0, ORDERS, 1, 3), bytes_per_event="1 kB"))
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    one.names = ("save",)

    def drain(here: CrashPoint) -> None:
        if here is point and (module is spark_effects or one.has_effect()):
            one.drain.set()
            if module is spark_effects:
                time.sleep(1.0)  # the loop has heard of it when the reader continues

    with monkeypatch.context() as patch:
        patch.setattr(module, "crash_here", drain)
        one.finish()
    assert one.drain.is_set()
    assert sorted(row["id"] for row in one.published("out")) == list(range(published))
    one.assert_nothing_left()


# --- what its author has got wrong ------------------------------------------------------------------------------------


def locked(spark: Any) -> Any:
    lock = threading.Lock()

    def under_lock(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with lock:
            yield from batches

    return spark.range(10).mapInArrow(under_lock, "id long")


def failing(spark: Any) -> Any:
    def checked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 7 in batch.column("id").to_pylist():
                raise ValueError("7 is no order")
            yield batch

    return spark.range(10).mapInArrow(checked, "id long")


def unreachable(spark: Any) -> Any:
    raise ConnectionError("no route to the shop")


def numbers(text: str) -> Callable[[Any], Any]:
    return lambda spark: spark.range(10).selectExpr("id", f"{text} AS at")


@pytest.mark.parametrize(
    ("read", "ordered_by", "says"),
    [
        (lambda spark: spark.range(3).toArrow(), None, r"of a SparkSource returned pyarrow\.Table; return a DataFrame"),
        (lambda spark: spark.readStream.format("rate").load(), None, r"a streaming DataFrame, which never ends"),
        (numbers("id"), "att", r"ordered_by names 'att'; the DataFrame has the columns id, at\. Did you mean 'at'\?"),
        (numbers("CAST(id AS STRING)"), "at", r"ordered_by names 'at', which is string: make it a timestamp"),
        (
            numbers("IF(id = 3, NULL, id)"),
            "at",
            r"'at', by which the source is ordered, is null in 1 records .*: fill it",
        ),
        (numbers("INTERVAL 1 DAY"), None, r"values of type interval day, which files of Parquet do not keep"),
        (locked, None, r"PicklingError.*cannot pickle.*make locks, sessions, .* inside of it"),
        (failing, None, r"7 is no order"),
    ],
    ids=["table", "stream", "column", "text", "null", "interval", "closure", "task"],
)
def test_a_mistake_of_its_author_is_told_with_the_source(
    tmp_path: Path, sessions: SparkSessions, read: Callable[..., Any], ordered_by: str | None, says: str
) -> None:
    one = Reading(tmp_path, sessions, SparkSource(read, ordered_by=ordered_by))
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    with pytest.raises(
        OperatorFailed, match=rf"(?s)^pipeline 'work', source 'raw', read action 1 after 0 records: .*{says}"
    ):
        one.run("save")


@pytest.mark.parametrize("what", ["folder", "files", "file of Python"])
def test_input_that_is_not_there_yet_parks_the_group_at_once_by_name(
    tmp_path: Path, sessions: SparkSessions, what: str
) -> None:
    late = tmp_path / "late"

    def read(spark: Any) -> Any:
        if what == "file of Python":
            return spark.createDataFrame([(int((late / "n").read_text()),)], "id int")
        return spark.read.parquet(str(late))

    if what == "files":
        late.mkdir()
    one = Reading(tmp_path, sessions, SparkSource(read))
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    with pytest.raises(InputMissing, match=r"(?s)^pipeline 'work', source 'raw', read action 1 .*late.*not there yet"):
        one.run("save")


def test_a_system_that_is_unavailable_is_asked_again(tmp_path: Path, sessions: SparkSessions) -> None:
    one = Reading(tmp_path, sessions, SparkSource(unreachable))
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    with pytest.raises(ExternalUnavailable, match=r"reading source raw: after .* attempts .* no route to the shop"):
        one.run("save")


# --- forgetting -------------------------------------------------------------------------------------------------------


class Queue(RangeSource):
    """A file per offset, which is gone when it was forgotten. Its offsets are tuples, which come back as lists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.sent: Callable[[], int] = lambda: 0
        self._told: list[tuple[int, int]] = []

    @property
    def told(self) -> list[tuple[int, int]]:
        """(end, events that the log had)."""
        return self._told

    def first(self, params: Mapping[str, Any]) -> tuple[int]:
        return (0,)

    def last(self, params: Mapping[str, Any]) -> tuple[int]:
        return (3,)

    def latest(self, params: Mapping[str, Any], start: Any, limit: Any) -> tuple[int]:
        return (min(start[0] + 1, limit[0]),)

    def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> Any:
        return spark.read.parquet(*(str(self._folder / f"{number}.parquet") for number in range(start[0], end[0])))

    def forget(self, params: Mapping[str, Any], end: Any) -> None:
        self._told.append((end[0], self.sent()))
        for number in range(end[0]):
            (self._folder / f"{number}.parquet").unlink(missing_ok=True)


FORGETTING = (
    (committer, CrashPoint.BEFORE_COMMIT, 2),
    (committer, CrashPoint.AFTER_COMMIT, 1),
    (source_reader, CrashPoint.BEFORE_FORGET, 2),
    (source_reader, CrashPoint.AFTER_FORGET, 2),
)


def test_a_range_is_forgotten_when_the_log_has_its_event_and_not_before(
    tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is lost if it is forgotten too early; what is told and not remembered is told again."""
    queue = Queue(tmp_path / "orders")
    one = Reading(tmp_path, sessions, queue)
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.pipeline.operator("same", unchanged, one.raw))
    one.names = ("same", "save")

    def logged() -> int:
        return one.events(Port("raw", "out"))

    queue.sent = logged
    for module, point, nth in FORGETTING:
        with monkeypatch.context() as patch:
            kill(patch, module, point, nth)
            one.die()
    one.finish()
    assert sorted(row["id"] for row in one.published("out")) == list(range(ORDERS))
    ends = [end for end, _ in queue.told]
    assert ends == sorted(ends) and ends[-1] == 3
    assert all(end <= events for end, events in queue.told), queue.told
    assert not list((tmp_path / "orders").glob("*.parquet"))


_TYPES = (
    "named_struct('n', 1, 'inner', array(named_struct('c', cast('a' as char(3))))) AS nested",
    "map('a', 1) AS pairs",
    "cast('ab' as varchar(5)) AS short_text",
    "'x' COLLATE UTF8_LCASE AS folded",
    "X'01' AS bytes",
    "true AS flag",
    "cast(1.5 as decimal(38, 18)) AS money",
    "cast(1 as tinyint) AS tiny",
    "cast(1 as float) AS single",
    "DATE'1969-01-01' AS day",
    "TIMESTAMP_NTZ'2024-01-01 00:00:00' AS wall",
    "TIMESTAMP'2024-01-01 00:00:00' AS instant",
)


@pytest.mark.parametrize("replayable", [True, False])
def test_columns_of_any_type_are_the_same_in_each_range(
    replayable: bool, tmp_path: Path, sessions: SparkSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether they allow nulls or not, and whether the driver has read the ranges before or its predecessor has."""

    class Typed(Queue):
        def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> Any:
            number = "id" if start[0] else "coalesce(id, 0) AS id"
            return super().frame(spark, params, start, end).selectExpr(number, *_TYPES)

    source = Typed(tmp_path / "orders")
    source.replayable = replayable
    one = Reading(tmp_path, sessions, source)
    for folder in ("left", "right"):
        one.pipeline.writer(folder, DatasetWriter("lake", folder), one.raw)
    one.names = ("left", "right")
    with monkeypatch.context() as patch:
        kill(patch, source_reader, CrashPoint.BEFORE_READ, 2)
        one.die()
    one.finish()
    assert sorted(row["id"] for row in one.published("left")) == list(range(ORDERS))


def test_a_range_that_is_no_dataframe_is_refused(tmp_path: Path, sessions: SparkSessions) -> None:
    class Nothing(Queue):
        def frame(self, spark: Any, params: Mapping[str, Any], start: Any, end: Any) -> Any:
            return None

    one = Reading(tmp_path, sessions, Nothing(tmp_path / "orders"))
    one.pipeline.writer("save", DatasetWriter("lake", "out"), one.raw)
    with pytest.raises(
        OperatorFailed, match=r"source 'raw', .*frame\(\) of Nothing returned NoneType; return a DataFr"
    ):
        one.run("save")
