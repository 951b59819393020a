"""Fifty days that a real Airflow backfills at once, with four worker slots and `drivers_at_once=4`; beside `logio run`.

Airflow's own database, the log and the warehouse are in one PostgreSQL. Every half second it is seen which tasks hold a slot,
which are deferred, which runs have not begun for want of a place, and how many drivers there are. Each driver's times are
those of the log. Afterwards each day must have exactly its rows.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import psutil
import sqlalchemy as sa

from airflow_logio.launch import driver_folders
from airflow_logio.protocol.states import GroupState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverRecord
from demo.places import Places
from demo.rest import AirflowRefused, AirflowUnavailable
from demo.standalone import COMPONENTS, Standalone, component_of
from tests.bench.cpu import cpu_seconds
from tests.bench.databases import Postgres, server_pid
from tests.bench.days import FIRST, PIPELINES, ROWS, Looks, by_command, days_from_first, write_day
from tests.bench.pipelines.days import REST_SECONDS
from tests.bench.throughput import WrongResult
from tests.support.person import Person
from tests.support.waiting import eventually
from tests.support.warehouse import rows_of

SLOTS, PLACES = 4, 4
"""Of workers, which the instance is given; of drivers, as the pipeline says."""
LOOK_SECONDS = 0.5
NAMED = {"scheduler": "scheduler and tasks"}
"""The scheduler starts the processes of tasks."""
LONGEST_SECONDS = 3_600.0
"""Of the whole backfill, on a machine with much else to do."""
DAG_ID, GROUP = "bench_days", "read"
_DAG = """
from datetime import UTC, datetime

from airflow.sdk import DAG, CronPartitionTimetable, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from days import {way}

nightly = CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
begin, end = (datetime(year, 1, 1, tzinfo=UTC) for year in ({year}, {year} + 1))
with DAG(
    "{dag_id}",
    schedule=nightly,
    start_date=begin,
    end_date=end,
    catchup=False,
    max_active_runs={days},
    params={{"data": Param("", type="string")}},
):
    LogioPipelineGroup({way}, connections={{"warehouse": "warehouse_db"}})
"""
_TASKS = """
    SELECT dag_run.run_id, dag_run.state, task_id, task_instance.state FROM dag_run
    JOIN task_instance ON task_instance.dag_id = dag_run.dag_id AND task_instance.run_id = dag_run.run_id
    WHERE dag_run.dag_id = :dag_id
"""
_BEGUN_AGAIN = "SELECT count(*) FROM task_instance WHERE dag_id = :dag_id AND try_number > 1"
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
_SIZE = "SELECT pg_database_size(current_database())"
_REFUSED = "It begins when there is one"
"""What a group's task says that has asked for a place and has got none."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a day is. `way` is a pipeline of `tests/bench/pipelines/days.py`."""

    way: str
    what: str


FORMS = (Form("at_the_end", "short days"), Form("resting", f"days that wait {REST_SECONDS:.0f} s for something"))


@dataclass(frozen=True, slots=True)
class Drivers:
    """Those of all runs, by the times of the log."""

    most: int
    """At once."""
    together: float
    """Seconds from the claim to the end, of all of them."""
    one: float
    """Of one: the median."""


