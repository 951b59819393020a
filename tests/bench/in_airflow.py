"""kill -9 of a driver under a real Airflow: seconds until it is detected, and until its group commits its next Output Set.

Two forms: task `supervise` of the run's own DAG run, and the recovery DAG. Two conditions: *idle*, with every other driver
finished or waiting (the one to be killed is stopped until they are), and *loaded*, with all of them at work on a source that
is several times as long; there the commits of the other groups are counted, too.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_logio.demo.check import check
from airflow_logio.demo.data import parquet_file
from airflow_logio.demo.places import Places
from airflow_logio.demo.rest import Airflow, AirflowUnavailable
from airflow_logio.demo.standalone import Standalone
from airflow_logio.protocol.states import GroupState
from airflow_logio.runtime import leftovers
from airflow_logio.runtime.recoveries import recoveries
from airflow_logio.runtime.snapshot import Observer
from airflow_logio.store.opening import open_store
from airflow_logio.store.records import GroupStatus, Run
from airflow_logio.store.sql.drivers import driver_records
from airflow_logio.store.sql.store import SqlLogStore
from tests.bench.databases import Postgres
from tests.bench.throughput import WrongResult
from tests.support.waiting import eventually

DAGS = Path(__file__).parents[2] / "dags"
FORMS = {"supervise": "supervise", "recovery DAG": "dag"}
GROUPS = ("totals", "hourly")
BEHIND = {"totals": {"totals"}, "hourly": {"hourly", "publish"}}
LOOK_SECONDS = 0.05
SAMPLE_SECONDS = 5.0
"""Of commits before a kill."""
SETTLE_SECONDS = 0.3
"""What the killed driver had sent to the log is committed by then, and counts for it."""
LONGER = 4
"""The loaded source is so many times as long."""
DAG_ID = "bench_sales"
_DAG = """
from airflow.sdk import DAG, Param
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol.liveness import RecoveryBudget
from pipelines.sales import sales

