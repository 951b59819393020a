"""Chains of DataFrames on a standalone master with two workers: the driver's memory, what reaches it, and busy executors.

The driver has a heap of 512 MB. All processes are on this machine, which has fewer cores than the cluster: executors are kept
busy by tasks that wait.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

import duckdb
import psutil

from airflow_logio.launch import bundle
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher
from airflow_logio.launch.start_run import run_spec
from airflow_logio.status.run_summary import Outcome
from airflow_logio.store import open_store
from airflow_logio.supervision.local_run import LocalRun
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.pipelines.on_a_cluster import LARGE_ROWS, PARTS, ROWS, WAIT_SECONDS
from tests.bench.throughput import WrongResult
from tests.support.spark_cluster import Cluster, spark_cluster
from tests.support.waiting import eventually

PIPELINES = Path(__file__).parent / "pipelines" / "on_a_cluster.py"
HEAP = "512m"
FIRST = {"small": 100, "large": 10}
"""Pipeline → events after which memory is looked at for the first time."""
LOOKS = 6
GROWTH = 10
"""So many times as many events are published at the last look as at the first: a driver that stands still is flat, too."""
SPARE = 10
"""So many times the events that are waited for are there; the run is halted when enough of them are published."""
COLLECTIONS = 12
"""In a row: jobs are under way meanwhile, and what they need is not what stays."""
LOOK_SECONDS = 0.1
PATIENCE_SECONDS = 900.0
EVENTS_PER_EXECUTOR = 5
EVENT_LOG = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
PLAIN = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder
for name, value in json.loads(sys.argv[1]).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for event in range(20):
    numbers = spark.range(0, 40, 1, 1).selectExpr("id", "sha2(CAST(id AS STRING), 256) AS token")
    numbers.where("id % 2 = 0").write.parquet(f"{sys.argv[2]}/{event}")
spark.stop()
"""
KINDS = {2: ("by_two",), 8: ("by_eight", "by_default")}
"""Executors → pipelines whose events wait."""
MB = 2**20


@dataclass(frozen=True, slots=True)
class Task:
    """One that has ended, as the event log has it."""

    began: float
    ended: float
    """Seconds."""
    result_bytes: int
    """What the driver got of it: the lines of its files, and what Spark says of every task."""
    succeeded: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """Of a driver, when so many events were published."""

    events: int
    heap: float
    """Bytes in use after a collection, the least of `COLLECTIONS`."""
    rss: float
    """Bytes of the driver's Python."""
    jvm: float
    """Bytes of its JVM, of all kinds: the heap's share of it does not shrink."""


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A run of one group on the cluster; `lake` is where it publishes, `events` where Spark logs."""

    context: LaunchContext
    lake: Path
    spark_log: Path

    def published(self) -> int:
        """Write actions that are in the lake, as the log knows."""
        rows = self.context.store.progress(self.context.run.run_id)
        return sum(row.events for row in rows if row.port.operator == "save" and row.direction == "write")

    def python(self) -> psutil.Process:
        [status] = self.context.store.groups(self.context.run.run_id)
        assert status.identity is not None and status.identity.pid, "there is no driver on record"
        return psutil.Process(status.identity.pid)

    def memory(self) -> Memory:
        python = self.python()
        jvm, jcmd = python.ppid(), Path(os.environ["JAVA_HOME"]) / "bin" / "jcmd"

        def asked(question: str) -> str:
            return subprocess.run([jcmd, str(jvm), question], check=True, capture_output=True, text=True).stdout

        def used() -> int:
            asked("GC.run")
            found = re.findall(r"(?:generation|heap) +total \d+K, used (\d+)K", asked("GC.heap_info"))
            if not found:
                raise WrongResult("jcmd does not say how much of the heap is in use")
            return sum(map(int, found)) * 1024

        heap = min(used() for _ in range(COLLECTIONS))
        return Memory(self.published(), heap, python.memory_info().rss, psutil.Process(jvm).memory_info().rss)

    def tasks(self, at_least: float = 0.0) -> list[Task]:
        """Those that succeeded and lasted so many seconds, when the driver has ended."""
        ended = [task for task in _tasks(self.spark_log) if task.succeeded]
        return [task for task in ended if task.ended - task.began >= at_least]

    def bytes_per_event(self) -> float:
        """Of the files that are published."""
        files = list(self.lake.rglob("*.parquet"))
        return sum(file.stat().st_size for file in files) / len(list(self.lake.rglob("_logio/*.json")))

    def receipts(self) -> int:
        """Events that the lake says are published whole."""
        return len(list(self.lake.rglob("_logio/*.json")))

    def check_hashed(self, rows: int, at_least: int) -> None:
        """Raises `WrongResult` unless so many events of `Numbers` are published, each once: the even ones of its numbers, and
        what DuckDB hashes them to."""
        of_event = (
            "count(*) = count(DISTINCT id)"
            f" AND count(*) = {rows // 2} AND min(id) = event * {rows} AND max(id) = event * {rows} + {rows - 2}"
            " AND bool_and(id % 2 = 0 AND token = sha256(id::VARCHAR))"
        )
        read = f"SELECT id // {rows} AS event, id, token FROM '{self.lake}/**/*.parquet'"
        each = f"SELECT event, {of_event} AS whole FROM ({read}) GROUP BY event"
        [(events, whole)] = self._asked(f"SELECT count(*), count(*) FILTER (whole) FROM ({each})")
        if not events == whole == self.receipts() >= at_least:
            said = f"{self.receipts()} receipts, {events} events in the files, {whole} of them whole"
            raise WrongResult(f"the lake has {said}, and the log has counted {at_least}")

    def check_all(self, rows: int) -> None:
        """Raises `WrongResult` unless the numbers up to `rows` are published, each once with a token of its own."""
        counted = "count(*), count(DISTINCT id), min(id), max(id), count(DISTINCT token)"
        query = f"SELECT {counted} FROM '{self.lake}/**/*.parquet'"
        if (found := self._asked(query)) != [(rows, rows, 0, rows - 1, rows)]:
            raise WrongResult(f"{rows} numbers are to be published once, and {found} are there")

    def _asked(self, query: str) -> list[tuple[Any, ...]]:
        with duckdb.connect() as database:
            return database.execute(query).fetchall()


def _tasks(folder: Path) -> Iterator[Task]:
    """Of the one application that has logged its events there."""
    [log] = [path for path in folder.rglob("*") if path.is_file() and path.name.startswith("app-")]
    with log.open() as lines:
        for line in lines:
            if '"SparkListenerTaskEnd"' in line:
                event = json.loads(line)
                info, metrics = event["Task Info"], event.get("Task Metrics")
                is_success = event["Task End Reason"]["Reason"] == "Success"
                size = metrics["Result Size"] if metrics else 0
                yield Task(info["Launch Time"] / 1e3, info["Finish Time"] / 1e3, size, is_success)


@dataclass(frozen=True, slots=True)
class Bound:
    """Events that are waited for while memory is looked at, at most so many seconds."""

    events: int
    seconds: float


def measure(databases: Databases, small: Bound, large: Bound) -> Iterator[Figure]:
    """Raises `WrongResult`, also if too few events are published within their seconds to say anything."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder = Path(name)
        with spark_cluster(folder, cores=4, memory="4g") as cluster:
            cluster.wait_for_workers()
            for kind, rows, bound in (("small", ROWS, small), ("large", LARGE_ROWS, large)):
                yield from _memory(databases, cluster, folder / kind, kind, rows, bound)
            for executors, kinds in KINDS.items():
                for kind in kinds:
                    yield from _utilization(databases, cluster, folder / f"{kind}-{executors}", kind, executors)
            yield _least_result(databases, cluster, folder)


