"""The demonstration, step by step: prepare, start Airflow, trigger, follow, check, sum up; and how to undo each step."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow_logio.cli.display import Progress
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, LogioError, LogUnavailable, SchemaMismatch, UnknownRun
from airflow_logio.launch import bundle, driver_folders, spark_submit
from airflow_logio.launch.driver_log import tail
from airflow_logio.protocol.states import CONCLUDED, GroupState, RunState
from airflow_logio.status.run_summary import Outcome, RunSummary, summarize
from airflow_logio.status.snapshot import Observer, Snapshot
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.sql import migrate
from airflow_logio.supervision.local_run import DriverEnder
from airflow_logio.ui.page_places import page_of_run
from demo.checks import CheckResult
from demo.examples import Example, Step
from demo.places import Places
from demo.rest import Airflow, AirflowUnavailable
from demo.standalone import AirflowComponents, Standalone

START_SECONDS = 240.0
PARSE_SECONDS = 120.0
HALT_SECONDS = 5.0
HEALTH_SECONDS = 3.0
POLL_SECONDS = 0.5
ASK_AIRFLOW_SECONDS = 2.0
ENDED = ("success", "failed")


@dataclass(slots=True)
class Stopwatch:
    """Named stretches of time, in the order in which they ended."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        began = self.clock()
        try:
            yield
        finally:
            self.seconds[name] = round(self.clock() - began, 3)

    @property
    def total(self) -> float:
        return round(self.clock() - self._began, 3)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out: what was written, and how the DAG run has ended. One may be well without the other."""

    state: str
    """Of the DAG run."""
    result: CheckResult | None
    """None if there was nothing to compare."""

    @classmethod
    def of_all(cls, done: Sequence[StepDone]) -> Verdict:
        """Of all steps, by what each has compared."""
        if len(done) == 1:
            return done[0].verdict
        results = [(one.step.what, one.verdict.result) for one in done]
        if any(result is None for _, result in results):
            return done[-1].verdict
        named = [
            replace(compared, what=f"{what}: {compared.what}")
            for what, result in results
            for compared in (result.comparisons if result else ())
        ]
        return cls(done[-1].verdict.state, CheckResult(tuple(named)))

    @property
    def is_good(self) -> bool:
        return self.result is not None and self.result.exact and self.state == "success"

    def __str__(self) -> str:
        """For people: what is exact, what is not, and what became of the DAG run."""
        ended = f"the DAG run has ended as {self.state}"
        if self.result is None:
            return f"NOT checked: there is nothing to compare; {ended}"
        right = ", ".join(one.what for one in self.result.comparisons if one.exact)
        wrong = ", ".join(one.what for one in self.result.comparisons if not one.exact)
        if wrong:
            return f"NOT exact: {wrong}" + (f"; exact: {right}" if right else "") + f"; {ended}"
        return "exact" if self.is_good else f"exact: {right}; but {ended}"


@dataclass(frozen=True, slots=True)
class StepDone:
    """What came of a step."""

    step: Step
    followed: tuple[Followed, ...]
    """Its DAG runs."""
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        compared = self.verdict.result.comparisons if self.verdict.result else ()
        return {
            "what": self.step.what,
            "exact_tables": {one.what: one.exact for one in compared},
            "dag_runs": [one.as_json() for one in self.followed],
        }


def opened_log(places: Places, say: Callable[[str], None]) -> LogStore:
    """The log of the demonstrations; one of its own that an earlier version has left is upgraded, as none of its drivers
    lives. Raises as `open_store`."""
    try:
        return open_store(places.log_url, application="logio demo", create=True)
    except SchemaMismatch as error:
        if not places.owns_log:
            raise
        try:
            revision = migrate.upgrade(places.log_url)
        except SchemaMismatch:  # of a later version
            raise ConfigurationError(f"{error}; or remove {places.folder}, where only demonstrations are") from None
        say(f"the log of earlier demonstrations was upgraded to schema {revision}")
        return open_store(places.log_url, application="logio demo")


@dataclass(slots=True)
class Demonstration:
    """`run` returns what came out. `stop` leaves no process behind, whenever it is called."""

    places: Places
    progress: Progress
    standalone: Standalone
    example: Example
    shows_login: bool = False
    """Say user and password with the address of the run: a person is there, who wants to look."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    run_id: str = field(default_factory=lambda: f"demo__{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}")
    _store: LogStore | None = None
    _airflow: Airflow | None = None
    _components: AirflowComponents | None = None
    _looked_at: float = float("-inf")

    def run(self) -> Verdict:
        """Raises `LogioError` for anything that fails."""
        spark_submit.check_java()
        self.example.check_installed()
        with self.watch.measured("prepare"):
            self._remove_leftovers()
            pipeline = bundle.load(bundle.parse_ref(str(self.places.dags / "pipelines" / self.example.pipeline)))
            store = self._store = opened_log(self.places, self.progress.say)
            params = self.example.prepare(self.places, self.progress.say)
        with self.watch.measured("airflow_start"):
            airflow = self._start_airflow()
        with self.watch.measured("dag_parsed"):
            self._wait_for_dag(airflow)
        self._give_up_earlier(airflow, store)
        airflow.unpause(self.example.dag_id)
        done = list[StepDone]()
        for step in self.example.steps(self.places, params, self.run_id, self.progress.say):
            done.append(self._do(step, airflow, store, pipeline))
            if not done[-1].verdict.is_good:
                break
        verdict = Verdict.of_all(done)
        self._write_summary(done, verdict, self.example.records_read(params))
        return verdict

    def stop(self, patient: Callable[[], bool]) -> None:
        """Stops Airflow first, so that it does not relaunch the drivers that are ended next."""
        self.standalone.stop(patient)
        if self._store is not None:
            self._end_drivers(self._store, patient)
            self._store.dispose()
        driver_folders.end_under(self.places.drivers)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _remove_leftovers(self) -> None:
        """Remove what is left of a demonstration that was killed before it could clean up."""
        self.standalone.stop()
        driver_folders.end_under(self.places.drivers)

    def _start_airflow(self) -> Airflow:
        self.standalone.start()
        airflow = Airflow(self.standalone.url, self.standalone.login)
        self._wait("Airflow starts", airflow.is_healthy, START_SECONDS)
        self._airflow = airflow
        self._components = AirflowComponents(self.standalone.start_component, self.progress.say)
        self._components.remember(self.standalone.components())
        return airflow

    def look_after_airflow(self) -> None:
        """Every few seconds: say which component of Airflow is gone, and start it again. Raises `ConfigurationError` if
        Airflow as a whole has ended."""
        self.standalone.check_alive()
        if self._airflow is None or self._components is None or time.monotonic() - self._looked_at < HEALTH_SECONDS:
            return
        self._components.look(self._airflow.health())
        self._looked_at = time.monotonic()

    def _wait_for_dag(self, airflow: Airflow) -> None:
        def parsed() -> bool:
            if errors := airflow.import_errors():
                raise ConfigurationError(f"a DAG cannot be imported: {errors[0]}")
            return airflow.has_dag(self.example.dag_id)

        self._wait(f"Airflow parses {self.example.dag_id}", parsed, PARSE_SECONDS)

    def _wait(self, what: str, done: Callable[[], bool], seconds: float) -> None:
        began = said = time.monotonic()
        self.progress.say(f"{what} ...")
        while not self._answer(done):
            self.look_after_airflow()
            now = time.monotonic()
            if now - began > seconds:
                raise ConfigurationError(f"timed out after {seconds:g} s: {what}; see {self.places.airflow_log}")
            if now - said >= 10:
                said = now
                self.progress.say(f"{what} ... {now - began:.0f} s")
            time.sleep(0.3)
        self.progress.say(f"{what}: done after {time.monotonic() - began:.1f} s")

    @staticmethod
    def _answer(done: Callable[[], bool]) -> bool:
        try:
            return done()
        except AirflowUnavailable:
            return False

    @property
    def page(self) -> str:
        """The address of the run in Airflow, as a picture that follows it."""
        return page_of_run(self.standalone.url, self.example.dag_id, self.run_id)

    @property
    def login(self) -> str:
        """What a person logs in with, behind an address."""
        user, password = self.standalone.login() or ("admin", "?")
        return f"   user {user}, password {password}" if self.shows_login else ""

    def _do(self, step: Step, airflow: Airflow, store: LogStore, pipeline: Pipeline) -> StepDone:
        with self.watch.measured(" ".join(filter(None, ("dag_run", step.what)))):
            began_at = time.time()
            run_ids = step.begin(airflow)
            self._say_begun(step, run_ids)
            followers = [
                Follower(store, pipeline, airflow, self.example.dag_id, run_id, began_at) for run_id in run_ids
            ]
            seen = Killer(self.progress.say) if step.kills else None
            with self.progress:
                followed = follow(followers, self.progress, self.look_after_airflow, seen)
        for one in followed:
            self._report_failure(airflow, one)
        with self.watch.measured(" ".join(filter(None, ("check", step.what)))):
            result = self._check(step)
        failed = [one.state for one in followed if one.state != "success"]
        return StepDone(step, followed, Verdict(failed[0] if failed else "success", result))

    def _say_begun(self, step: Step, run_ids: Sequence[str]) -> None:
        self.run_id = run_ids[-1]
        begun = f"{self.example.dag_id}, run{'s' if len(run_ids) > 1 else ''} {', '.join(run_ids)}"
        self.progress.say(f"{step.what or 'triggered'}: {begun}: {self.page}{self.login}")
        if step.look:
            self.progress.say(f"look at it: {step.look}")
        if "LOGIO_URL" not in os.environ:  # its own file: the address of a user's database is not repeated
            logio = Path(sys.executable).parent / "logio"
            self.progress.say(f"details, pids to kill: LOGIO_URL={self.places.log_url} {logio} status {self.run_id}")

    def _give_up_earlier(self, airflow: Airflow, store: LogStore) -> None:
        """Give up what interrupted demonstrations have left, because only one run is allowed at a time."""
        active = airflow.active_runs(self.example.dag_id)
        for dag_run in active:
            airflow.fail_run(self.example.dag_id, dag_run)
        for run in unfinished_runs(store, self.places.drivers, active):
            self.progress.say(f"giving up run {run.spec.key.dag_run_id}, which was interrupted")
            give_up_run(store, run, self.places.drivers, HALT_SECONDS)

    def _report_failure(self, airflow: Airflow, followed: Followed) -> None:
        if followed.state == "success":
            return
        states = airflow.task_states(self.example.dag_id, followed.run_id)
        self.progress.say(f"the DAG run has failed: {', '.join(f'{task} {state}' for task, state in states.items())}")
        for group in followed.summary.groups if followed.summary else ():
            if group.error:
                self.progress.say(f"group {group.group} is {group.state.value}: {group.error}")
                for line in tail(group.log_path):
                    self.progress.say(f"  | {line}")

    def _check(self, step: Step) -> CheckResult | None:
        """None if there is nothing to check: a failed run may not have created the tables."""
        self.progress.say("checking the result with DuckDB, straight from the Parquet files")
        try:
            result = step.check()
        except ConfigurationError as error:
            self.progress.say(str(error))
            return None
        for line in result.lines():
            self.progress.say(line)
        return result

    def _end_drivers(self, store: LogStore, patient: Callable[[], bool]) -> None:
        """End the drivers of this run, and of earlier, interrupted runs in this folder."""
        try:
            runs = unfinished_runs(store, self.places.drivers, [self.run_id])
        except LogioError as error:
            self.progress.say(f"the log does not answer: {error}")
            return
        for run in runs:
            DriverEnder(store, run, run.spec.groups, self.places.drivers, HALT_SECONDS).end(patient)

    def _write_summary(self, done: Sequence[StepDone], verdict: Verdict, records: int | None) -> None:
        followed = done[-1].followed[-1]
        details: dict[str, Any] = followed.summary.as_json() if followed.summary else {}
        if records is not None:
            details |= {"records": records, "records_per_second": None}
        seconds = {"total": self.watch.total, "first_to_last_event": None, **details.pop("seconds", {})}
        seconds["total"] = self.watch.total
        stages = run_stages(followed.summary, followed.began_at, followed.ended_at) if followed.summary else {}
        compared = verdict.result.comparisons if verdict.result else ()
        tables = {one.what: one.found_rows for one in compared if " " not in one.what}
        summary = {
            "exact": verdict.is_good,
            "exact_tables": {one.what: one.exact for one in compared},
            "dag_run_state": followed.state,
            **{name: details.pop(name, None) for name in ("records", "records_per_second")},
            "seconds": seconds,
            "seconds_by_step": {**self.watch.seconds, "of_dag_run": stages},
            "rows_written": tables,
            **details,
        }
        if len(done) > 1:  # the rest is of the last DAG run
            summary["steps"] = [one.as_json() for one in done]
        self.places.summary.write_text(json.dumps(summary, indent=2) + "\n")


