"""A chain of DataFrames as LOG.io runs it, against PySpark scripts that do the same: wall and CPU seconds, in one run.

The group is a real driver by spark-submit, with its log in a database. Its time is from all drivers being up, Spark warm, to
the last published file; that of a script from its warm session to its last file. Both have the same settings of Spark, the
same functions and the same files; they take turns, and each result is compared with what DuckDB makes of the files. CPU
seconds are those of drivers, their JVMs and workers, without the supervisor, which asks the log once per look.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import psutil

from airflow_logio.launch import bundle, spark_submit
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.start_run import run_spec
from airflow_logio.status.run_summary import Outcome
from airflow_logio.store import open_store
from airflow_logio.supervision.local_run import LocalRun
from demo.data import parquet_file
from tests.bench.cpu import Meter, metered
from tests.bench.databases import Databases
from tests.bench.figure import Figure
from tests.bench.orders import (
    HOURS,
    HOURS_PER_FILE,
    NAMED,
    Expected,
    Fingerprint,
    with_a_late_record,
    write_orders,
)
from tests.bench.throughput import WrongResult
from tests.support.waiting import eventually

PIPELINE = Path(__file__).parent / "pipelines" / "orders.py"
SCRIPT = Path(__file__).parent / "spark_script.py"
WRITER = "save"
FILES_PER_EVENT = 4
SETTINGS = SparkSettings(master="local[2]", driver_memory="2g")
LOOK_SECONDS = 0.02
LONG = 3_600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Took:
    """Wall and CPU seconds of one run."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A pipeline, and the script that it is measured against: it writes the same datasets with sync."""

    name: str
    attr: str
    """Of the pipeline, in `PIPELINE`."""
    groups: tuple[str, ...]
    script: str
    target: float
    expected: Expected
    actions_per_event: int = 1


CHAIN = Shape("chain", "chain", ("chain",), "synced", 1.15, NAMED)
HOURLY = HOURS_PER_FILE * FILES_PER_EVENT
WINDOWS = Shape("windows", "windows", ("group1",), "windowed", 1.25, HOURS, HOURLY)
IN_THREE = Shape(
    "windows, three groups", "windows_in_three", ("group1", "group2", "group3"), "windowed", 1.5, HOURS, HOURLY
)
SHAPES = (CHAIN, WINDOWS, IN_THREE)
OTHERS = {"plain": NAMED, "streaming": NAMED, "summed": HOURS, "streaming_hours": HOURS}
"""Further scripts, and what must come of them."""


@dataclass(frozen=True, slots=True)
class Work:
    """What every run does: the orders, and what must come of them."""

    orders: Path
    closing: Path
    """The same, and a record that moves a watermark past all hours."""
    events: int
    wanted: dict[Expected, Fingerprint]

    def check(self, files: Iterator[Path], expected: Expected, what: str) -> None:
        """Raises `WrongResult`."""
        if (is_so := expected.found(files)) != self.wanted[expected]:
            raise WrongResult(f"{what}: {is_so} are records and hash, and {self.wanted[expected]} were expected")


