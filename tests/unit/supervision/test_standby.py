"""What a standby takes over and what it leaves, and how others see that there is one (ADR-108)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from msgspec import structs

from airflow_logio import crash
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import driver_folders, processes
from airflow_logio.launch.driver_config import DriverConfig
from airflow_logio.launch.driver_folders import KEYTAB_NAME, LocalDriver
from airflow_logio.launch.launcher import Launched, Launcher
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupRef, Load, Standby
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision import look
from airflow_logio.supervision.halt import force
from airflow_logio.supervision.local_run import DriverEnder
from airflow_logio.supervision.run_tender import VoidDriverEnder
from airflow_logio.supervision.standby import ThisProcess, is_child_of, own_spark_submit, why_not_needed
from tests.support.launches import launch_of
from tests.support.logs import Driver, spec, start_driver
from tests.support.watching import GroupWatcher

LEASE = Lease(10, 60)
READY = Load(1.0, 0.0, 1.0, 0.0, 0, 0, 0, 0, standby=Standby(4711, True, 2**28))


@pytest.fixture
def driver(log_store: LogStore) -> Driver:
    return start_driver(log_store)


def beat(driver: Driver, load: Load | None) -> None:
    driver.store.heartbeat(driver.ref, 1, ready=True, rss_bytes=1, load=load)


# --- what others see --------------------------------------------------------------------------------------------------


def test_what_a_driver_says_of_its_standby_is_in_the_log(driver: Driver) -> None:
    beat(driver, READY)
    load = driver.store.group(driver.run.run_id, "g").load
    assert load is not None and load.standby == READY.standby


@pytest.mark.parametrize("is_ready", [True, False])
def test_others_leave_a_dead_group_to_its_standby_for_a_moment(
    driver: Driver, is_ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(driver, replace(READY, standby=Standby(4711, is_ready, 1)))
    driver.store.declare_dead(driver.ref, "gone")
    others = GroupWatcher(driver.store, driver.run, "g", LEASE)
    own = GroupWatcher(driver.store, driver.run, "g", LEASE, is_standby=True)
    assert own.poll().is_dead
    seen = others.poll()
    assert (seen.is_dead, seen.left_to_standby, seen.state) == (not is_ready, is_ready, GroupState.DEAD)
    monkeypatch.setattr(look, "STANDBY_SECONDS", 0.0)
    assert others.poll().is_dead, "the standby has not come: anybody may recover the group"


def test_they_do_not_leave_it_for_ever_to_a_driver_that_beats_on(driver: Driver) -> None:
    """It has said that it failed, and hangs; its standby does, too. The time since the death counts."""
    beat(driver, READY)
    driver.store.declare_dead(driver.ref, "OperatorFailed: it says so itself")
    others = GroupWatcher(driver.store, driver.run, "g", LEASE)
    seen = others.poll()
    assert seen.left_to_standby and seen.status is not None
    status = seen.status
    assert status.beat_at is not None
    much_later = structs.replace(status, beat_at=status.beat_at + 60, beat_age_seconds=0.1)
    assert others.judge(much_later, 0.0).is_dead


def test_a_group_without_standby_is_recovered_at_once(driver: Driver) -> None:
    beat(driver, replace(READY, standby=None))
    driver.store.declare_dead(driver.ref, "gone")
    assert GroupWatcher(driver.store, driver.run, "g", LEASE).poll().is_dead


# --- what a standby does ----------------------------------------------------------------------------------------------


def test_it_waits_for_its_own_driver_only(driver: Driver) -> None:
    def status() -> GroupStatus:
        return driver.store.group(driver.run.run_id, "g")

    own = driver.claim
    assert why_not_needed(status(), own) is None
    assert why_not_needed(status(), replace(driver.claim, code=1)) == "the next driver of group g gets code 0"
    assert why_not_needed(status(), replace(driver.claim, incarnation=7)) == "incarnation 1 of group g is launched"
    driver.store.declare_dead(driver.ref, "gone")
    assert why_not_needed(status(), own) is None
    driver.store.request(driver.run.run_id, "g", GroupState.HALTED)
    assert why_not_needed(status(), own) == "group g is to halt"


def test_it_is_not_needed_when_its_group_has_finished(driver: Driver) -> None:
    driver.session.commit([fx.FinishGroup()])
    assert why_not_needed(driver.store.group(driver.run.run_id, "g"), driver.claim) == "group g is finished"


class Elsewhere(Launcher):
    def __init__(self) -> None:
        self.launched: list[Claim] = []

    def launch(self, claim: Claim, *_: object) -> Launched:
        self.launched.append(claim)
        return Launched(None, None)


def test_it_becomes_the_driver_unless_that_is_to_have_other_code(driver: Driver, tmp_path: Path) -> None:
    own = DriverConfig("sqlite://", driver.claim, "module", "attr", str(tmp_path / "own"), {})
    elsewhere = Elsewhere()
    folder = tmp_path / "2-standby"
    folder.mkdir()
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / KEYTAB_NAME).write_text("secret")
    (folder / KEYTAB_NAME).write_text("secret")
    spark_submit = processes.identity_of(os.getppid())
    assert spark_submit is not None
    launcher = ThisProcess(own, folder, spark_submit, elsewhere)
    launcher.check(SparkSettings(deploy_mode="cluster"))  # whatever it is: it runs already
    for code in (1, 0):
        claim = replace(driver.claim, incarnation=2, code=code)
        config = replace(own, claim=claim, bundle_root="of the log")
        launched = launcher.launch(claim, launch_of(config))
        if code:
            assert elsewhere.launched == [claim] and launcher.taken is None
    assert elsewhere.launched == [replace(driver.claim, incarnation=2, code=1)]
    assert launcher.taken == replace(own, claim=replace(driver.claim, incarnation=2)), (
        "with the code that it has imported"
    )
    assert launched.log_path == str(folder / "driver.log")
    assert launched.identity == spark_submit
    assert not (tmp_path / "1" / KEYTAB_NAME).exists(), "no secret of the dead driver is left"
    assert (folder / KEYTAB_NAME).exists()


def test_one_whose_jvm_has_ended_takes_no_place(driver: Driver, tmp_path: Path) -> None:
    """What started it is its parent; a process that is left gets another one, which is not to be recorded, or ended."""
    own = DriverConfig("sqlite://", driver.claim, "module", "attr", str(tmp_path), {})
    with subprocess.Popen(["sleep", "60"]) as other:
        spark_submit = processes.identity_of(other.pid)
        other.kill()
    assert spark_submit is not None
    launcher = ThisProcess(own, tmp_path / "2-standby", spark_submit, Elsewhere())
    with pytest.raises(ConfigurationError, match="JVM of the standby has ended"):
        launcher.launch(driver.claim, launch_of(own))
    assert launcher.taken is None
    with pytest.raises(ConfigurationError, match="started by spark-submit"):
        own_spark_submit()


def test_one_that_has_no_jvm_stands_for_itself() -> None:
    """With a Spark Connect server, nothing else has to live."""
    assert is_child_of(processes.own_identity())


def test_crash_points_are_armed_for_one_process() -> None:
    variables = {crash.VARIABLE: "before_commit:1", crash.STANDBY_VARIABLE: "before_register:1", "A": "b"}
    assert crash.standby_environment(variables) == {crash.VARIABLE: "before_register:1", "A": "b"}
    assert crash.standby_environment({crash.VARIABLE: "before_commit:1"}) == {}


# --- its folder and its end -------------------------------------------------------------------------------------------


def test_folders_tell_which_incarnation_it_would_be(tmp_path: Path) -> None:
    made = [driver_folders.make_standby_folder(tmp_path, 2) for _ in range(3)]
    assert [one.name for one in made] == ["2-standby", "2-standby-2", "2-standby-3"]
    assert {driver_folders.incarnation_of(one) for one in made} == {2}
    assert all(map(driver_folders.is_of_standby, made))
    assert driver_folders.incarnation_of(tmp_path / "12") == 12 and not driver_folders.is_of_standby(tmp_path / "12")
    assert [driver_folders.incarnation_of(tmp_path / name) for name in ("code", "2-", "x-standby", "2-standby-")] == [
        None
    ] * 4


@pytest.fixture
def program() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_who_ends_the_drivers_of_a_run_ends_their_standbys_first(
    log_store: LogStore, program: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or they would take the places of the drivers. That of a driver which a person has launched since is left alone."""
    run = log_store.start_run(spec("g"))
    running = {}
    for name in ("1", "2-standby", "3-standby"):
        folder = tmp_path / run.uid / "g" / name
        folder.mkdir(parents=True)
        sleep = [sys.executable, "-c", "import time; time.sleep(600)", str(APPLICATION)]
        program.append(subprocess.Popen(sleep, cwd=folder))
        running[name] = program[-1]
    identity = processes.identity_of(running["1"].pid)
    assert identity is not None
    log_store.register(log_store.claim(run.run_id, "g", expected=0, reason="test"), identity)
    ended: list[int | None] = []
    end = processes.end

    def ending(one: DriverIdentity, timeout: float = 10.0) -> bool:
        ended.append(running["2-standby"].poll())
        return end(one, timeout)

    monkeypatch.setattr(processes, "end", ending)
    ender = DriverEnder(log_store, run, ["g"], tmp_path, grace_seconds=60)
    log_store.park(GroupRef(run.run_id, "g", 1), "test")
    ender.remember(log_store.group(run.run_id, "g"))
    ender.end(lambda: False)
    assert not psutil.pid_exists(running["1"].pid) or running["1"].poll() is not None
    assert ended and ended[0] is not None, "the standby had ended before its driver was"
    assert running["3-standby"].poll() is None


