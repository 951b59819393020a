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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import psutil

from airflow_logio.launch import bundle, spark_submit
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.states import GroupState
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
    """Of the pipeline, in its module."""
    groups: tuple[str, ...]
    script: str
    target: float
    expected: Expected
    actions_per_event: int = 1
    opening_actions: int = 0
    """Of a writer that begins with one."""
    pipeline: Path = PIPELINE
    has_spark: bool = True


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

    def check(self, files: Iterable[Path], expected: Expected, what: str) -> None:
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
                took.setdefault(shape.name, []).append(timed(databases, work, shape))
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
class Stores:
    """Where a run keeps its payloads, and where it publishes: URLs, or folders."""

    payloads: str
    lake: str
    published: Callable[[], Iterable[Path]]
    """The files that a reader finds there, on this machine."""
    settings: SparkSettings = SETTINGS


def in_folders(folder: Path) -> Stores:
    lake = folder / "lake"
    lake.mkdir()
    return Stores(str(folder / "payloads"), str(lake), lambda: lake.rglob("*.parquet"))


@dataclass(frozen=True, slots=True)
class ChainRun:
    """A run of a pipeline, nothing launched yet."""

    shape: Shape
    context: LaunchContext
    local: LocalRun
    stores: Stores

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

    def roots(self) -> list[int]:
        """Of its drivers, the processes with all that belongs to them: spark-submit's JVMs where there are any."""
        return [psutil.Process(pid).ppid() if self.shape.has_spark else pid for pid in self.pids()]

    def is_done(self, work: Work) -> bool:
        """Raises `WrongResult` if it never will be."""
        for status in self.context.store.groups(self.context.run.run_id):
            if status.state is GroupState.PARKED:
                raise WrongResult(f"{self.shape.name}: group {status.group} is parked: {status.error}")
        return self.published() == work.events * self.shape.actions_per_event + self.shape.opening_actions

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
def _run(databases: Databases, folder: Path, orders: Path, shape: Shape, stores: Stores) -> Iterator[ChainRun]:
    log_url, _ = databases.fresh(folder)
    ref = bundle.parse_ref(f"{shape.pipeline}:{shape.attr}")
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
            payloads=stores.payloads,
        )
        context = LaunchContext(
            store=store,
            log_url=log_url,
            run=store.start_run(spec),
            imported=pipeline,
            ref=ref,
            connections={"lake": stores.lake},
            launcher=LocalProcessLauncher(folder / "drivers"),
            settings=stores.settings,
            payloads=stores.payloads,
        )
        yield ChainRun(shape, context, LocalRun(context), stores)
    finally:
        store.dispose()


Place = Callable[[Path], Stores]
"""Stores for one run, which has a folder of its own."""


def timed(databases: Databases, work: Work, shape: Shape, place: Place = in_folders) -> Took:
    """From the drivers being up to the last published file."""

    def followed(run: ChainRun, up: Up, meter: Meter) -> Took:
        cpu = meter.read()
        eventually(lambda: run.is_done(work), what="all is published", timeout=LONG, every=LOOK_SECONDS)
        return Took(run.last_at() - up.at, meter.read() - cpu)

    return supervised(databases, work, shape, followed, place)


def supervised(
    databases: Databases,
    work: Work,
    shape: Shape,
    followed: Callable[[ChainRun, Up, Meter], T],
    place: Place = in_folders,
) -> T:
    """What `followed` returns of a run, which must be exact."""
    with (
        tempfile.TemporaryDirectory(prefix="logio-bench-") as name,
        _run(databases, Path(name), work.orders, shape, place(Path(name))) as run,
    ):
        outcome: list[Outcome] = []
        thread = threading.Thread(target=lambda: outcome.append(run.local.run().outcome), name="supervisor")
        launched = time.time()
        thread.start()
        try:
            eventually(lambda: run.are_ready(1), what="all drivers are up", timeout=LONG, every=LOOK_SECONDS)
            up = Up(time.time(), time.time() - launched)
            with metered(run.roots()) as meter:
                result = followed(run, up, meter)
        except BaseException:
            run.local.halt()
            raise
        finally:
            thread.join()
        if outcome != [Outcome.FINISHED]:
            raise WrongResult(f"the run of {shape.name} is {outcome}")
        work.check(run.stores.published(), shape.expected, shape.name)
        return result


# --- the scripts ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Script:
    """One of the kinds of a file that spark-submit runs, and what must come of it."""

    kind: str
    expected: Expected
    file: Path = SCRIPT
    settings: SparkSettings = SETTINGS
    wanted: Mapping[str, Any] = field(default_factory=dict)
    """What it is told besides."""

    def run(self, work: Work, folder: Path, published: Callable[[], Iterable[Path]]) -> Took:
        """Exactly. Raises `WrongResult`."""
        config = folder / "config.json"
        common = {"kind": self.kind, "products": str(parquet_file("products")), "files_per_event": FILES_PER_EVENT}
        config.write_text(json.dumps({**common, "orders": str(work.orders), **self.wanted}))
        conf = self.settings.effective_conf({}, frames=True)
        command = spark_submit.command(self.settings, conf, f"script {self.kind}", None, self.file, config)
        done = subprocess.run(
            command,
            env=spark_submit.environment(self.settings),
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
        if done.returncode or len(lines) != 1:
            raise WrongResult(f"the script {self.kind} has failed: {(done.stderr + done.stdout)[-2_000:]}")
        work.check(published(), self.expected, f"script {self.kind}")
        return Took(**json.loads(lines[0].removeprefix("MEASURED ")))


def _script(kind: str, work: Work) -> Took:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        target = Path(name) / "out"
        target.mkdir()
        expected = {shape.script: shape.expected for shape in SHAPES} | OTHERS
        orders = work.closing if kind == "streaming_hours" else work.orders
        script = Script(kind, expected[kind], wanted={"orders": str(orders), "target": str(target)})
        return script.run(work, Path(name), lambda: target.rglob("*.parquet"))
