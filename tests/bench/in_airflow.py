"""kill -9 of a driver under a real Airflow: seconds until it is detected, and until its group commits its next Output Set.

Three forms: task `supervise` of the run's own DAG run, the recovery DAG, and standbys, which claim by themselves while
`supervise` looks on. Four conditions; the last form has only *loaded*:

- *idle*: every other driver has finished or waits (the one to be killed is stopped until they do);
- *loaded*: all of them are at work on a source that is slower than they are and lasts longer than the measurement, so that
  every group has input before, during and after each kill, and its commit rates can be compared;
- *second*: loaded, and the group is killed when another one's recovery has just been claimed;
- *leased*: loaded, and the driver is stopped instead of killed: its process is there, only its lease of 5 s tells.

Idle and loaded kills are independent measurements: each waits until a supervisor looks for failed groups again after the
recovery before (the recovery DAG's next run has begun, `supervise` is deferred again). In *second* none looks then.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_logio.launch import driver_folders
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.recoveries import Recovery, recoveries
from airflow_logio.status.snapshot import Observer
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from demo.checks import check_sales
from demo.data import parquet_file
from demo.places import Places
from demo.rest import Airflow, AirflowUnavailable
from demo.standalone import Standalone
from tests.bench.databases import Postgres
from tests.bench.kills import Kill, Recovered
from tests.bench.throughput import WrongResult
from tests.support.standbys import standby_of
from tests.support.waiting import eventually

DAGS = Path(__file__).parents[2] / "dags"
PIPELINE = Path(__file__).parent / "dags" / "bench_pipeline.py"
GROUPS = ("totals", "hourly")
BEHIND = {"totals": {"totals"}, "hourly": {"hourly", "publish"}}
LOOK_SECONDS = 0.05
SAMPLE_SECONDS = 15.0
"""Of commits before a kill."""
SETTLE_SECONDS = 0.3
"""What the killed driver had sent to the log is committed by then, and counts for it."""
CAUGHT_UP_EVENTS = 150
"""With so little unacknowledged (a window of `totals` has 100 events), a group keeps the pace of the source."""
KILL_SECONDS = 42.0
"""A loaded kill with all its waiting takes less, for the length of the source."""
FEW = 3
"""Kills in the middle of another recovery, and drivers that are stopped, at most."""
LEASE_SECONDS = 5
DAG_ID = "bench_sales"
LEASED_ID = "bench_leased"
PACE = "pace"
_DAG = """
from airflow.sdk import DAG, Param
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol.liveness import RecoveryBudget
from bench_pipeline import {pipeline}

PARAMS = {{name: Param("", type="string") for name in ("transactions", "pace")}}
for dag_id, lease_seconds in (("{dag_id}", 600), ("{leased_id}", {lease_seconds})):
    with DAG(dag_id, schedule=None, max_active_runs=1, params=PARAMS):
        LogioPipelineGroup(
            {pipeline},
            connections={{"warehouse": "warehouse_db"}},
            recovery={recovery!r},
            lease_seconds=lease_seconds,
            recovery_budget=RecoveryBudget(recoveries=100),
        )
"""


@dataclass(frozen=True, slots=True)
class Form:
    """Who recovers."""

    recovery: str
    """Argument of `LogioPipelineGroup`."""
    pipeline: str
    """In `PIPELINE`."""
    has_standbys: bool = False


FORMS = {
    "supervise": Form("supervise", "paced"),
    "recovery DAG": Form("dag", "paced"),
    "standby": Form("supervise", "paced_with_standbys", has_standbys=True),
}


@dataclass(frozen=True, slots=True)
class _Counts:
    """Of every group at one moment."""

    at: float
    commits: Mapping[str, int]
    inputs: Mapping[str, int]
    """Events that other groups had sent to it; of a source, those it had read."""


def measure(databases: Postgres, form: str, kills: int, pace: float) -> list[Recovered]:
    """`pace`: events per second of the loaded source. Raises `WrongResult` if a run is not exact afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="logio-bench-") as name,
        _instance(Path(name), databases, FORMS[form]) as bench,
    ):
        found: dict[tuple[str, str], list[Kill]] = {}
        if bench.form.has_standbys:
            bench.loaded_run("loaded", kills, 0, pace, found)
        else:
            for number in range(kills):
                bench.idle_run(f"idle-{number}", found)
            bench.loaded_run("loaded", kills, min(kills, FEW), pace, found)
            bench.leased_run("leased", min(kills, FEW), pace, found)
        return [
            Recovered(form, group, condition, tuple(kills_of)) for (group, condition), kills_of in sorted(found.items())
        ]


