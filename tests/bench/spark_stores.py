"""Chains of DataFrames with their payload store in a bucket and on HDFS, against scripts that write into the same store.

The bucket is S3Proxy's, over files of this machine, HDFS a NameNode and a DataNode with one replica; both take from the same
cores, whoever asks them. LOG.io publishes into the bucket that has its payloads. On HDFS nothing is published (a reader would
see a file while it is written), so the lake is a local folder there, for LOG.io and for the scripts that are its like.
Where Maven cannot fetch what is needed, a sentence says so. Requests are counted in runs of their own, on a way to the store
that counts, for that takes time.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import ClassVar
from urllib.parse import urlsplit

import pyarrow.parquet as pq

from airflow_logio.dataflow.writers.bucket_urls import CONSISTENT
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.systems.payloads.hdfs_client import Hdfs as HdfsClient
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.spark import CHAIN, SETTINGS, WINDOWS, Script, Shape, Stores, Took, Work, timed, work_of
from tests.support.faulty_store import FaultyStore, faulty_store
from tests.support.hadoop_aws import s3a_classes, s3a_settings, why_no_hadoop_aws
from tests.support.hdfs import Hdfs, hdfs
from tests.support.lakes import reached
from tests.support.object_store import ObjectStore, s3proxy, why_no_s3proxy
from tests.support.yarn_cluster import why_no_yarn

SCRIPT = Path(__file__).parent / "store_script.py"
COUNTED = ("PutObject", "UploadPart", "CopyObject", "GetObject", "HeadObject", "ListObjectsV2", "DeleteObjects")
"""What a bill names first; the rest is one figure."""

Files = Callable[[], Iterable[Path]]


@dataclass(frozen=True, slots=True)
class Side:
    """A script in a store: its kind, what it is told, and where its result is found."""

    script: Script
    found: Files


class Store(ABC):
    """Where payloads are, of LOG.io and of scripts."""

    name: str
    scripts: ClassVar[Mapping[str, Sequence[str]]]
    """Shape → kinds of the scripts that it is measured against."""

    @abstractmethod
    def place(self, folder: Path) -> Stores:
        """For one run of LOG.io."""

    @abstractmethod
    def script(self, kind: str, shape: Shape, folder: Path) -> Side:
        """For one run of a script."""

    def counted(self) -> Counter[str]:
        """Requests since the last question; none where they are not counted."""
        return Counter()


# --- a bucket ---------------------------------------------------------------------------------------------------------


class Bucket(Store):
    """One of S3Proxy's. Each run has a bucket of its own."""

    name = "bucket"
    scripts: ClassVar = {CHAIN.name: ("written", "plain"), WINDOWS.name: ("summed_up",)}

    def __init__(self, objects: ObjectStore, scratch: Path, way: FaultyStore | None = None) -> None:
        self._objects = objects
        self._scratch = scratch
        self._reached = objects if way is None else objects.through(way.port)
        self._way = way

    def place(self, folder: Path) -> Stores:
        bucket = self.new()
        lake = f"{self.url(bucket, 'lake')}&{CONSISTENT}=yes"
        return Stores(self.url(bucket, "payloads"), lake, self.found(folder, bucket, "lake"), self.settings(bucket))

    def script(self, kind: str, shape: Shape, folder: Path) -> Side:
        bucket = self.new()
        wanted = {name: f"s3a://{bucket}/{name}" for name in ("target", "kept")}
        script = Script(kind, shape.expected, SCRIPT, self.settings(bucket), wanted)
        return Side(script, self.found(folder, bucket, "target"))

    @property
    def counts(self) -> bool:
        return self._way is not None

    def counted(self) -> Counter[str]:
        if self._way is None:
            return Counter()
        found = self._way.counted()
        self._way.forget()
        return found

    def new(self) -> str:
        """Its name."""
        return self._objects.new_bucket()

    def url(self, bucket: str, path: str) -> str:
        endpoint = urlsplit(self._reached.endpoint)
        region = self._objects.variables["AWS_DEFAULT_REGION"]
        return f"s3://{bucket}/{path}?scheme={endpoint.scheme}&endpoint_override={endpoint.netloc}&region={region}"

    def settings(self, bucket: str) -> SparkSettings:
        """Those of LOG.io and of a script, which has no other way to say where the bucket is."""
        hadoop = {f"spark.hadoop.{name}": value for name, value in s3a_settings(self._reached, bucket).items()}
        # A rename in a bucket is a copy: scripts are spared one of two.
        once = {"spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2"}
        return replace(
            SETTINGS, conf={**s3a_classes(self._scratch), **hadoop, **once}, env_vars=dict(self._reached.variables)
        )

    def found(self, folder: Path, bucket: str, path: str) -> Files:
        return lambda: self.brought(folder, bucket, path).rglob("*.parquet")

    def brought(self, folder: Path, bucket: str, path: str) -> Path:
        """The objects below `path`, as files of this machine; that is not counted."""
        there, client = folder / "found", self._objects.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{path}/")
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        for key in keys:
            if not key.endswith("/"):  # Hadoop's marker of a folder
                file = there / key.removeprefix(f"{path}/")
                file.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, key, str(file))
        return there