# --- memory -----------------------------------------------------------------------------------------------------------


def _memory(
    databases: Databases, cluster: Cluster, folder: Path, kind: str, rows: int, bound: Bound
) -> Iterator[Figure]:
    looks: list[Memory] = []

    def followed(run: ClusterRun) -> None:
        _reached(run, FIRST[kind])
        looks.append(run.memory())
        wanted = max(bound.events, GROWTH * looks[0].events)
        began = time.monotonic()
        for look in range(1, LOOKS):
            ends_at = began + look * bound.seconds / (LOOKS - 1)
            _reached(run, wanted, until=ends_at)
            looks.append(run.memory())
            if looks[-1].events >= wanted:
                break

    # Many more than are waited for: at the last look the driver must still be there.
    run = _followed(databases, cluster, folder, kind, 2, SPARE * bound.events, followed)
    counts = [one.events for one in looks]
    if counts != sorted(set(counts)) or counts[-1] < GROWTH * counts[0]:
        raise WrongResult(
            f"{kind} events published at each look: {counts}; too few of them to say whether memory grows"
        )
    run.check_hashed(rows, counts[-1])
    of = f"{counts[0]:,} to {counts[-1]:,} events of {run.bytes_per_event():,.0f} bytes, heap {HEAP}"
    for what, target, sizes in (
        ("heap after collection", "0.9 to 1.1", [one.heap for one in looks]),
        ("RSS of Python", "0.9 to 1.1", [one.rss for one in looks]),
        ("RSS of its JVM", "none", [one.jvm for one in looks]),
    ):
        yield Figure(
            databases.name,
            f"driver, {kind} events: {what}",
            sizes[-1] / sizes[0],
            "x",
            target,
            f"{of}: {_looked(counts, sizes)}",
        )
    results = [task.result_bytes for task in run.tasks()]
    details = f"median of {len(results):,} tasks, with what Spark says of every task; the most {max(results):,}"
    what = f"reaches the driver: a task with one file, {kind} events"
    yield Figure(databases.name, what, median(results), "bytes", "1024", details)