@contextmanager
def _instance(folder: Path, databases: Postgres, form: Form) -> Iterator[_Bench]:
    log_url, warehouse_url = databases.fresh(folder)
    dags = folder / "dags"
    dags.mkdir()
    shutil.copytree(DAGS / "pipelines", dags / "pipelines")
    shutil.copy(PIPELINE, dags)
    names = {"dag_id": DAG_ID, "leased_id": LEASED_ID, "lease_seconds": LEASE_SECONDS}
    (dags / "bench_sales.py").write_text(_DAG.format(recovery=form.recovery, pipeline=form.pipeline, **names))
    shutil.copy(DAGS / "logio_recovery.py", dags)
    places = Places(folder, dags, log_url, warehouse_url)
    standalone = Standalone(places)
    standalone.start()
    store = open_store(log_url, application="logio bench")
    try:
        airflow = Airflow(standalone.url, standalone.login)
        eventually(lambda: _is_ready(standalone, airflow), what="Airflow is ready", timeout=240, every=0.5)
        for dag_id in (DAG_ID, LEASED_ID):
            airflow.unpause(dag_id)
        if form.recovery == "dag":
            airflow.unpause("logio_recovery")
            eventually(lambda: list(store.supervisors()), what="the recovery DAG looks", timeout=120, every=0.5)
        yield _Bench(form, folder, airflow, store, warehouse_url)
    finally:
        store.dispose()
        standalone.stop()
        driver_folders.end_under(places.drivers)


def _is_ready(standalone: Standalone, airflow: Airflow) -> bool:
    standalone.check_alive()
    try:
        if errors := airflow.is_healthy() and airflow.import_errors():
            raise WrongResult(f"a DAG cannot be imported: {errors[0]}")
        return airflow.is_healthy() and all(map(airflow.has_dag, (DAG_ID, LEASED_ID, "logio_recovery")))
    except AirflowUnavailable:
        return False


