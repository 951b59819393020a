"""The supervising loop of `logio run`, with drivers that are mere processes: however it ends, none is left."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.launch import bundle, processes, spark_submit
from airflow_logio.launch import launcher as launcher_module
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import LaunchContext, Launched, Launcher, resolve
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.run_summary import Outcome, RunSummary
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.supervision import local_run
from airflow_logio.supervision.local_run import LocalRun
from tests.support.grocery import write_slice
from tests.support.waiting import eventually

SALES = bundle.parse_ref(f"{Path(__file__).parents[3] / 'dags' / 'pipelines' / 'sales.py'}:sales")
GROUPS = {"ingest", "totals", "hourly", "publish"}


@dataclass
class Sleepers(Launcher):
    """Drivers that sleep; `behaviour` makes something of a claim and its process, at once or in a thread."""

    behaviour: Callable[[Claim, subprocess.Popen[bytes]], None] = lambda _claim, _process: None
    refused: str | None = None
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """The latest of each group."""
    all: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        if claim.group == self.refused:
            raise ConfigurationError("spark-submit could not be started: no such file")
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.processes[claim.group] = process
        self.all.append(process)
        identity = processes.identity_of(process.pid)
        self.behaviour(claim, process)
        return Launched(identity, None)

    def alive(self) -> list[str]:
        return [str(process.args) for process in self.all if process.poll() is None]


@pytest.fixture
def launcher() -> Iterator[Sleepers]:
    sleepers = Sleepers()
    yield sleepers
    for process in sleepers.all:
        process.kill()
        process.wait()


@pytest.fixture
def context(
    store: LogStore, sqlite_url: str, launcher: Sleepers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> LaunchContext:
    monkeypatch.setattr(spark_submit, "check", lambda _settings: None)
    pipeline = bundle.load(SALES)
    spec = run_spec(
        pipeline,
        SALES,
        dag_id="tests",
        dag_run_id="run",
        params={"transactions": str(write_slice(tmp_path / "transactions.parquet", 1_000))},
        connections={"warehouse": "warehouse"},
    )
    return LaunchContext(store, sqlite_url, store.start_run(spec), pipeline, SALES, {"warehouse": "x"}, launcher)


def registering(store: LogStore) -> Callable[[Claim, subprocess.Popen[bytes]], None]:
    """Drivers that register and then hear nothing."""

    def register(claim: Claim, process: subprocess.Popen[bytes]) -> None:
        identity = processes.identity_of(process.pid)
        assert identity is not None
        store.register(claim, identity)

    return register


class Running:
    """`LocalRun.run` in a thread."""

    def __init__(self, local: LocalRun) -> None:
        self.local = local
        self.summaries: list[RunSummary] = []
        self._thread = threading.Thread(target=lambda: self.summaries.append(local.run()))
        self._thread.start()

    def end(self, timeout: float = 90) -> RunSummary:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the loop does not end"
        return self.summaries[0]


def states(context: LaunchContext) -> dict[str, GroupState]:
    return {status.group: status.state for status in context.store.groups(context.run.run_id)}


def test_a_run_without_a_place_waits_with_a_word_and_begins_when_there_is_one(
    context: LaunchContext, launcher: Sleepers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_run, "_PLACE_SECONDS", 0.01)
    store, spec = context.store, context.run.spec
    other = replace(spec, key=replace(spec.key, dag_run_id="other"), drivers_at_once=len(GROUPS))
    waiting = replace(context, run=store.start_run(other))
    store.claim(context.run.run_id, "ingest", expected=0, reason="test")
    running = Running(LocalRun(waiting, poll=0.02, halt_grace=1))
    eventually(lambda: "run other of sales" in caplog.text and "waits for a place" in caplog.text, what="it says so")
    assert not launcher.all and set(states(waiting).values()) == {GroupState.NEW}
    assert store.park(GroupRef(context.run.run_id, "ingest", 1), "it is red")
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    assert caplog.text.count("waits for a place") == 1
    running.local.halt()
    assert running.end().outcome is Outcome.HALTED


def test_halting_does_not_wait_for_drivers_that_have_not_registered(context: LaunchContext, launcher: Sleepers) -> None:
    running = Running(LocalRun(context, poll=0.02, halt_grace=60))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    running.local.halt()
    assert running.end().outcome is Outcome.HALTED
    assert launcher.alive() == []
    assert set(states(context).values()) == {GroupState.HALTED}


def test_a_driver_that_does_not_obey_is_killed_after_a_while(context: LaunchContext, launcher: Sleepers) -> None:
    launcher.behaviour = registering(context.store)
    running = Running(LocalRun(context, poll=0.02, halt_grace=0.5))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    running.local.halt()
    running.end()
    assert launcher.alive() == []
    assert set(states(context).values()) == {GroupState.HALTED}


def test_the_second_ctrl_c_kills_at_once(context: LaunchContext, launcher: Sleepers) -> None:
    launcher.behaviour = registering(context.store)
    running = Running(LocalRun(context, poll=0.02, halt_grace=600))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    running.local.halt()
    eventually(lambda: {status.desired for status in context.store.groups(context.run.run_id)} == {GroupState.HALTED})
    assert len(launcher.alive()) == len(GROUPS)
    running.local.halt()
    running.end()
    assert launcher.alive() == []


def test_drivers_that_obey_end_by_themselves(context: LaunchContext, launcher: Sleepers) -> None:
    store = context.store

    def obey(claim: Claim, process: subprocess.Popen[bytes]) -> None:
        registering(store)(claim, process)
        ref = GroupRef(claim.run_id, claim.group, claim.incarnation)

        def live() -> None:
            while store.group(claim.run_id, claim.group).desired is not GroupState.HALTED:
                time.sleep(0.02)
            store.halted(ref)
            process.terminate()

        threading.Thread(target=live, daemon=True).start()

    launcher.behaviour = obey
    running = Running(LocalRun(context, poll=0.02, halt_grace=600))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    running.local.halt()
    running.end()
    assert {process.wait() for process in launcher.processes.values()} == {-15}
    assert set(states(context).values()) == {GroupState.HALTED}


def test_a_parked_group_ends_the_run_and_the_other_drivers(context: LaunchContext, launcher: Sleepers) -> None:
    launcher.behaviour = registering(context.store)
    running = Running(LocalRun(context, poll=0.02, halt_grace=0.5))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    context.store.park(GroupRef(context.run.run_id, "totals", 1), "KeyError: 'department'")
    summary = running.end()
    assert summary.outcome is Outcome.PARKED
    assert [(group.group, group.error) for group in summary.parked] == [("totals", "KeyError: 'department'")]
    assert launcher.alive() == []
    assert states(context)["ingest"] is GroupState.HALTED


def test_a_launch_that_is_impossible_leaves_no_driver(context: LaunchContext, launcher: Sleepers) -> None:
    launcher.refused = "publish"
    with pytest.raises(ConfigurationError, match="could not be started"):
        LocalRun(context, poll=0.02).run()
    assert set(launcher.processes) == GROUPS - {"publish"}
    assert launcher.alive() == []


def test_without_a_log_drivers_are_killed_by_what_was_known(
    context: LaunchContext, launcher: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.behaviour = registering(context.store)
    local = LocalRun(context, poll=0.02, halt_grace=0.3)
    shown: list[object] = []

    def away(*_arguments: object) -> None:
        raise LogUnavailable("the log is unavailable")

    def show(snapshot: object) -> None:
        if len(launcher.processes) == len(GROUPS):
            shown.append(snapshot)

    ended: list[BaseException] = []

    def run() -> None:
        try:
            local.run(show)
        except LogUnavailable as error:
            ended.append(error)

    monkeypatch.setattr(context.store, "patience", _impatient())
    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: len(shown) > 1, what="every group was looked at once more after its launch")
    for name in ("groups", "group", "request", "halted", "progress"):
        monkeypatch.setattr(context.store, name, away)
    local.halt()
    thread.join(60)
    assert not thread.is_alive() and launcher.alive() == []
    assert len(ended) == 1, "what became of the run cannot be said"


def _impatient() -> object:
    from airflow_logio.store.rules.session_rules import Patience

    return Patience(total_seconds=0.1, first_wait_seconds=0.01, longest_wait_seconds=0.01)


def test_groups_that_were_halted_are_launched_again(context: LaunchContext, launcher: Sleepers) -> None:
    first = Running(LocalRun(context, poll=0.02))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    first.local.halt()
    first.end()
    launcher.processes.clear()
    second = Running(LocalRun(context, poll=0.02))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched again")
    second.local.halt()
    summary = second.end()
    assert {group.incarnation for group in summary.groups} == {2}
    assert summary.recoveries == 0, "a person's wish is no recovery"


def test_a_launch_waits_for_a_log_that_refuses_writes(
    context: LaunchContext, launcher: Sleepers, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher.behaviour = registering(context.store)
    first = Running(LocalRun(context, poll=0.02, halt_grace=0.2))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    first.local.halt()
    first.end()
    launcher.processes.clear()
    claim, refused = context.store.claim, [True]

    def disk_full(run_id: int, group: str, **arguments: Any) -> Claim:
        if group == "totals" and refused[0]:
            raise LogUnavailable("database or disk is full")
        return claim(run_id, group, **arguments)

    monkeypatch.setattr(context.store, "claim", disk_full)
    second = Running(LocalRun(context, poll=0.02, halt_grace=0.2))
    eventually(lambda: set(launcher.processes) == GROUPS - {"totals"}, what="the others are launched")
    time.sleep(0.2)
    assert len(launcher.alive()) == len(GROUPS) - 1, "a group that cannot be claimed yet ends no driver"
    refused[0] = False
    eventually(lambda: set(launcher.processes) == GROUPS, what="the log takes writes again, and the group is launched")
    second.local.halt()
    summary = second.end()
    assert {group.incarnation for group in summary.groups} == {2}
    assert summary.recoveries == 0


def test_a_dead_driver_is_replaced_and_counted(context: LaunchContext, launcher: Sleepers) -> None:
    launcher.behaviour = registering(context.store)
    running = Running(LocalRun(context, poll=0.02, halt_grace=0.2))
    eventually(lambda: set(launcher.processes) == GROUPS, what="all launched")
    psutil.Process(launcher.processes["hourly"].pid).kill()
    eventually(lambda: context.store.group(context.run.run_id, "hourly").incarnation == 2, what="hourly is replaced")
    running.local.halt()
    summary = running.end()
    assert summary.recoveries == 1 and len(summary.drivers) == 5
    assert launcher.alive() == []


def test_a_supervisor_resolves_a_launch_once_for_all_drivers_with_the_same_code(
    store: LogStore, context: LaunchContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of an earlier version, which keeps no code, is launched with the code as it is each time."""
    code = collect(SALES)
    spec = replace(context.run.spec, key=replace(context.run.spec.key, dag_run_id="kept"), code_digest=code.digest)
    kept = replace(context, run=store.start_run(spec, code=code.kept()))
    resolved: list[str] = []

    def count(context: LaunchContext, group: str, number: int) -> Launch:
        resolved.append(f"{group} of {context.run.spec.key.dag_run_id}")
        return resolve(context, group, number)

    monkeypatch.setattr(launcher_module, "resolve", count)
    known = launcher_module.KnownLaunches()
    launches = [known.of(kept, group, 0) for group in ("totals", "publish", "totals")]
    assert launches[0] is launches[2] and launches[0].code is launches[1].code
    assert resolved == ["totals of kept", "publish of kept"]
    earlier = launcher_module.KnownLaunches()
    for _ in range(2):
        earlier.of(context, "totals", 0)
    assert resolved[2:] == ["totals of run", "totals of run"]