def measure(databases: Databases, runs: int, events: int, event_mb: int) -> Iterator[Figure]:
    """`events` of about `event_mb` MB of files each. Raises `WrongResult`."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        work = work_of(Path(name), events, event_mb)
        took: dict[str, list[Took]] = {}
        for _ in range(runs):  # in turns: what else the machine does meanwhile meets all of them
            for shape in SHAPES:
                took.setdefault(shape.name, []).append(_timed(databases, work, shape))
            for kind in (*dict.fromkeys(shape.script for shape in SHAPES), *OTHERS):
                took.setdefault(kind, []).append(_script(kind, work))
        for shape in SHAPES:
            yield _ratio(databases.name, took, shape.name, shape.script, f"{shape.target}", f"{events} x {event_mb} MB")
        split = (
            f"which does not sync; of it {_seconds(took['synced']) / _seconds(took['plain']):.2f} for batches and sync"
        )
        yield _ratio(databases.name, took, CHAIN.name, "plain", "none", split)
        for shape in (WINDOWS, IN_THREE):
            kept = f"which keeps no batch; of it {_seconds(took['windowed']) / _seconds(took['summed']):.2f} for keeping them"
            yield _ratio(databases.name, took, shape.name, "summed", "none", kept)
        for ours, script in ((CHAIN, "streaming"), (WINDOWS, "streaming_hours")):
            more = "availableNow, as many files per trigger; it does not sync what it writes"
            yield _ratio(databases.name, took, ours.name, script, "none", more)


def work_of(folder: Path, events: int, event_mb: int) -> Work:
    orders = write_orders(folder / "orders", events * FILES_PER_EVENT, event_mb * 10**6 // FILES_PER_EVENT)
    closing = with_a_late_record(orders, folder / "closing")
    return Work(orders, closing, events, {shape.expected: shape.expected.of(orders) for shape in SHAPES})


def _ratio(database: str, took: dict[str, list[Took]], ours: str, script: str, target: str, more: str) -> Figure:
    of_both = f"{ours} {_listed(took[ours])}; {script} {_listed(took[script])}"
    cpu = median(one.cpu for one in took[ours]) / median(one.cpu for one in took[script])
    value = _seconds(took[ours]) / _seconds(took[script])
    return Figure(
        database, f"{ours}, against script {script}", value, "x", target, f"{more}; CPU x {cpu:.2f}; {of_both}"
    )


def _seconds(runs: list[Took]) -> float:
    return median(one.seconds for one in runs)


def _listed(runs: list[Took]) -> str:
    return ", ".join(f"{one.seconds:.1f} s (CPU {one.cpu:.1f})" for one in runs)


# --- the group --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainRun:
    """A run of a pipeline, nothing launched yet; `lake` is where it publishes."""

    shape: Shape
    context: LaunchContext
    local: LocalRun
    lake: Path

    def published(self) -> int:
        """Write actions that are in the lake, as the log knows."""
        rows = self.context.store.progress(self.context.run.run_id)
        return sum(row.events for row in rows if row.port.operator == WRITER and row.direction == "write")

    def are_ready(self, incarnation: int) -> bool:
        groups = self.context.store.groups(self.context.run.run_id)
        return all(status.incarnation == incarnation and status.ready for status in groups)

    def pids(self) -> list[int]:
        identities = [status.identity for status in self.context.store.groups(self.context.run.run_id)]
        return [identity.pid for identity in identities if identity is not None]

    def is_done(self, work: Work) -> bool:
        return self.published() == work.events * self.shape.actions_per_event

    def last_at(self) -> float:
        """When the last file was published."""
        rows = self.context.store.progress(self.context.run.run_id)
        return max(row.last_at for row in rows if row.port.operator == WRITER and row.direction == "write")


@dataclass(frozen=True, slots=True)
class Up:
    """All drivers of a run are up, for the first time."""

    at: float
    after: float
    """Seconds since the first of them was launched."""


@contextmanager
def _run(databases: Databases, folder: Path, orders: Path, shape: Shape) -> Iterator[ChainRun]:
    log_url, _ = databases.fresh(folder)
    lake, payloads = folder / "lake", folder / "payloads"
    lake.mkdir()
    ref = bundle.parse_ref(f"{PIPELINE}:{shape.attr}")
    pipeline = bundle.load(ref)
    store = open_store(log_url, application="logio bench")
    try:
        spec = run_spec(
            pipeline,
            ref,
            dag_id="bench",
            dag_run_id="bench",
            params={"orders": str(orders), "products": str(parquet_file("products"))},
            connections={"lake": "lake"},
            hold_sources=True,
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
            settings=SETTINGS,
            payloads=str(payloads),
        )
        yield ChainRun(shape, context, LocalRun(context), lake)
    finally:
        store.dispose()


def _timed(databases: Databases, work: Work, shape: Shape) -> Took:
    """From the drivers being up to the last published file."""

    def followed(run: ChainRun, up: Up, meter: Meter) -> Took:
        cpu = meter.read()
        eventually(lambda: run.is_done(work), what="all is published", timeout=LONG, every=LOOK_SECONDS)
        return Took(run.last_at() - up.at, meter.read() - cpu)

    return supervised(databases, work, shape, followed)


def supervised(databases: Databases, work: Work, shape: Shape, followed: Callable[[ChainRun, Up, Meter], T]) -> T:
    """What `followed` returns of a run, which must be exact."""
    with (
        tempfile.TemporaryDirectory(prefix="logio-bench-") as name,
        _run(databases, Path(name), work.orders, shape) as run,
    ):
        outcome: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcome.append(run.local.run().outcome), name="supervisor")
        launched = time.time()
        thread.start()
        try:
            eventually(lambda: run.are_ready(1), what="all drivers are up", timeout=LONG, every=LOOK_SECONDS)
            up = Up(time.time(), time.time() - launched)
            with metered(psutil.Process(pid).ppid() for pid in run.pids()) as meter:  # spark-submit's JVMs
                result = followed(run, up, meter)
        except BaseException:
            run.local.halt()
            raise
        finally:
            thread.join()
        if outcome != [Outcome.FINISHED]:
            raise WrongResult(f"the run of {shape.name} is {outcome}")
        work.check(run.lake.rglob("*.parquet"), shape.expected, shape.name)
        return result


# --- the scripts ------------------------------------------------------------------------------------------------------


def _script(kind: str, work: Work) -> Took:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        target, config = Path(name) / "out", Path(name) / "config.json"
        target.mkdir()
        config.write_text(
            json.dumps(
                {
                    "kind": kind,
                    "orders": str(work.closing if kind == "streaming_hours" else work.orders),
                    "products": str(parquet_file("products")),
                    "files_per_event": FILES_PER_EVENT,
                    "target": str(target),
                }
            )
        )
        conf = SETTINGS.effective_conf({}, frames=True)
        command = spark_submit.command(SETTINGS, conf, f"script {kind}", None, SCRIPT, config)
        done = subprocess.run(
            command, env=spark_submit.environment(SETTINGS), capture_output=True, text=True, timeout=LONG, check=False
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
        if done.returncode or len(lines) != 1:
            raise WrongResult(f"the script {kind} has failed: {(done.stderr + done.stdout)[-2_000:]}")
        expected = {shape.script: shape.expected for shape in SHAPES} | OTHERS
        work.check(target.rglob("*.parquet"), expected[kind], f"script {kind}")
        return Took(**json.loads(lines[0].removeprefix("MEASURED ")))