# --- HDFS -------------------------------------------------------------------------------------------------------------


class OnHdfs(Store):
    """One NameNode and one DataNode."""

    name = "HDFS"
    scripts: ClassVar = {CHAIN.name: ("copied", "plain"), WINDOWS.name: ("summed_up",)}

    def __init__(self, cluster: Hdfs) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        # Without the file that says that paths without a scheme are on HDFS: orders are in a folder.
        self._conf = cluster.folder / "of clients"
        self._conf.mkdir()
        shutil.copy(cluster.conf / "hdfs-site.xml", self._conf)

    def place(self, folder: Path) -> Stores:
        lake = folder / "lake"
        lake.mkdir()
        return Stores(self._root(), str(lake), lambda: lake.rglob("*.parquet"), self._settings)

    def script(self, kind: str, shape: Shape, folder: Path) -> Side:
        root, target = self._root(), folder / "out"
        target.mkdir()
        if kind == "plain":
            script = Script(kind, shape.expected, SCRIPT, self._settings, {"target": root})
            return Side(script, lambda: self._brought(root, target))
        script = Script(kind, shape.expected, SCRIPT, self._settings, {"target": str(target), "kept": root})
        return Side(script, lambda: target.rglob("*.parquet"))

    @property
    def _settings(self) -> SparkSettings:
        return replace(SETTINGS, env_vars={"HADOOP_CONF_DIR": str(self._conf)})

    def _root(self) -> str:
        return f"{self._cluster.url}/run-{next(self._numbers)}"

    @staticmethod
    def _brought(root: str, folder: Path) -> Iterable[Path]:
        client = HdfsClient(root)
        for number, (path, is_folder) in enumerate(client.listed("", is_deep=True)):
            if not is_folder and path.endswith(".parquet"):
                (folder / f"{number}.parquet").write_bytes(client.client.read(client.key(path)).read())
        return folder.glob("*.parquet")


@contextmanager
def buckets(folder: Path) -> Iterator[Sequence[Bucket]]:
    """The bucket on which time is taken, and the one on which requests are counted."""
    with s3proxy(folder, provider="filesystem") as objects, reached(objects), faulty_store(objects.port) as way:
        yield Bucket(objects, folder), Bucket(objects, folder, way)


@contextmanager
def _on_hdfs(folder: Path) -> Iterator[Sequence[Store]]:
    with hdfs(folder) as cluster:
        yield (OnHdfs(cluster),)


def why_no_bucket() -> str | None:
    return why_no_s3proxy() or why_no_hadoop_aws()


