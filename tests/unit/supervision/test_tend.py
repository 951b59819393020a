"""Supervisors, watchers and launchers that meet: none ends, restarts or accuses what is not theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs

from airflow_logio.errors import BudgetSpent, Fenced, ProtocolViolation
from airflow_logio.launch import driver_folders, processes
from airflow_logio.launch.driver_folders import CONFIG_NAME
from airflow_logio.launch.launcher import LaunchContext, LocalProcessLauncher, launch_group
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import Lease, LeaseObserver, RecoveryBudget
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.local_run import DriverEnder
from airflow_logio.supervision.look import Observation
from airflow_logio.supervision.tend import recover_if_dead
from tests.support.logs import SOMEBODY, sent, spec, start_driver
from tests.support.watching import GroupWatcher

NOBODY = 65534
Sleeper = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        program = "import sys; sys.stdin.read()"
        child = subprocess.Popen([sys.executable, "-c", program, *arguments], stdin=subprocess.PIPE, cwd=cwd)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def store(sqlite_url: str) -> Iterator[LogStore]:
    opened = open_store(sqlite_url)
    yield opened
    opened.dispose()


def context(store: LogStore, run: Any) -> LaunchContext:
    """Enough for what is refused before anything is launched."""
    return LaunchContext(store, "sqlite://", run, None, None, {}, LocalProcessLauncher(Path("none")))  # type: ignore[arg-type]


def test_a_second_supervisor_does_not_end_the_new_driver(store: LogStore, sleeper: Sleeper) -> None:
    """Both saw incarnation 1 dead; the first one's driver 2 runs already when the second one acts, on SQLite."""
    old = start_driver(store)
    store.declare_dead(old.ref, "gone")
    child = sleeper()
    claim = store.claim(old.run.run_id, "g", expected=1, reason="the first")
    identity = processes.identity_of(child.pid)
    assert identity is not None
    store.register(claim, identity)
    with pytest.raises(Fenced, match="claimed by another process"):
        launch_group(context(store, old.run), "g", expected=1, reason="the second")
    assert child.poll() is None
    assert processes.is_gone(identity) is False


def test_what_somebody_else_decided_stands(store: LogStore) -> None:
    run = store.start_run(spec("g", budget=RecoveryBudget(0)))
    store.register(store.claim(run.run_id, "g", expected=0, reason="first"), SOMEBODY)
    store.declare_dead(GroupRef(run.run_id, "g", 1), "gone")
    both_saw = Observation(store.group(run.run_id, "g"), "gone")
    with pytest.raises(BudgetSpent):
        store.claim(run.run_id, "g", expected=1, reason="the first supervisor")
    assert recover_if_dead(context(store, run), "g", both_saw) is False
    assert store.group(run.run_id, "g").state is GroupState.PARKED


def test_a_driver_that_says_why_it_ends_is_believed_by_who_read_the_log_before(
    store: LogStore, sleeper: Sleeper
) -> None:
    """The supervisor has read that it runs; it fails, says so, and its process is gone when the supervisor looks for it."""
    driver = start_driver(store)
    child = sleeper()
    identity = processes.identity_of(child.pid)
    before = structs.replace(store.group(driver.run.run_id, "g"), identity=identity)
    store.declare_dead(driver.ref, "OperatorFailed: event 7")
    child.kill()
    child.wait()
    observation = GroupWatcher(store, driver.run, "g", Lease(10, 60)).judge(before, 0.0)
    assert observation.is_dead and observation.cause == "OperatorFailed: event 7"