# --- following the DAG runs -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Followed:
    """How a DAG run went; `run` is None if the DAG run ended before its first task started a run in the log."""

    run_id: str
    state: str
    run: Run | None
    summary: RunSummary | None
    began_at: float
    ended_at: float

    def as_json(self) -> dict[str, Any]:
        run = self.run
        return {
            "dag_run": self.run_id,
            "state": self.state,
            "uid": run.uid if run else None,
            "partition": run.spec.partition if run else None,
            "code_digest": run.spec.code_digest if run else None,
            "incarnations": {one.group: one.incarnation for one in self.summary.groups} if self.summary else {},
        }


def follow(
    followers: Sequence[Follower],
    progress: Progress,
    look_after_airflow: Callable[[], None],
    seen: Callable[[Snapshot], None] | None,
) -> tuple[Followed, ...]:
    """Block until all these DAG runs have ended. `seen` gets each snapshot of a run."""
    ended = dict[str, Followed]()
    while True:
        look_after_airflow()
        shown = dict[str, Snapshot]()
        for one in followers:
            if one.run_id in ended:
                continue
            snapshot = one.look(progress.say)
            if snapshot is not None:
                shown[one.name] = snapshot
                if seen is not None:
                    seen(snapshot)
            if (end := one.ended()) is not None:
                ended[one.run_id] = end
        if len(followers) > 1:
            progress.show_each(shown, f"{len(ended)} of {len(followers)}")
        else:
            for snapshot in shown.values():
                progress.show(snapshot)
        if len(ended) == len(followers):
            return tuple(ended[one.run_id] for one in followers)
        time.sleep(POLL_SECONDS)