def test_a_standby_that_hangs_is_void_when_another_driver_runs(driver: Driver) -> None:
    """Or when the group has ended. What has become the driver is none."""
    hung = psutil.Process()
    found = LocalDriver(hung, driver.run.uid, "g", 2, is_of_standby=True)
    ender = VoidDriverEnder(driver.store, drivers=lambda: [found], grace_seconds=3600)
    assert list(ender._void([found])) == []
    driver.store.declare_dead(driver.ref, "gone")
    claim = driver.store.claim(driver.run.run_id, "g", expected=1, reason="a cold start")
    assert list(ender._void([found])) == [found], "the log knows no process of incarnation 2, or another one"
    own = processes.identity_of(hung.pid)
    assert own is not None
    driver.store.register(claim, own)
    assert list(ender._void([found])) == []
    driver.store.park(GroupRef(driver.run.run_id, "g", 2), "test")
    assert list(ender._void([found])) == [found]


def test_who_halts_a_driver_by_force_ends_its_standby_before(
    driver: Driver, program: list[subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    for name in ("1", "2-standby"):
        (tmp_path / name).mkdir()
    sleep = [sys.executable, "-c", "import time; time.sleep(600)", str(APPLICATION)]
    program += [subprocess.Popen(sleep, cwd=tmp_path / name) for name in ("1", "2-standby")]
    status = structs.replace(driver.store.group(driver.run.run_id, "g"), log_path=str(tmp_path / "1" / "driver.log"))
    assert force(driver.store, driver.run.run_id, status)
    program[1].wait(60)
    assert program[0].poll() is None