def test_a_halted_group_is_restarted_by_a_person_only(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    log_store.declare_dead(driver.ref, "gone")
    log_store.halted(driver.ref)
    with pytest.raises(ProtocolViolation, match="halted; only a person"):
        log_store.claim(driver.run.run_id, "g", expected=1, reason="a supervisor that had seen it dead")
    assert log_store.claim(driver.run.run_id, "g", expected=1, reason="a person", by_user=True).incarnation == 2


def test_the_wish_to_halt_outlives_the_driver(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    log_store.request(driver.run.run_id, "g", GroupState.HALTED)
    log_store.declare_dead(driver.ref, "died before it could obey")
    with pytest.raises(ProtocolViolation, match="asked to halt"):
        log_store.claim(driver.run.run_id, "g", expected=1, reason="a supervisor")
    assert log_store.group(driver.run.run_id, "g").state is GroupState.HALTED


def test_a_driver_taken_for_dead_may_finish_until_it_is_replaced(log_store: LogStore) -> None:
    driver = start_driver(log_store)
    assert log_store.declare_dead(driver.ref, "no heartbeat for 10 s")
    driver.session.commit([sent(1)])
    driver.session.commit([fx.FinishGroup()])
    assert log_store.group(driver.run.run_id, "g").state is GroupState.FINISHED


def test_a_person_brings_a_new_budget(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g", budget=RecoveryBudget(1))).run_id

    def fail(incarnation: int) -> None:
        log_store.declare_dead(GroupRef(run, "g", incarnation), "gone")

    log_store.register(log_store.claim(run, "g", expected=0, reason="first"), SOMEBODY)
    fail(1)
    log_store.register(log_store.claim(run, "g", expected=1, reason="recovery"), SOMEBODY)
    fail(2)
    with pytest.raises(BudgetSpent):
        log_store.claim(run, "g", expected=2, reason="recovery")
    log_store.register(log_store.claim(run, "g", expected=2, reason="a person", by_user=True), SOMEBODY)
    fail(3)
    assert log_store.claim(run, "g", expected=3, reason="first recovery after the person").incarnation == 4


def test_a_driver_may_register_again_when_its_acknowledgement_was_lost(log_store: LogStore) -> None:
    run = log_store.start_run(spec("g"))
    claim = log_store.claim(run.run_id, "g", expected=0, reason="first")
    assert log_store.register(claim, SOMEBODY) == log_store.register(claim, SOMEBODY)
    with pytest.raises(Fenced):
        log_store.register(claim, structs.replace(SOMEBODY, pid=SOMEBODY.pid + 1))


# --- liveness ---------------------------------------------------------------------------------------------------------


class SlowLog:
    """Answers after `delay` seconds of the clock, with what held when it was asked."""

    ends_old_driver_first = False

    def __init__(self) -> None:
        self.time = 0.0
        self.delay = 0.0
        self.dead: str | None = None

    def group(self, *_: object) -> GroupStatus:
        self.time += self.delay
        state = GroupState.DEAD if self.dead else GroupState.RUNNING
        return GroupStatus("g", state, GroupState.RUNNING, 1, 5, 0.0, True, 0, None, 0.0)

    def declare_dead(self, _ref: object, cause: str) -> None:
        self.dead = cause


def test_a_slow_answer_is_no_death() -> None:
    log = SlowLog()
    run = Run(1, "uid", spec("g"), RunState.RUNNING, 0.0, 1)
    watcher = GroupWatcher(log, run, "g", Lease(10, 120), clock=lambda: log.time)  # type: ignore[arg-type]
    watcher.poll()
    log.delay = 15
    log.time += 0.25
    watcher.poll()
    assert log.dead is None


def test_an_observer_that_was_stopped_accuses_nobody() -> None:
    observer = LeaseObserver(Lease(10, 120))
    observer.observe(1, 5, 0.0)
    assert not observer.is_expired(observer.observe(1, 5, 3_600.0), launching=False)
    stood_still = max(observer.observe(1, 5, 3_600.0 + second) for second in range(1, 10))
    assert observer.is_expired(stood_still, launching=False)


def test_a_step_of_the_clock_moves_no_identity(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = processes.identity_of(sleeper().pid)
    assert identity is not None
    boot = psutil.boot_time()
    monkeypatch.setattr(psutil, "boot_time", lambda: boot + 3_600)
    assert processes.is_gone(identity) is False
    assert processes.is_gone(structs.replace(identity, start_time=identity.start_time - 1)) is True
    assert processes.is_gone(structs.replace(identity, boot_id="another")) is True
    assert processes.is_gone(structs.replace(identity, host="elsewhere")) is None


def test_a_process_of_another_container_is_nobodys_namesake(sleeper: Sleeper) -> None:
    """Two containers of one machine share the boot, may share the host name, and count pids from 1."""
    child = sleeper()
    own = processes.identity_of(child.pid)
    assert own is not None
    boot, _, namespace = own.boot_id.partition("/")
    assert boot
    assert namespace or not Path("/proc/self/ns/pid").is_symlink()
    for elsewhere in (
        structs.replace(own, boot_id=f"{boot}/1"),
        structs.replace(own, boot_id=f"{boot}/1", pid=2**22 + 1),
    ):
        assert processes.is_gone(elsewhere) is None
        assert not processes.is_local(elsewhere)
        assert processes.end(elsewhere)
    assert child.poll() is None
    assert processes.is_gone(structs.replace(own, boot_id=f"another/{namespace}")) is True, (
        "no container survives a boot"
    )


def test_a_driver_of_another_user_is_only_fenced(sleeper: Sleeper) -> None:
    """It is seen, and not ours to end: what recovers it continues, and waits for nothing."""
    is_root = os.geteuid() == 0
    identity = processes.identity_of(sleeper().pid if is_root else 1)
    assert identity is not None
    child = os.fork()
    if child == 0:
        code = 2
        try:
            if is_root:
                os.setuid(NOBODY)
            began = time.monotonic()
            code = 0 if processes.end(identity, 120) is False and time.monotonic() - began < 60 else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert processes.is_gone(identity) is False


def test_a_shell_in_a_drivers_folder_is_left_alone(sleeper: Sleeper, tmp_path: Path) -> None:
    folder = tmp_path / "uid" / "totals" / "1"
    folder.mkdir(parents=True)
    shell, driver = sleeper(cwd=folder), sleeper(str(APPLICATION), cwd=folder)
    assert driver_folders.end_under(tmp_path / "uid" / "totals") == 1
    assert shell.poll() is None
    assert not psutil.pid_exists(driver.pid)
    assert os.getpid() not in [process.pid for process in driver_folders.processes_under(tmp_path)]


@pytest.mark.parametrize("seen", ["parked before the end", "halted on request"])
def test_a_driver_that_a_person_has_started_since_is_not_ended(
    store: LogStore, sleeper: Sleeper, tmp_path: Path, seen: str
) -> None:
    """Neither the one on record nor one that the log does not know of yet, nor what it has still to read."""
    run = store.start_run(spec("g"))
    folders = [tmp_path / run.uid / "g" / number for number in "12"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / CONFIG_NAME).write_text("{}")
    old, new = (sleeper(str(APPLICATION), cwd=folder) for folder in folders)
    claim = store.claim(run.run_id, "g", expected=0, reason="test")
    ours = processes.identity_of(old.pid)
    assert ours is not None
    store.register(claim, ours)
    ender = DriverEnder(store, run, ["g"], tmp_path, grace_seconds=60)

    def restart() -> None:
        again = store.claim(run.run_id, "g", expected=1, reason="a person", by_user=True)
        store.submitted(again, log_path=None, launcher=processes.identity_of(new.pid))

    if seen == "parked before the end":
        assert store.park(GroupRef(run.run_id, "g", 1), "test")
        ender.remember(store.group(run.run_id, "g"))
        restart()
        ender.end()
    else:
        ender.remember(store.group(run.run_id, "g"))
        asking = iter([True, True])

        def patient() -> bool:
            if next(asking, False):
                return True
            store.halted(GroupRef(run.run_id, "g", 1))
            restart()
            return False

        ender.end(patient)
    assert not psutil.pid_exists(old.pid) and not (folders[0] / CONFIG_NAME).exists()
    assert new.poll() is None and (folders[1] / CONFIG_NAME).exists()
    status = store.group(run.run_id, "g")
    assert (status.incarnation, status.state, status.desired) == (2, GroupState.RESTARTED, GroupState.RUNNING)
    ender.forget("g")
    ender.end(lambda: False)
    assert not psutil.pid_exists(new.pid), "as soon as it is ours again"