with DAG("bench_sales", schedule=None, max_active_runs=1, params={{"transactions": Param(None, type=["null", "string"])}}):
    LogioPipelineGroup(
        sales,
        connections={{"warehouse": "warehouse_db"}},
        recovery={recovery!r},
        lease_seconds=600,
        recovery_budget=RecoveryBudget(recoveries=100),
    )
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill; seconds after it."""

    group: str
    detected: float
    steps: dict[str, float]
    """fenced, launched, running, first commit: each after the one before."""
    output_set: float
    """The first new Output Set is committed."""
    others: dict[str, float]
    """Group → its commits per second until then, against those in as long a time before; groups without input left out."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """All kills of one group in one form and condition."""

    form: str
    group: str
    condition: str
    kills: tuple[Kill, ...]

    def as_json(self) -> dict[str, Any]:
        names = ("fenced", "launched", "running", "first commit")
        others = {name for kill in self.kills for name in kill.others}
        return {
            "form": self.form,
            "group": self.group,
            "condition": self.condition,
            "detected": self._median([kill.detected for kill in self.kills]),
            "steps": {name: self._median([kill.steps.get(name, 0.0) for kill in self.kills]) for name in names},
            "output_set": self._median([kill.output_set for kill in self.kills]),
            "output_set_all": [round(kill.output_set, 2) for kill in self.kills],
            "others": {
                name: self._median([kill.others[name] for kill in self.kills if name in kill.others])
                for name in sorted(others)
            },
        }

    def line(self) -> str:
        found = self.as_json()
        steps = ", ".join(f"{name} +{seconds:.2f}" for name, seconds in found["steps"].items())
        others = ", ".join(f"{name} {share:.0%}" for name, share in found["others"].items())
        return (
            f"{self.form:12} {self.group:7} {self.condition:7} {found['output_set']:5.1f} s to the first new Output Set "
            f"(median of {len(self.kills)}: {found['output_set_all']}): detected {found['detected']:.2f}, {steps}"
            + (f"; commits of the others meanwhile: {others}" if others else "")
        )

    @staticmethod
    def _median(values: list[float]) -> float:
        return round(median(values), 2)


def measure(databases: Postgres, form: str, kills: int) -> list[Recovered]:
    """Raises `WrongResult` if a run is not exact afterwards."""
    with tempfile.TemporaryDirectory(prefix="logio-bench-") as name, _instance(Path(name), databases, form) as bench:
        idle: dict[str, list[Kill]] = {group: [] for group in GROUPS}
        for number in range(kills):
            for group, kill in bench.idle_run(f"idle-{number}").items():
                idle[group].append(kill)
        loaded = bench.loaded_run("loaded", kills)
        return [
            Recovered(form, group, condition, tuple(found[group]))
            for condition, found in (("idle", idle), ("loaded", loaded))
            for group in GROUPS
        ]


@contextmanager
def _instance(folder: Path, databases: Postgres, form: str) -> Iterator[_Bench]:
    log_url, warehouse_url = databases.fresh(folder)
    dags = folder / "dags"
    dags.mkdir()
    shutil.copytree(DAGS / "pipelines", dags / "pipelines")
    (dags / "bench_sales.py").write_text(_DAG.format(recovery=FORMS[form]))
    shutil.copy(DAGS / "logio_recovery.py", dags)
    places = Places(folder, dags, log_url, warehouse_url)
    standalone = Standalone(places)
    standalone.start()
    store = open_store(log_url, application="logio bench")
    try:
        airflow = Airflow(standalone.url, standalone.login)
        eventually(lambda: _is_ready(standalone, airflow), what="Airflow is ready", timeout=240, every=0.5)
        airflow.unpause(DAG_ID)
        if FORMS[form] == "dag":
            airflow.unpause("logio_recovery")
            eventually(lambda: list(store.supervisors()), what="the recovery DAG looks", timeout=120, every=0.5)
        yield _Bench(folder, airflow, store, warehouse_url)
    finally:
        store.dispose()
        standalone.stop()
        leftovers.end_under(places.drivers)


def _is_ready(standalone: Standalone, airflow: Airflow) -> bool:
    standalone.check_alive()
    try:
        if errors := airflow.is_healthy() and airflow.import_errors():
            raise WrongResult(f"a DAG cannot be imported: {errors[0]}")
        return airflow.is_healthy() and airflow.has_dag(DAG_ID) and airflow.has_dag("logio_recovery")
    except AirflowUnavailable:
        return False


@dataclass(slots=True)
class _Bench:
    folder: Path
    airflow: Airflow
    store: SqlLogStore
    warehouse_url: str

    def idle_run(self, name: str) -> dict[str, Kill]:
        """One kill of each group, the rest of the pipeline with nothing to do."""
        run, transactions = self._start(name, parquet_file("transactions"))
        stopped = {}
        for group in GROUPS:
            self._wait_until_begun(run, group, 180)
            stopped[group] = self._stop(run, group)
        eventually(lambda: self._are_idle(run), what="the others are idle", timeout=180, every=0.2)
        killed = {}
        for group in GROUPS:
            killed[group] = self._kill(run, group, stopped[group])
            eventually(
                lambda group=group: self.store.group(run.run_id, group).state is GroupState.FINISHED,  # type: ignore[misc]
                what=f"{group} finishes",
                timeout=180,
                every=0.2,
            )
        self._end(run, transactions)
        return killed

    def loaded_run(self, name: str, kills: int) -> dict[str, list[Kill]]:
        """So many kills of each group, in turn, with everybody at work."""
        run, transactions = self._start(name, self._longer())
        killed: dict[str, list[Kill]] = {group: [] for group in GROUPS}
        for _ in range(kills):
            for group in GROUPS:
                self._wait_until_begun(run, group, 300)
                process = psutil.Process(self._pid(run, group))
                killed[group].append(self._kill(run, group, process))
        self._end(run, transactions)
        return killed

    # --- steps --------------------------------------------------------------------------------------------------------

    def _start(self, name: str, transactions: Path) -> tuple[Run, Path]:
        self.airflow.trigger(DAG_ID, name, {"transactions": str(transactions)})
        eventually(
            lambda: any(run.spec.key.dag_run_id == name for run in self.store.list_runs()),
            what="the run starts",
            timeout=120,
            every=0.2,
        )
        return self.store.find_run(name), transactions

    def _end(self, run: Run, transactions: Path) -> None:
        name = run.spec.key.dag_run_id
        eventually(
            lambda: self.airflow.run_state(DAG_ID, name) in ("success", "failed"),
            what="the DAG run ends",
            timeout=900,
            every=1.0,
        )
        state = self.airflow.run_state(DAG_ID, name)
        if state != "success" or not check(self.warehouse_url, transactions, parquet_file("products")).exact:
            raise WrongResult(f"DAG run {name} is {state}, or its result is not exact")

    def _wait_until_begun(self, run: Run, group: str, timeout: float) -> None:
        eventually(lambda: self._has_begun(run, group), what=f"{group} works", timeout=timeout, every=0.2)

    def _stop(self, run: Run, group: str) -> psutil.Process:
        """On PostgreSQL a driver stopped inside a transaction loses it, and nobody waits for it."""
        process = psutil.Process(self._pid(run, group))
        process.send_signal(signal.SIGSTOP)
        return process

    def _kill(self, run: Run, group: str, process: psutil.Process) -> Kill:
        incarnation = self.store.group(run.run_id, group).incarnation
        commits: list[tuple[float, dict[str, int]]] = [self._commits(run)]
        is_loaded = process.status() != psutil.STATUS_STOPPED
        while is_loaded and commits[-1][0] - commits[0][0] < SAMPLE_SECONDS:
            time.sleep(0.5)
            commits.append(self._commits(run))
        killed_at = time.time()
        process.kill()
        process.wait()
        time.sleep(SETTLE_SECONDS)
        before = self._outputs(run, group)
        eventually(lambda: self._outputs(run, group) > before, what="an Output Set", timeout=240, every=LOOK_SECONDS)
        seconds = time.time() - killed_at
        after = self._commits(run)
        found = [one for one in recoveries(driver_records(self.store, run.run_id)) if one.group == group]
        if not found or found[-1].incarnation != incarnation + 1:
            raise WrongResult(f"{group} was to be recovered once, and is at {found[-1:]}")
        recovery = found[-1]
        others = _shares(commits[0], commits[-1], after, self._busy(run) - BEHIND[group])
        return Kill(group, recovery.detected_at - killed_at, recovery.seconds_of_steps, seconds, others)

    def _longer(self) -> Path:
        """The same transactions, year after year."""
        table = pq.read_table(parquet_file("transactions"))
        place = table.schema.get_field_index("transaction_timestamp")
        years = []
        for year in range(LONGER):
            shift = pa.scalar(year * 366 * 86_400 * 1_000_000, pa.duration("us"))
            moment = pc.add(table["transaction_timestamp"].cast(pa.timestamp("us")), shift)
            years.append(table.set_column(place, "transaction_timestamp", moment))
        path = self.folder / "transactions.parquet"
        pq.write_table(pa.concat_tables(years), path)
        return path

    # --- looks --------------------------------------------------------------------------------------------------------

    def _statuses(self, run: Run) -> dict[str, GroupStatus]:
        return {status.group: status for status in self.store.groups(run.run_id)}

    def _commits(self, run: Run) -> tuple[float, dict[str, int]]:
        return time.monotonic(), {name: status.commits for name, status in self._statuses(run).items()}

    def _busy(self, run: Run) -> set[str]:
        """Groups that still have input."""
        views = Observer(self.store, run).take().groups
        return {
            view.name
            for view in views
            if view.lag.events or (view.is_source and view.status.state is GroupState.RUNNING)
        }

    def _pid(self, run: Run, group: str) -> int:
        identity = self.store.group(run.run_id, group).identity
        assert identity is not None and identity.pid, f"{group} has no driver"
        return identity.pid

    def _has_begun(self, run: Run, group: str) -> bool:
        """Its present driver runs and has committed an Output Set."""
        status = self.store.group(run.run_id, group)
        drivers = [one for one in driver_records(self.store, run.run_id) if one.group == group]
        is_at_work = bool(drivers) and drivers[-1].first_commit_at is not None
        return status.state is GroupState.RUNNING and is_at_work and self._outputs(run, group) > 0

    def _outputs(self, run: Run, group: str) -> int:
        return sum(
            row.events
            for row in self.store.progress(run.run_id)
            if row.direction == "out" and row.port.operator == group
        )

    def _are_idle(self, run: Run) -> bool:
        statuses = self._statuses(run)
        rows = self.store.progress(run.run_id)
        written = sum(row.events for row in rows if row.port.operator == "publish" and row.direction == "write")
        return statuses["ingest"].state is GroupState.FINISHED and written >= self._outputs(run, "hourly") - 1


def _shares(
    began: tuple[float, dict[str, int]],
    killed: tuple[float, dict[str, int]],
    recovered: tuple[float, dict[str, int]],
    busy: set[str],
) -> dict[str, float]:
    """Commits per second of other groups, after the kill against before it."""
    shares = {}
    for name in sorted(busy):
        before, after = killed[0] - began[0], recovered[0] - killed[0]
        rate = (killed[1][name] - began[1][name]) / before if before else 0.0
        if rate > 0.5:
            shares[name] = (recovered[1][name] - killed[1][name]) / after / rate
    return shares
