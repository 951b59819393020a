"""Records per second into a Delta table: LOG.io's `DeltaWriter` beside Structured Streaming with Spark's own Delta.

Both are exactly once, and read the same files of orders, a commit or a micro-batch for each file. A run counts if its table
has exactly what DuckDB makes of the files, by a reader that replays the table's log, in as many commits with data as there
are files. The clock is that of ``spark``: drivers up, or a session in which the same query has run once; until the log, or
the query, says that all is committed. LOG.io syncs log, payloads, data files and commits to the disk, Spark none of its own.
In a bucket requests are counted, and no time is taken: the store is moto's, a small server in Python. (S3Proxy's does not
refuse a second put of one version, or does not list markers of folders as Hadoop's client needs it.)
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Protocol
from urllib.parse import unquote

from airflow_logio.launch.spark_settings import SparkSettings
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.orders import BYTES_PER_RECORD, Expected, write_orders
from tests.bench.spark import SETTINGS, Script, Shape, Stores, Took, Work, timed
from tests.bench.spark_stores import Bucket, asked, records_of
from tests.bench.throughput import WrongResult
from tests.support.delta_spark import delta_settings, why_no_delta_spark
from tests.support.delta_tables import files_of
from tests.support.faulty_store import faulty_store
from tests.support.hadoop_aws import why_no_hadoop_aws
from tests.support.lakes import reached
from tests.support.object_store import object_store

PIPELINES = Path(__file__).parent / "pipelines" / "into_delta.py"
SCRIPT = Path(__file__).parent / "delta_script.py"
STREAMING = "Structured Streaming"
SIZES = ((40, 10_000), (6, 500_000))
"""Files, and records of each."""
COUNTED_FILES, COUNTED_RECORDS = 20, 1_000
TABLE = "orders"

CLEANSED = Expected(
    """
SELECT id, ordered_at::DATE AS day, ordered_at, store_id, product_id,
       CAST(round(price * 100) AS BIGINT) * quantity AS cents, note
FROM read_parquet('{orders}/*.parquet') WHERE quantity > 0
""",
    ("id::BIGINT", "day", "ordered_at::TIMESTAMP", "store_id::BIGINT", "product_id::BIGINT", "cents", "note"),
)


def _shape(name: str, attr: str, *, has_spark: bool) -> Shape:
    return Shape(
        *(name, attr, ("delta",), STREAMING, 0.0, CLEANSED),
        opening_actions=1,
        pipeline=PIPELINES,
        has_spark=has_spark,
    )


FEWER = _shape("LOG.io, no Spark, fewer commits", "driver_at_once", has_spark=False)
SHAPES = (
    _shape("LOG.io, no Spark", "driver", has_spark=False),
    FEWER,
    _shape("LOG.io, DataFrames", "frames", has_spark=True),
)
_SPARK = {
    # Its default, 50 tasks for what a table's log says, would be unfair on two cores.
    "spark.databricks.delta.snapshotPartitions": "2",
}


@dataclass
class Table:
    """One that a run has written; `folder` says where it is when it is looked at."""

    folder: Callable[[], Path]
    files: int
    may_be_fewer: bool = False
    commits: int = 0
    """With data, when it was looked at."""

    def published(self) -> Iterable[Path]:
        """Its data files. Raises `WrongResult` for another number of commits."""
        folder = self.folder()
        commits = [one.read_text().splitlines() for one in (folder / "_delta_log").glob("*.json")]
        self.commits = sum(any("add" in json.loads(line) for line in lines) for lines in commits)
        if self.commits != self.files and not (self.may_be_fewer and self.commits < self.files):
            raise WrongResult(f"the table was written in {self.commits} commits with data, not {self.files}")
        return [folder / unquote(path) for path in files_of(folder)]


class Place(Protocol):
    """Where tables are."""

    name: str

    @property
    def counts(self) -> bool:
        """Requests: no others than those of what is measured are to be made."""
        ...

    def ours(self, folder: Path, table: Callable[[Callable[[], Path]], Table]) -> Stores: ...

    def theirs(self, folder: Path) -> tuple[SparkSettings, str, Callable[[], Path]]:
        """Settings of the session, the table's URL, and the folder in which it can be looked at."""


class Folder:
    """On the local disk."""

    name = "folder"
    counts = False

    def ours(self, folder: Path, table: Callable[[Callable[[], Path]], Table]) -> Stores:
        lake = folder / "lake"
        lake.mkdir()
        return Stores(str(folder / "payloads"), str(lake), table(lambda: lake / TABLE).published)

    def theirs(self, folder: Path) -> tuple[SparkSettings, str, Callable[[], Path]]:
        return SETTINGS, str(folder / TABLE), lambda: folder / TABLE