def _looked(events: Sequence[int], sizes: Sequence[float]) -> str:
    """What was seen at each look, the most of it, and how it grows with the events (least squares)."""
    listed = ", ".join(f"{size / MB:.1f} MB at {count:,}" for size, count in zip(sizes, events, strict=True))
    slope = linear_regression(events, sizes).slope
    return f"{listed}; most {max(sizes) / sizes[0]:.2f} x, {slope:+,.0f} bytes per event"


def _reached(run: ClusterRun, events: int, until: float | None = None) -> None:
    """So many events are published, or the time has come."""

    def is_so() -> bool:
        return run.published() >= events or (until is not None and time.monotonic() > until)

    eventually(is_so, what=f"{events} events are published", timeout=PATIENCE_SECONDS, every=LOOK_SECONDS)


# --- utilization ------------------------------------------------------------------------------------------------------


def _utilization(databases: Databases, cluster: Cluster, folder: Path, kind: str, executors: int) -> Iterator[Figure]:
    events = executors * EVENTS_PER_EXECUTOR
    run = _followed(databases, cluster, folder, kind, executors, events, lambda run: _reached(run, events))
    run.check_all(events * ROWS)
    tasks = run.tasks(at_least=WAIT_SECONDS)
    took = max(task.ended for task in tasks) - min(task.began for task in tasks)
    busy = sum(task.ended - task.began for task in tasks) / (executors * took)
    details = f"{kind}: {events} events of one task of {WAIT_SECONDS:g} s, {took:.1f} s from first to last task"
    yield Figure(databases.name, f"{executors} executors: busy", busy, "of 1", "none", details)
    if kind == "by_two":
        sizes = [task.result_bytes / PARTS for task in tasks]
        size, details = median(sizes), f"median of {len(tasks)} tasks of {PARTS} files each, the most {max(sizes):,.0f}"
        yield Figure(databases.name, "reaches the driver: a file of many", size, "bytes", "1024", details)


def _least_result(databases: Databases, cluster: Cluster, folder: Path) -> Figure:
    """What the driver gets of a task of Spark's own Parquet writer, in a plain script."""
    log, written = folder / "plain-log", folder / "plain"
    log.mkdir()
    given = cluster.settings({"spark.eventLog.dir": log.as_uri(), **EVENT_LOG})
    conf = {"spark.master": cluster.url, "spark.cores.max": "2", "spark.executor.memory": "512m", **given.conf}
    script = [sys.executable, "-c", PLAIN, json.dumps(conf), str(written)]
    subprocess.run(
        script, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **given.env_vars}
    )
    sizes = [task.result_bytes for task in _tasks(log)]
    details = f"median of {len(sizes)} tasks of a script that writes the same files: what Spark says of every task"
    return Figure(
        databases.name, "reaches the driver: a task of a plain script", median(sizes), "bytes", "none", details
    )


# --- runs -------------------------------------------------------------------------------------------------------------


def _followed(
    databases: Databases,
    cluster: Cluster,
    folder: Path,
    attr: str,
    executors: int,
    events: int,
    follow: Callable[[ClusterRun], None],
) -> ClusterRun:
    """A run that was followed, then ended, whether it has finished or not."""
    folder.mkdir()
    with _run(databases, cluster, folder, attr, executors, events) as run:
        local, outcomes = LocalRun(run.context), list[Any]()
        thread = threading.Thread(target=lambda: outcomes.append(local.run().outcome), name="supervisor")
        thread.start()
        try:
            follow(run)
        finally:
            local.halt()
            thread.join()
        if outcomes not in ([Outcome.FINISHED], [Outcome.HALTED]):
            raise WrongResult(f"the run of {attr} is {outcomes}")
        return run


@contextmanager
def _run(
    databases: Databases, cluster: Cluster, folder: Path, attr: str, executors: int, events: int
) -> Iterator[ClusterRun]:
    log_url, _ = databases.fresh(folder)
    lake, payloads, spark_log = (folder / name for name in ("lake", "payloads", "spark"))
    for made in (lake, spark_log):
        made.mkdir()
    ref = bundle.parse_ref(f"{PIPELINES}:{attr}")
    pipeline = bundle.load(ref)
    store = open_store(log_url, application="logio bench")
    conf = {"spark.eventLog.dir": spark_log.as_uri(), **EVENT_LOG}
    try:
        spec = run_spec(
            pipeline,
            ref,
            dag_id="bench",
            dag_run_id=attr,
            params={"events": events},
            connections={"lake": "lake"},
            payloads=str(payloads),
        )
        context = LaunchContext(
            store=store,
            log_url=log_url,
            run=store.start_run(spec),
            imported=pipeline,
            ref=ref,
            connections={"lake": str(lake)},
            launcher=LocalProcessLauncher(folder / "drivers"),
            settings=cluster.settings(conf, total_executor_cores=executors, driver_memory=HEAP),
            payloads=str(payloads),
        )
        yield ClusterRun(context, lake, spark_log)
    finally:
        store.dispose()