SCALED = bundle.parse_ref(f"{Path(__file__).parents[3] / 'dags' / 'pipelines' / 'sales_scaled.py'}:sales_scaled")


@dataclass
class Scaled:
    """A run with a replicated group. One replica is at work when the others are asked for."""

    local: LocalRun
    launcher: Sleepers
    context: LaunchContext

    def ask(self) -> bool:
        """Ask for all replicas once all groups have drivers; whether it was done now."""
        store, run = self.context.store, self.context.run
        ((group, shape),) = run.spec.replicated.items()
        if store.scalings(run.run_id, group) or len(self.launcher.processes) < len(run.spec.groups) - len(self.retired):
            return False
        store.request_scaling(run.run_id, group, len(shape.replicas), by="test", reason="")
        return True

    @property
    def retired(self) -> set[str]:
        statuses = self.context.store.groups(self.context.run.run_id)
        return {status.group for status in statuses if status.state is GroupState.RETIRED}

    def left(self) -> list[str]:
        return [group for group, process in self.launcher.processes.items() if process.poll() is None]


@pytest.fixture
def scaled(store: LogStore, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scaled]:
    monkeypatch.setattr(spark_submit, "check", lambda _settings: None)
    pipeline, launcher = bundle.load(SCALED), Sleepers(registering(store))
    params = {"transactions": str(write_slice(tmp_path / "transactions.parquet", 1_000))}
    run = store.start_run(
        run_spec(
            pipeline, SCALED, dag_id="tests", dag_run_id="run", params=params, connections={"warehouse": "warehouse"}
        )
    )
    context = LaunchContext(store, sqlite_url, run, pipeline, SCALED, {"warehouse": "x"}, launcher)
    yield Scaled(LocalRun(context, poll=0.25, halt_grace=0.5, snapshot_every=0.0), launcher, context)
    for process in launcher.all:
        process.kill()


def test_replicas_that_were_launched_since_the_last_look_end_with_the_others(scaled: Scaled) -> None:
    asked_for = scaled.retired
    assert asked_for

    def halt_at_once(_snapshot: Any) -> None:
        scaled.ask()
        if asked_for & set(scaled.launcher.processes):
            scaled.local.halt()

    assert scaled.local.run(halt_at_once).outcome is Outcome.HALTED
    assert asked_for & set(scaled.launcher.processes)
    assert scaled.left() == []


def test_nothing_is_launched_for_a_run_that_ends_because_a_group_is_parked(scaled: Scaled) -> None:
    """A group parks, and a request comes, between two looks."""
    asked_for, store, run = scaled.retired, scaled.context.store, scaled.context.run

    def park(_snapshot: Any) -> None:
        if scaled.ask():
            store.park(GroupRef(run.run_id, "publish", 1), "a fault")

    assert scaled.local.run(park).outcome is Outcome.PARKED
    assert not asked_for & set(scaled.launcher.processes)
    assert scaled.left() == []