@dataclass
class InBucket:
    """In a bucket, with the payload store of LOG.io and the checkpoint of the query beside it."""

    bucket: Bucket
    name: str = field(default="bucket", init=False)

    @property
    def counts(self) -> bool:
        return self.bucket.counts

    def ours(self, folder: Path, table: Callable[[Callable[[], Path]], Table]) -> Stores:
        new = self.bucket.new()
        made = table(lambda: self.bucket.brought(folder, new, f"lake/{TABLE}"))
        return Stores(
            self.bucket.url(new, "payloads"), self.bucket.url(new, "lake"), made.published, self.bucket.settings(new)
        )

    def theirs(self, folder: Path) -> tuple[SparkSettings, str, Callable[[], Path]]:
        new = self.bucket.new()
        return self.bucket.settings(new), f"s3a://{new}/{TABLE}", lambda: self.bucket.brought(folder, new, TABLE)


# --- the measurement --------------------------------------------------------------------------------------------------


def measure(databases: Databases, runs: int, sizes: Sequence[Sequence[int]] | None = None) -> Iterator[Figure]:
    """Sizes are files, and records of each. Raises `WrongResult`."""
    if why := why_no_delta_spark():
        print(f"{STREAMING} into a Delta table is not measured: {why}", flush=True)
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        for files, records in sizes or SIZES:
            work = work_of(Path(name) / f"{files}x{records}", files, records)
            yield from _rounds(databases, work, Folder(), runs)
        if why := why_no_hadoop_aws():
            print(f"requests for Delta tables in a bucket are not counted: {why}", flush=True)
            return
        work = work_of(Path(name) / "in a bucket", COUNTED_FILES, COUNTED_RECORDS)
        (at := Path(name) / "bucket").mkdir()
        with object_store(at) as objects, reached(objects), faulty_store(objects.port) as way:
            yield from _requests(databases, work, Bucket(objects, at, way))


def work_of(folder: Path, files: int, records: int) -> Work:
    orders = write_orders(folder / "orders", files, records * BYTES_PER_RECORD)
    return Work(orders, orders, files, {CLEANSED: CLEANSED.of(orders)})


def _rounds(databases: Databases, work: Work, place: Place, runs: int) -> Iterator[Figure]:
    took: dict[str, list[Took]] = {}
    commits: dict[str, list[int]] = {}
    for _ in range(runs):  # in turns: what else the machine does meanwhile meets all of them
        for name, run in _sides().items():
            taken, table = run(databases, work, place)
            took.setdefault(name, []).append(taken)
            commits.setdefault(name, []).append(table.commits)
    records = records_of(work.orders)
    theirs = took.get(STREAMING)
    for name, runs_of in took.items():
        seconds = median(one.seconds for one in runs_of)
        beside = (
            f"{median(one.seconds for one in theirs) / seconds:.2f} of {STREAMING}; "
            if theirs and theirs is not runs_of
            else ""
        )
        details = (
            f"{beside}{work.events} files of {records // work.events:,}; commits {'/'.join(map(str, commits[name]))}; "
            f"s {'/'.join(f'{one.seconds:.1f}' for one in runs_of)}; CPU s {median(one.cpu for one in runs_of):.1f}"
        )
        yield Figure(
            databases.name, f"Delta in a {place.name}: {name}", records / seconds, "records/s", "none", details
        )


Run = Callable[[Databases, Work, Place], tuple[Took, Table]]


def _sides() -> Mapping[str, Run]:
    ours = {shape.name: _run_of(shape) for shape in SHAPES}
    return ours if why_no_delta_spark() else {**ours, STREAMING: _streamed}


def _run_of(shape: Shape) -> Run:
    def run(databases: Databases, work: Work, place: Place) -> tuple[Took, Table]:
        tables: list[Table] = []

        def table(folder: Callable[[], Path]) -> Table:
            tables.append(Table(folder, work.events, may_be_fewer=shape is FEWER))
            return tables[-1]

        taken = timed(databases, work, shape, lambda folder: place.ours(folder, table))
        return taken, tables[0]

    return run


def _streamed(_: Databases, work: Work, place: Place) -> tuple[Took, Table]:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        settings, url, look = place.theirs(folder)
        table = Table(look, work.events)
        first = min(work.orders.glob("*.parquet"))
        (warm := folder / "warm").mkdir()
        (warm / first.name).hardlink_to(first)
        wanted = {
            "target": url,
            "checkpoint": f"{url}.checkpoint",
            "warm": str(warm),
            "warm_into": str(folder / "warmed") if place.counts else f"{url}.warm",
            "files_per_event": 1,
        }
        script = Script("into_delta", CLEANSED, SCRIPT, _with_delta(settings), wanted)
        return script.run(work, folder, table.published), table


def _with_delta(settings: SparkSettings) -> SparkSettings:
    """Beside what a session has anyway."""
    conf = dict(settings.conf)
    for name, value in {**delta_settings(), **_SPARK}.items():
        conf[name] = f"{conf[name]}:{value}" if name.endswith("extraClassPath") and name in conf else value
    return replace(settings, conf=conf)


def _requests(databases: Databases, work: Work, bucket: Bucket) -> Iterator[Figure]:
    bucket.counted()
    for name, run in _sides().items():
        _, table = run(databases, work, InBucket(bucket))
        yield asked(databases.name, f"Delta in a bucket: {name}", bucket.counted(), table.commits)