STORES: dict[str, tuple[Callable[[Path], AbstractContextManager[Sequence[Store]]], Callable[[], str | None]]] = {
    "bucket": (buckets, why_no_bucket),
    "hdfs": (_on_hdfs, why_no_yarn),
}
"""Name → what starts it, and why it cannot be had, if it cannot."""


# --- the measurement --------------------------------------------------------------------------------------------------


def measure(databases: Databases, runs: int, events: int, event_mb: int, names: Sequence[str]) -> Iterator[Figure]:
    """`events` of about `event_mb` MB of files each, in the stores of these names. Raises `WrongResult`."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        work = work_of(Path(name) / "work", events, event_mb)
        for store in names:
            begun, why_not = STORES[store]
            if why := why_not():
                print(f"{store} is not measured: {why}", flush=True)
                continue
            folder = Path(name) / store
            folder.mkdir()
            with begun(folder) as (timed_in, *counted_in):
                yield from _of_store(databases, work, timed_in, runs, f"{events} x {event_mb} MB")
                for counting in counted_in:
                    yield from _requests(databases, work, counting)


def _of_store(databases: Databases, work: Work, store: Store, runs: int, more: str) -> Iterator[Figure]:
    took: dict[tuple[str, str], list[Took]] = {}
    for _ in range(runs):  # in turns: what else the machine does meanwhile meets all of them
        for shape in (CHAIN, WINDOWS):
            took.setdefault((shape.name, "LOG.io"), []).append(timed(databases, work, shape, store.place))
            for kind in store.scripts[shape.name]:
                took.setdefault((shape.name, kind), []).append(_script(work, store, shape, kind))
    records = records_of(work.orders)
    for shape in (CHAIN, WINDOWS):
        for kind in store.scripts[shape.name]:
            ours, theirs = took[shape.name, "LOG.io"], took[shape.name, kind]
            yield _ratio(databases.name, f"{store.name}: {shape.name}", kind, (ours, theirs), records, more)


def _script(work: Work, store: Store, shape: Shape, kind: str) -> Took:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        side = store.script(kind, shape, Path(name))
        return side.script.run(work, Path(name), side.found)


def _ratio(database: str, what: str, kind: str, took: tuple[list[Took], list[Took]], records: int, more: str) -> Figure:
    (ours, our_cpu), (theirs, their_cpu) = (
        (median(one.seconds for one in runs), median(one.cpu for one in runs)) for runs in took
    )
    listed = ["/".join(f"{one.seconds:.1f}" for one in runs) for runs in took]
    details = (
        f"{more}; records/s {records / ours:,.0f} and {records / theirs:,.0f}; CPU x {our_cpu / their_cpu:.2f}; "
        f"s {listed[0]} and {listed[1]}"
    )
    return Figure(database, f"{what}, against script {kind}", ours / theirs, "x", "none", details)


def records_of(folder: Path) -> int:
    """In the Parquet files of a folder."""
    return sum(pq.read_metadata(file).num_rows for file in folder.glob("*.parquet"))


def _requests(databases: Databases, work: Work, store: Store) -> Iterator[Figure]:
    """Of one run each: how many files there are decides, and no clock."""
    for shape in (CHAIN, WINDOWS):
        store.counted()
        timed(databases, work, shape, store.place)
        yield asked(databases.name, f"{store.name}: {shape.name}", store.counted(), work.events)
        for kind in store.scripts[shape.name]:
            _script(work, store, shape, kind)
            yield asked(databases.name, f"{store.name}: script {kind}", store.counted(), work.events)


def asked(database: str, what: str, requests: Counter[str], events: int) -> Figure:
    named = {name: requests.pop(name) for name in COUNTED if name in requests}
    listed = ", ".join(f"{count} {name}" for name, count in (*named.items(), ("others", requests.total())))
    total = sum(named.values()) + requests.total()
    return Figure(database, f"{what}, asks the store", total, "requests", "none", f"{events} events; {listed}")
