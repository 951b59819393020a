"""A supervisor without Airflow: when it begins a round of a run, what it says in the log, and which drivers it ends."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.bundle import load, parse_ref
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.driver_folders import local_drivers
from airflow_logio.launch.launcher import LaunchContext, Launched, Launcher
from airflow_logio.launch.processes import APPLICATION, own_identity
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port.unfenced_port import LINGER_SECONDS
from airflow_logio.store.records.driver_records import Claim, GroupRef
from airflow_logio.store.records.run_records import Run, RunKey, Supervision
from airflow_logio.supervision.run_tender import (
    AGAIN_SECONDS,
    LATE_SECONDS,
    NOTE_SECONDS,
    OLD_SECONDS,
    LatePartitions,
    OldRuns,
    Round,
    RunTender,
    VoidDriverEnder,
    tend_once,
)
from airflow_logio.testing.memory_log import MemoryLogStore
from tests.support.logs import SOMEBODY, spec, start_driver
from tests.support.running import has_ended
from tests.support.waiting import eventually


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class ByHand(Round):
    uid: str
    outcome: bool | None = None

    def ended(self) -> bool | None:
        return self.outcome


class Tended:
    """A tender whose rounds the test ends."""

    def __init__(self, store: MemoryLogStore, clock: Clock, run_uid: str | None = None) -> None:
        self.rounds: list[ByHand] = []
        nothing = VoidDriverEnder(store, drivers=list)
        self.tender = RunTender(store, "tender", self._begin, run_uid=run_uid, clock=clock, void=nothing)

    def _begin(self, uid: str) -> ByHand:
        self.rounds.append(ByHand(uid))
        return self.rounds[-1]

    def look(self) -> list[str]:
        """uids of the runs of which a round has been begun so far."""
        self.tender.look()
        return [one.uid for one in self.rounds]


@pytest.fixture
def store() -> MemoryLogStore:
    return MemoryLogStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def dead(store: MemoryLogStore, name: str, supervision: Supervision = Supervision.TASK) -> tuple[Run, GroupRef]:
    made = replace(spec(dag_run=name), supervision=supervision)
    driver = start_driver(store, run=store.start_run(made))
    store.declare_dead(driver.ref, "test")
    return driver.run, driver.ref


def test_one_round_per_run_at_a_time(store: MemoryLogStore, clock: Clock) -> None:
    first, second = dead(store, "run-1")[0], dead(store, "run-2")[0]
    dead(store, "run-3", Supervision.PROCESS)
    tended = Tended(store, clock)
    assert tended.look() == [first.uid, second.uid], "`logio run` looks after its own"
    assert tended.look() == [first.uid, second.uid]
    tended.rounds[0].outcome = True
    assert tended.look() == [first.uid, second.uid, first.uid], "it is dead still, or again"


def test_only_one_run_if_one_is_named(store: MemoryLogStore, clock: Clock) -> None:
    dead(store, "run-1")
    second = dead(store, "run-2")[0]
    assert Tended(store, clock, second.uid).look() == [second.uid]


def test_after_a_failure_it_waits_and_does_not_pretend_to_look(store: MemoryLogStore, clock: Clock) -> None:
    run, ref = dead(store, "run-1")
    tended = Tended(store, clock)
    assert tended.look() == [run.uid]
    assert [one.name for one in store.supervisors()] == ["tender"]
    store.tables.supervisors.clear()
    tended.rounds[0].outcome = False
    clock.now += NOTE_SECONDS
    assert len(tended.look()) == 1 and not store.supervisors()
    clock.now += AGAIN_SECONDS
    assert len(tended.look()) == 2
    claim = store.claim(run.run_id, ref.group, expected=1, reason="another supervisor")
    store.register(claim, SOMEBODY)
    tended.rounds[1].outcome = False
    tended.look()
    clock.now += NOTE_SECONDS
    tended.look()
    assert [one.name for one in store.supervisors()] == ["tender"], "nothing is left that it could not do"


# --- one round --------------------------------------------------------------------------------------------------------

PIPELINE = """
from airflow_logio.dataflow import ParquetSource, Pipeline, TableWriter