@dataclass(frozen=True, slots=True)
class Commanded:
    """The same days by `logio run`."""

    seconds: float
    drivers: Drivers


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What came of it. Seconds, but for counts and sizes."""

    form: Form
    days: int
    seconds: float
    beside: Commanded
    drivers: Drivers
    seen_drivers: int
    """Processes at once, at most: one that has ended for the log may take a while to be gone."""
    dag_runs: int
    """Running at once, at most."""
    deferred: int
    """Tasks at once, at most: each holds no slot."""
    waiting: int
    """Runs at once, at most, that had not begun and all tasks of which were deferred."""
    slots: float
    """Held on average."""
    most_slots: int
    held: dict[str, float]
    """Task → seconds for which it held a slot, for each run."""
    waited: int
    """Runs whose task has asked for a place and got none."""
    vain: int
    """How often such a task was woken and got none again."""
    begun_again: int
    """Tasks that needed more than one try."""
    cpu: dict[str, float]
    """Component → seconds of CPU, with all that it has started but drivers."""
    triggerer_mb: float
    commits: float
    """Of Airflow's own database, a second."""
    database_mb: float

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """What it is, under Airflow, by `logio run`."""
        ours, others, beside = self.drivers, self.beside.drivers, self.beside.seconds
        yield f"{self.days} days at once, s", f"{self.seconds:.0f}", f"{beside:.0f}"
        yield "Airflow adds to each day, s", f"{(self.seconds - beside) / self.days:.1f}", "-"
        yield "drivers at once, at most: by the log; processes", f"{ours.most}; {self.seen_drivers}", f"{others.most}"
        yield "on average", f"{ours.together / self.seconds:.1f}", f"{others.together / beside:.1f}"
        yield "from claim to end, one (median), s", f"{ours.one:.1f}", f"{others.one:.1f}"
        yield "DAG runs at once, at most", f"{self.dag_runs}", "-"
        yield "runs at once, at most, that wait for a place and hold no slot", f"{self.waiting}", "-"
        yield "deferred tasks at once, at most", f"{self.deferred}", "-"
        yield "worker slots held, at most; on average", f"{self.most_slots}; {self.slots:.1f}", "-"
        for task, seconds in self.held.items():
            yield f"`{task}` of a run holds a slot, s", f"{seconds:.1f}", "-"
        yield "runs that waited for a place; woken in vain, times", f"{self.waited}; {self.vain}", "-"
        yield "tasks that needed another try", f"{self.begun_again}", "-"
        for name, seconds in self.cpu.items():
            yield f"CPU for each run, {NAMED.get(name, name)}, s", f"{seconds / self.days:.1f}", "-"
        yield "memory of the triggerer, at most, MB", f"{self.triggerer_mb:.0f}", "-"
        yield "Airflow's database: commits/s; MB", f"{self.commits:.0f}; {self.database_mb:.0f}", "-"