@dataclass(slots=True)
class Follower:
    """Follows one DAG run, and the run that the log has for it."""

    store: LogStore
    pipeline: Pipeline
    airflow: Airflow
    dag_id: str
    run_id: str
    began_at: float
    _run: Run | None = None
    _observer: Observer | None = None
    _peak: dict[str, int] = field(default_factory=dict)
    _finished: bool = False
    _state: str = "queued"
    _asked_at: float = float("-inf")

    @property
    def name(self) -> str:
        """For people, in short."""
        return (self._run and self._run.spec.partition) or self.run_id

    def look(self, say: Callable[[str], None]) -> Snapshot | None:
        """None if the log has no run yet. A DAG run that was cleared may get another one."""
        try:
            run = self.store.find_run(self.run_id)
            if self._observer is None or self._run is None or run.uid != self._run.uid:
                self._observer, self._peak = Observer(self.store, run), {}
            self._run = run
            snapshot = self._observer.take()
        except UnknownRun:
            return None
        except LogUnavailable as error:
            say(f"the log does not answer: {error}")
            return None
        for view in snapshot.groups:
            self._peak[view.name] = max(self._peak.get(view.name, 0), view.status.rss_bytes)
        self._finished = snapshot.finished
        return snapshot

    def ended(self) -> Followed | None:
        """None as long as Airflow has not said that it has. Asks now and then, and often once the run has finished."""
        if self._finished or time.monotonic() - self._asked_at >= ASK_AIRFLOW_SECONDS:
            self._asked_at = time.monotonic()
            try:
                self._state = self.airflow.run_state(self.dag_id, self.run_id)
            except AirflowUnavailable:
                return None  # busy; the next look asks again
        if self._state not in ENDED:
            return None
        ended_at = time.time()
        return Followed(self.run_id, self._state, self._run, self._summary(ended_at), self.began_at, ended_at)

    def _summary(self, ended_at: float) -> RunSummary | None:
        if self._run is None:
            return None
        groups = self.store.groups(self._run.run_id)
        states = {group.state for group in groups}
        outcome = Outcome.FINISHED if states <= CONCLUDED else Outcome.HALTED
        if GroupState.PARKED in states:
            outcome = Outcome.PARKED
        return summarize(self.store, self._run, self.pipeline, outcome, ended_at - self.began_at, self._peak)