@dataclass(slots=True)
class _Bench:
    form: Form
    folder: Path
    airflow: Airflow
    store: LogStore
    warehouse_url: str

    def idle_run(self, name: str, found: dict[tuple[str, str], list[Kill]]) -> None:
        """One kill of each group, the rest of the pipeline with nothing to do."""
        run, transactions = self._start(name, parquet_file("transactions"))
        stopped = {}
        for group in GROUPS:
            self._wait_until_begun(run, group, 180)
            stopped[group] = self._stop(run, group)
        eventually(lambda: self._are_idle(run), what="the others are idle", timeout=180, every=0.2)
        for group in GROUPS:
            self._wait_until_watched(run)
            self._note(found, group, "idle", self._kill(run, group, stopped[group]))
            eventually(
                lambda group=group: self.store.group(run.run_id, group).state is GroupState.FINISHED,  # type: ignore[misc]
                what=f"{group} finishes",
                timeout=180,
                every=0.2,
            )
        self._end(run, transactions)

    def loaded_run(
        self, name: str, kills: int, second: int, pace: float, found: dict[tuple[str, str], list[Kill]]
    ) -> None:
        """So many kills of each group, in turn, with all of them at work; then some in the middle of a recovery."""
        self._set_pace(pace)
        run, transactions = self._start(name, self._longer(pace * KILL_SECONDS * (len(GROUPS) * kills + second + 2)))
        for _ in range(kills):
            for group in GROUPS:
                process = self._settled(run, group)
                before = self._sampled(run)
                self._note(found, group, "loaded", self._kill(run, group, process, before))
        for _ in range(second):
            first, process = self._settled(run, "hourly"), psutil.Process(self._pid(run, "totals"))
            incarnation = self.store.group(run.run_id, "hourly").incarnation
            first.kill()
            eventually(
                lambda before=incarnation: self.store.group(run.run_id, "hourly").incarnation > before,  # type: ignore[misc]
                what="hourly is claimed",
                timeout=120,
                every=LOOK_SECONDS,
            )
            self._note(found, "totals", "second", self._kill(run, "totals", process))
        self._set_pace(None)
        self._end(run, transactions)

    def leased_run(self, name: str, stops: int, pace: float, found: dict[tuple[str, str], list[Kill]]) -> None:
        """A driver that is stopped so many times, with everybody at work."""
        self._set_pace(pace)
        run, transactions = self._start(name, self._longer(pace * KILL_SECONDS * (stops + 2)), LEASED_ID)
        for _ in range(stops):
            process = self._settled(run, "totals")
            before = self._sampled(run)
            self._note(found, "totals", "leased", self._kill(run, "totals", process, before, signal.SIGSTOP))
        self._set_pace(None)
        self._end(run, transactions)

    @staticmethod
    def _note(found: dict[tuple[str, str], list[Kill]], group: str, condition: str, kill: Kill) -> None:
        """Said at once: the whole measurement takes long, and the machine may be busy with something else by then."""
        found.setdefault((group, condition), []).append(kill)
        print(f"  {group:7} {condition:7} {kill}", flush=True)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _start(self, name: str, transactions: Path, dag_id: str = DAG_ID) -> tuple[Run, Path]:
        self.airflow.trigger(dag_id, name, {"transactions": str(transactions), "pace": str(self.folder / PACE)})
        eventually(
            lambda: any(run.spec.key.dag_run_id == name for run in self.store.list_runs()),
            what="the run starts",
            timeout=120,
            every=0.2,
        )
        return self.store.find_run(name), transactions

    def _end(self, run: Run, transactions: Path) -> None:
        name, dag_id = run.spec.key.dag_run_id, run.spec.key.dag_id
        eventually(
            lambda: self.airflow.run_state(dag_id, name) in ("success", "failed"),
            what="the DAG run ends",
            timeout=900,
            every=1.0,
        )
        state = self.airflow.run_state(dag_id, name)
        if state != "success" or not check_sales(self.warehouse_url, transactions, parquet_file("products")).exact:
            raise WrongResult(f"DAG run {name} is {state}, or its result is not exact")

    def _wait_until_begun(self, run: Run, group: str, timeout: float) -> None:
        eventually(lambda: self._has_begun(run, group), what=f"{group} works", timeout=timeout, every=0.2)

    def _stop(self, run: Run, group: str) -> psutil.Process:
        """On PostgreSQL a driver stopped inside a transaction loses it, and no other one waits for it."""
        process = psutil.Process(self._pid(run, group))
        process.send_signal(signal.SIGSTOP)
        return process

    def _kill(
        self,
        run: Run,
        group: str,
        process: psutil.Process,
        earlier: _Counts | None = None,
        how: signal.Signals = signal.SIGKILL,
    ) -> Kill:
        """`earlier`: counts of a while before, to compare with."""
        incarnation = self.store.group(run.run_id, group).incarnation
        before = self._counts(run)
        killed_at = time.time()
        process.send_signal(how)
        if how is signal.SIGKILL:
            process.wait()
        time.sleep(SETTLE_SECONDS)
        outputs = self._outputs(run, group)
        eventually(lambda: self._outputs(run, group) > outputs, what="an Output Set", timeout=240, every=LOOK_SECONDS)
        seconds = time.time() - killed_at
        after = self._counts(run)
        recovery = self._last_recovery(run)
        if recovery is None or (recovery.group, recovery.incarnation) != (group, incarnation + 1):
            raise WrongResult(f"{group} was to be recovered once, and the last recovery is {recovery}")
        others: dict[str, float] = {}
        if earlier is not None:
            if self.store.group(run.run_id, "ingest").state is not GroupState.RUNNING:
                raise WrongResult("the source has ended before the measurement: raise KILL_SECONDS")
            others = _shares(earlier, before, after, BEHIND[group])
        detected = recovery.detected_at - killed_at
        return Kill(detected, recovery.seconds_of_steps, seconds, others, os.getloadavg()[0])

    def _settled(self, run: Run, group: str) -> psutil.Process:
        """The group's driver, when all drivers are up, keep the pace of the source, and are watched."""
        for name in self._statuses(run):
            self._wait_until_begun(run, name, 300)
        if self.form.has_standbys:
            eventually(lambda: self._has_standby(run, group), what=f"{group} has a standby", timeout=120, every=0.2)
        else:
            self._wait_until_watched(run)
        eventually(lambda: self._has_caught_up(run), what="all keep the pace", timeout=300, every=0.5)
        return psutil.Process(self._pid(run, group))

    def _sampled(self, run: Run) -> _Counts:
        counts = self._counts(run)
        time.sleep(SAMPLE_SECONDS)
        return counts

    def _wait_until_watched(self, run: Run) -> None:
        """A supervisor has begun to look after the last recovery's launch; what looked before has ended with it."""
        recovery = self._last_recovery(run)
        since = 0.0 if recovery is None else recovery.launched_at or recovery.fenced_at
        eventually(
            lambda: any(one.covers(run) and time.time() - one.age_seconds > since for one in self.store.supervisors()),
            what="a supervisor looks for failed groups",
            timeout=120,
            every=0.2,
        )

    def _set_pace(self, events_per_second: float | None) -> None:
        path = self.folder / PACE
        if events_per_second is None:
            path.unlink()
        else:
            path.write_text(str(events_per_second))

    def _longer(self, events: float) -> Path:
        """The same transactions, year after year, with at least so many events of 1,000 records."""
        columns = ["store_id", "product_id", "quantity", "sales_value", "transaction_timestamp"]
        table = pq.read_table(parquet_file("transactions"), columns=columns)
        place = table.schema.get_field_index("transaction_timestamp")
        table = table.set_column(place, columns[place], table[columns[place]].cast(pa.timestamp("us")))
        path = self.folder / "transactions.parquet"
        with pq.ParquetWriter(path, table.schema) as writer:
            for year in range(math.ceil(events * 1_000 / table.num_rows)):
                shift = pa.scalar(year * 366 * 86_400 * 1_000_000, pa.duration("us"))
                writer.write_table(table.set_column(place, columns[place], pc.add(table[columns[place]], shift)))
        return path

    # --- looks --------------------------------------------------------------------------------------------------------

    def _statuses(self, run: Run) -> dict[str, GroupStatus]:
        return {status.group: status for status in self.store.groups(run.run_id)}

    def _counts(self, run: Run) -> _Counts:
        views = Observer(self.store, run).take().groups
        return _Counts(
            time.monotonic(),
            {view.name: view.status.commits for view in views},
            {view.name: view.measured.events + (0 if view.is_source else view.lag.events) for view in views},
        )

    def _has_caught_up(self, run: Run) -> bool:
        return all(view.lag.events <= CAUGHT_UP_EVENTS for view in Observer(self.store, run).take().groups)

    def _last_recovery(self, run: Run) -> Recovery | None:
        return next(reversed(recoveries(self.store.drivers(run.run_id))), None)

    def _pid(self, run: Run, group: str) -> int:
        identity = self.store.group(run.run_id, group).identity
        assert identity is not None and identity.pid, f"{group} has no driver"
        return identity.pid

    def _has_begun(self, run: Run, group: str) -> bool:
        """Its present driver runs and has committed an Output Set."""
        status = self.store.group(run.run_id, group)
        drivers = [one for one in self.store.drivers(run.run_id) if one.group == group]
        is_at_work = bool(drivers) and drivers[-1].first_commit_at is not None
        return status.state is GroupState.RUNNING and is_at_work and self._outputs(run, group) > 0

    def _outputs(self, run: Run, group: str) -> int:
        return sum(
            row.events
            for row in self.store.progress(run.run_id)
            if row.direction == "out" and row.port.operator == group
        )

    def _has_standby(self, run: Run, group: str) -> bool:
        standby = standby_of(self.store, run.run_id, group)
        return standby is not None and standby.is_ready

    def _are_idle(self, run: Run) -> bool:
        statuses = self._statuses(run)
        rows = self.store.progress(run.run_id)
        written = sum(row.events for row in rows if row.port.operator == "publish" and row.direction == "write")
        return statuses["ingest"].state is GroupState.FINISHED and written >= self._outputs(run, "hourly") - 1


def _shares(earlier: _Counts, killed: _Counts, recovered: _Counts, behind: set[str]) -> dict[str, float]:
    """Commits per second after the kill against before it, of groups that were sent input in both times."""
    shares = {}
    for name in sorted(set(killed.commits) - behind):
        if not earlier.inputs[name] < killed.inputs[name] < recovered.inputs[name]:
            continue
        before = (killed.commits[name] - earlier.commits[name]) / (killed.at - earlier.at)
        after = (recovered.commits[name] - killed.commits[name]) / (recovered.at - killed.at)
        if before:
            shares[name] = after / before
    return shares