shop = Pipeline("tended_shop", connections=["wh"])
read = shop.source("read", ParquetSource("/none.parquet", records_per_event=1))
save = shop.writer("save", TableWriter("wh", "sums", {"a": "text"}, on_new_run="replace"), read)
shop.group("g", read, spark={"spark.executor.memory": "1g"})
shop.group("h", save)
"""


@dataclass
class Recording(Launcher):
    """Starts nothing, and remembers the groups for which it was asked for drivers."""

    groups: list[str] = field(default_factory=list)

    def check(self, settings: SparkSettings) -> None:
        pass

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        self.groups.append(claim.group)
        return Launched(own_identity(), None)


def test_wrong_settings_of_one_group_hold_up_none_of_the_others(store: MemoryLogStore, tmp_path: Path) -> None:
    """A Spark Connect server takes no properties of one group: `g` cannot be launched, and `h`, which comes after it, is."""
    file = tmp_path / "tended_shop.py"
    file.write_text(PIPELINE)
    ref, launcher = parse_ref(f"{file}:shop"), Recording()
    pipeline, settings = load(ref), SparkSettings(master="sc://host:15002")
    run = store.start_run(spec("g", "h"))
    for group in ("g", "h"):
        store.declare_dead(start_driver(store, group=group, run=run).ref, "test")
    context = LaunchContext(store, "sqlite://", run, pipeline, ref, {"wh": "sqlite://"}, launcher, settings)
    with pytest.raises(ConfigurationError, match=r"group 'g' of pipeline 'tended_shop': spark\.executor\.memory"):
        tend_once(store, run, lambda *_: context)
    assert launcher.groups == ["h"]
    assert [store.group(run.run_id, group).state for group in ("g", "h")] == [GroupState.DEAD, GroupState.RESTARTED]


# --- drivers that are void --------------------------------------------------------------------------------------------


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.wait()


def driver(folder: Path, run_uid: str, group: str, incarnation: int) -> subprocess.Popen[bytes]:
    """A process that looks like a driver: by its program, and by the folder that it works in."""
    where = folder / run_uid / group / str(incarnation)
    where.mkdir(parents=True)
    command = [sys.executable, "-c", "import time; time.sleep(300)", str(APPLICATION)]
    return subprocess.Popen(command, cwd=where)


def test_only_drivers_of_a_void_incarnation_are_ended_and_not_at_once(
    store: MemoryLogStore, clock: Clock, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    run, _ = dead(store, "run-1")
    claim = store.claim(run.run_id, "g", expected=1, reason="test")
    ref = store.register(claim, SOMEBODY)
    other = store.start_run(replace(spec("a", "b"), key=RunKey("other", "dag", "run-1")))
    store.claim(other.run_id, "a", expected=0, reason="test")
    replaced, present = driver(tmp_path, run.uid, "g", 1), driver(tmp_path, run.uid, "g", 2)
    launching = driver(tmp_path, other.uid, "a", 1)
    unknown = driver(tmp_path, "0" * 32, "g", 1)
    processes += [replaced, present, launching, unknown]
    ender = VoidDriverEnder(store, grace_seconds=30, clock=clock)
    started = {one.pid for one in processes}
    eventually(lambda: started <= {one.process.pid for one in local_drivers()}, what="each is what it was started as")
    assert ender.look() == []
    clock.now += 29
    assert ender.look() == []
    clock.now += 1
    assert [one.process.pid for one in ender.look()] == [replaced.pid]
    eventually(lambda: replaced.poll() is not None, what="it is ended")
    assert [one.poll() for one in (present, launching, unknown)] == [None] * 3
    assert store.halted(ref) and store.group(run.run_id, "g").state is GroupState.HALTED
    assert ender.look() == []
    clock.now += 30
    assert [one.process.pid for one in ender.look()] == [present.pid]
    eventually(lambda: present.poll() is not None, what="the halted one is ended, too")
    assert [one.poll() for one in (launching, unknown)] == [None] * 2


def test_one_that_has_finished_may_stay_for_receivers_that_lag(
    store: MemoryLogStore, clock: Clock, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """It hands over what they would have to make again (ADR-107), and ends by itself."""
    finished = start_driver(store, group="a", run=store.start_run(spec("a")))
    processes.append(driver(tmp_path, finished.run.uid, "a", 1))
    finished.session.commit([fx.FinishGroup()])
    ender = VoidDriverEnder(store, grace_seconds=30, clock=clock)
    for seconds in (0.0, 31.0, LINGER_SECONDS - 2):
        clock.now += seconds
        assert ender.look() == []
    clock.now += 2
    assert [one.process.pid for one in ender.look()] == [processes[0].pid], "it hangs"


def test_one_that_is_dead_and_not_replaced_is_left_alone(
    store: MemoryLogStore, clock: Clock, tmp_path: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    """It may be slow only, and finish after all."""
    run, _ = dead(store, "run-1")
    processes.append(driver(tmp_path, run.uid, "g", 1))
    ender = VoidDriverEnder(store, grace_seconds=0, clock=clock)
    assert ender.look() == [] and not has_ended(local_drivers()[0].process)


# --- old runs ---------------------------------------------------------------------------------------------------------


def test_old_runs_are_removed_beside_the_supervision(clock: Clock) -> None:
    """Once a minute, and never two at a time: a look waits for none of it."""
    asked, may_end = queue.Queue[str](), threading.Event()

    def remove() -> list[str]:
        asked.put("asked")
        assert may_end.wait(90)
        return []

    old = OldRuns(remove, clock=clock)
    old.look()
    assert asked.get(timeout=90)
    for _ in range(3):
        clock.now += OLD_SECONDS
        old.look()
    assert asked.empty(), "the first one has not ended"
    may_end.set()
    eventually(lambda: old.is_over)
    old.look()
    assert asked.get(timeout=90), "the time since the last one is over"


def test_a_supervisor_of_all_runs_looks_for_old_ones(store: MemoryLogStore, clock: Clock) -> None:
    asked = threading.Event()

    def remove() -> list[str]:
        asked.set()
        return ["something was removed"]

    nothing = VoidDriverEnder(store, drivers=list)
    RunTender(store, "tender", ByHand, clock=clock, void=nothing, old=remove).look()
    assert asked.wait(90)


def test_late_days_are_said_once_and_a_promise_that_cannot_be_read_ends_no_supervisor(
    store: MemoryLogStore, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    due = {"partition": "Days", "name": "day", "zone": "UTC", "due": "00:00"}
    day = (datetime.now(UTC) - timedelta(days=2)).date().isoformat()
    store.start_run(replace(spec(), partition=day, due=due))
    late = LatePartitions(store, clock=clock)
    for _ in range(2):
        late.look()
        clock.now += LATE_SECONDS
    assert caplog.text.count(f"day {day} of pipeline sales is not there") == 1
    other = replace(spec(dag_run="of a later version"), partition=day, due={**due, "partition": "Weeks"})
    store.start_run(other)
    late.look()
    assert "which days are late is not known" in caplog.text