@dataclass(slots=True)
class Killer:
    """Ends the first driver that it sees with SIGKILL, once."""

    say: Callable[[str], None]
    _has_killed: bool = False

    def __call__(self, snapshot: Snapshot) -> None:
        for view in () if self._has_killed else snapshot.groups:
            driver = view.status
            if driver.state is GroupState.RUNNING and driver.identity is not None:
                try:
                    os.kill(driver.identity.pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue  # it has ended since
                self._has_killed = True
                of = snapshot.run.spec.partition or snapshot.run.spec.key.dag_run_id
                self.say(f"kill -9 {driver.identity.pid}: the driver of group {view.name}, {of}")
                return


# --- runs that an earlier demonstration has left unfinished, which would block the next one ---------------------------


def unfinished_runs(store: LogStore, drivers: Path, dag_run_ids: Collection[str]) -> list[Run]:
    """Unfinished runs of these DAG runs, or with drivers that worked in the folder `drivers`; no other runs."""
    return [
        run
        for run in store.list_runs()
        if run.state is RunState.RUNNING and (run.spec.key.dag_run_id in dag_run_ids or (drivers / run.uid).is_dir())
    ]


def give_up_run(store: LogStore, run: Run, drivers: Path, halt_seconds: float) -> None:
    """End its drivers, and leave its tables to the next run. Raises `LogioError` if the log does not give it up."""
    DriverEnder(store, run, run.spec.groups, drivers, halt_seconds).end()
    store.supersede(run.run_id)


# --- where the seconds of the DAG run go ------------------------------------------------------------------------------


def run_stages(summary: RunSummary, triggered_at: float, ended_at: float) -> dict[str, float]:
    """Stages of the DAG run, from the log's times. Both arguments are seconds since the epoch.

    Each stage is the time since the previous one, so they add up to the DAG run.
    """
    firsts = [driver for driver in summary.drivers if driver.incarnation == 1]
    sources = [row.first_at for row in summary.ports if row.direction == "out" and row.events]
    points = [
        ("trigger_to_run_in_log", summary.run.created_at),
        ("to_first_driver_claimed", min((driver.claimed_at for driver in firsts), default=None)),
        ("to_first_driver_registered", min((d.registered_at for d in firsts if d.registered_at), default=None)),
        ("to_first_event", min(sources, default=None)),
        ("to_last_event", max((row.last_at for row in summary.ports), default=None)),
        ("to_end_of_dag_run", ended_at),
    ]
    stages, before = {}, triggered_at
    for name, at in points:
        if at is not None:
            stages[name] = round(at - before, 3)
            before = at
    return stages