@dataclass(frozen=True, slots=True)
class Compared:
    """All forms, in one table."""

    forms: tuple[Backfilled, ...]

    def as_json(self) -> dict[str, Any]:
        return {one.form.way: asdict(one) for one in self.forms}

    def line(self) -> str:
        """As docs/performance.md has it."""
        head = ["", *(word for one in self.forms for word in (f"{one.form.what}, Airflow", "`logio run`"))]
        lines = [head, ["---"] * len(head)]
        for rows in zip(*(one.rows() for one in self.forms), strict=True):
            lines.append([rows[0][0], *(cell for _, *cells in rows for cell in cells)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure(databases: Postgres, days: int) -> Iterator[Compared]:
    """Raises `WrongResult` if a DAG run is not green, a day has not exactly its rows, or there were too many drivers."""
    done = []
    for form in FORMS:
        beside = _by_command(databases, form, days)
        with (
            tempfile.TemporaryDirectory(prefix="logio-bench-") as name,
            _instance(Path(name), databases, form, days) as bench,
        ):
            done.append(bench.backfilled(beside))
        # Said at once: the next form takes minutes.
        print(f"  {form.what}: {done[-1].seconds:.0f} s; by `logio run` {beside.seconds:.0f} s", flush=True)
    yield Compared(tuple(done))


def _by_command(databases: Postgres, form: Form, days: int) -> Commanded:
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name:
        folder, names = Path(name), days_from_first(days)
        log_url, warehouse_url = databases.fresh(folder)
        _write(folder, names)
        seconds = by_command(log_url, warehouse_url, folder, names, days, form.way)
        _check(warehouse_url, folder, names)
        store = open_store(log_url, application="logio bench")
        try:
            return Commanded(seconds, _drivers(store))
        finally:
            store.dispose()


@contextmanager
def _instance(folder: Path, databases: Postgres, form: Form, days: int) -> Iterator[_Bench]:
    names = days_from_first(days)
    log_url, warehouse_url = databases.fresh(folder)
    airflow_url = databases.another().replace("postgresql:", "postgresql+psycopg2:")
    dags, data = folder / "dags", folder / "data"
    for made in (dags, data):
        made.mkdir()
    shutil.copy(PIPELINES, dags)
    (dags / "bench_days.py").write_text(_DAG.format(dag_id=DAG_ID, way=form.way, days=days, year=FIRST.year))
    _write(data, names)
    places = Places(folder, dags, log_url, warehouse_url)
    settings = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": airflow_url, "AIRFLOW__CORE__PARALLELISM": str(SLOTS)}
    standalone = Standalone(places, settings, wanted_port=0)
    store = open_store(log_url, application="logio bench")
    engine = sa.create_engine(airflow_url)
    try:
        standalone.start()
        person = Person(standalone.url, standalone.login)
        eventually(lambda: _is_ready(standalone, person), what="Airflow is ready", timeout=600, every=0.5)
        yield _Bench(form, names, places, data, standalone, person, store, engine)
    finally:
        engine.dispose()
        store.dispose()
        standalone.stop()
        driver_folders.end_under(places.drivers)


def _is_ready(standalone: Standalone, person: Person) -> bool:
    standalone.check_alive()
    try:
        if errors := person.is_healthy() and person.import_errors():
            raise WrongResult(f"the DAG cannot be imported: {errors[0]}")
        return person.is_healthy() and person.has_dag(DAG_ID)
    except (AirflowUnavailable, AirflowRefused):
        return False


@dataclass(slots=True)
class _Bench:
    form: Form
    names: Sequence[str]
    places: Places
    data: Path
    standalone: Standalone
    person: Person
    store: LogStore
    engine: sa.Engine

    def backfilled(self, beside: Commanded) -> Backfilled:
        found = {component_of(one): one for one in self.standalone.components()}
        if missing := set(COMPONENTS) - found.keys():
            raise WrongResult(f"Airflow's {', '.join(sorted(missing))} is not found")
        components = {name: found[name] for name in COMPONENTS}
        components["PostgreSQL"] = psutil.Process(server_pid(self.places.log_url))
        looks = _Sights(self.store, self.engine, components["triggerer"])
        self.person.unpause(DAG_ID)
        cpu = {name: cpu_seconds(one) for name, one in components.items()}
        commits = self._ask(_COMMITS)
        processes = Looks(self.places.drivers)
        with processes.looking():
            began = time.monotonic()
            self._begin()
            while not looks.look():
                self.standalone.check_alive()
                if ended := [name for name, one in components.items() if not _is_alive(one)]:
                    raise WrongResult(f"{', '.join(ended)} has ended: {looks.states}")
                if time.monotonic() - began > LONGEST_SECONDS:
                    raise WrongResult(f"not over after {LONGEST_SECONDS:.0f} s: {looks.states}")
                time.sleep(LOOK_SECONDS)
            seconds = time.monotonic() - began
        cpu = {name: cpu_seconds(one) - cpu[name] for name, one in components.items()}
        self._check_all(looks)
        drivers, refused = _drivers(self.store), self._refused()
        if drivers.most > PLACES:
            raise WrongResult(f"{drivers.most} drivers at once by the log, {processes.most} processes")
        return Backfilled(
            self.form,
            len(self.names),
            seconds,
            beside,
            drivers,
            processes.most,
            looks.dag_runs,
            looks.deferred,
            looks.waiting,
            sum(looks.held.values()) / seconds,
            looks.slots,
            {task: looks.held[task] / len(self.names) for task in ("start_run", GROUP, "supervise", "finish_run")},
            sum(asked > 0 for asked in refused),
            sum(max(0, asked - 1) for asked in refused),
            self._ask(_BEGUN_AGAIN),
            cpu,
            looks.memory / 2**20,
            (self._ask(_COMMITS) - commits) / seconds,
            self._ask(_SIZE) / 2**20,
        )

    def _begin(self) -> None:
        first, last = (date.fromisoformat(self.names[place]) for place in (0, -1))
        self.person.backfill(DAG_ID, first, last, {"data": str(self.data)}, at_once=len(self.names))

    def _ask(self, query: str) -> int:
        with self.engine.connect() as connection:
            return int(
                connection.execute(sa.text(query), {"dag_id": DAG_ID} if ":dag_id" in query else {}).scalar_one()
            )

    def _check_all(self, looks: _Sights) -> None:
        if looks.states != Counter({"success": len(self.names)}):
            raise WrongResult(f"the DAG runs are {looks.states}")
        if found := sorted({str(run.spec.partition) for run in self.store.list_runs()} ^ set(self.names)):
            raise WrongResult(f"no run, or one too many, of {found}")
        _check(self.places.warehouse_url, self.data, self.names)

    def _refused(self) -> list[int]:
        """How often each run has asked for a place and has got none."""
        logs = (self.places.airflow_home / "logs" / f"dag_id={DAG_ID}").glob(
            f"run_id=*/task_id=*{GROUP}/attempt=*.log*"
        )
        found = Counter[str]()
        for log in logs:
            found[log.parts[-3]] += len(re.findall(_REFUSED, log.read_text(errors="replace")))
        if len(found) != len(self.names):
            raise WrongResult(f"{len(found)} of {len(self.names)} tasks have a log")
        return list(found.values())


@dataclass(slots=True)
class _Sights:
    """What was seen of tasks, one look after the other."""

    store: LogStore
    engine: sa.Engine
    triggerer: psutil.Process
    states: Counter[str] = field(default_factory=Counter)
    """Of DAG runs, at the last look."""
    held: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Task → seconds for which one of them held a slot."""
    slots: int = 0
    deferred: int = 0
    waiting: int = 0
    dag_runs: int = 0
    memory: int = 0
    _looked_at: float = field(default_factory=time.monotonic)

    def look(self) -> bool:
        """Whether all DAG runs have ended."""
        with self.engine.connect() as connection:
            rows = connection.execute(sa.text(_TASKS), {"dag_id": DAG_ID}).all()
        now = time.monotonic()
        passed, self._looked_at = now - self._looked_at, now
        self.states = Counter(dict((run, state) for run, state, _, _ in rows).values())
        working = Counter(task.rpartition(".")[2] for _, _, task, state in rows if state == "running")
        for task, number in working.items():
            self.held[task] += number * passed
        self.slots = max(self.slots, working.total())
        self.deferred = max(self.deferred, sum(state == "deferred" for *_, state in rows))
        self.dag_runs = max(self.dag_runs, self.states["running"])
        busy = {run for run, _, _, state in rows if state in ("queued", "running")}
        sleeping = {run for run, _, task, state in rows if state == "deferred" and task.endswith(f".{GROUP}")} - busy
        new = {one.run.spec.key.dag_run_id for one in self.store.sight(None) if one.groups[0].state is GroupState.NEW}
        self.waiting = max(self.waiting, len(sleeping & new))
        self.memory = max(self.memory, _memory(self.triggerer))
        return bool(rows) and self.states.keys() <= {"success", "failed"}


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def _memory(root: psutil.Process) -> int:
    total = 0
    for process in (root, *root.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total


def _drivers(store: LogStore) -> Drivers:
    drivers: list[DriverRecord] = [one for run in store.list_runs() for one in store.drivers(run.run_id)]
    if unended := [one for one in drivers if one.ended_at is None]:
        raise WrongResult(f"{len(unended)} drivers have not ended")
    times = [(one.claimed_at, one.ended_at or 0.0) for one in drivers]
    changes = sorted([(end, -1) for _, end in times] + [(begin, 1) for begin, _ in times])
    alive = most = 0
    for _, change in changes:
        alive += change
        most = max(most, alive)
    lasted = [end - begin for begin, end in times]
    return Drivers(most, sum(lasted), median(lasted))


def _write(folder: Path, names: Sequence[str]) -> None:
    for day in names:
        write_day(folder / f"{day}.parquet", day, ROWS)


def _check(warehouse_url: str, folder: Path, names: Sequence[str]) -> None:
    """Every row of every day, and no other row. Raises `WrongResult`."""
    files = [str(folder / f"{day}.parquet") for day in names]
    with duckdb.connect() as connection:
        wanted = connection.execute("SELECT day::text, id, text FROM read_parquet(?) ORDER BY ALL", [files]).fetchall()
    found = rows_of(warehouse_url, "SELECT day, id, text FROM filled ORDER BY day, id, text")
    if [(str(day), number, text) for day, number, text in found] != wanted:
        raise WrongResult(f"the table has {len(found)} rows, which are not the {len(wanted)} of all days")
