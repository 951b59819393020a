"""A group that is halted for good leaves nothing running and commits nothing: drivers that obey, that are stopped outside
and inside a transaction of the log, on another machine, and such as belong to another driver by then."""

from __future__ import annotations

import signal
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs

from airflow_logio.crash import CrashPoint
from airflow_logio.launch import processes
from airflow_logio.launch.driver_config import REPLACED
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import DriverIdentity
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.supervision import halt as halting
from airflow_logio.supervision.halt import Halt, halt_for_good
from tests.acceptance.test_zombies import contents
from tests.support.crash_sites import IN_HALTS
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, Running, has_ended, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

GRACE = 20.0
"""Longer than any driver of these tests needs: who obeys must never be forced."""
STOPS = (CrashPoint.BEFORE_COMMIT, CrashPoint.IN_LOG_TRANSACTION)


def halt(run: Running, group: str, incarnation: int = 1, grace: float = GRACE) -> Halt:
    return halt_for_good(run.store, run.run.run_id, group, incarnation, grace_seconds=grace)


def go_on(run: Running, group: str, warehouse_url: str, transactions: Path) -> None:
    """What a person does who clears the task: nothing was lost."""
    run.relaunch(group)
    run.finish()
    assert_exact(warehouse_url, transactions, PLAIN_RECORDS_PER_BATCH)


def test_a_driver_that_obeys(log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path) -> None:
    with running(log_url, warehouse_url, small_transactions, PlainLauncher(tmp_path / "drivers")) as run:
        run.until(lambda: run.is_running("totals"), "totals runs", "totals")
        driver = run.process("totals")
        assert halt(run, "totals") is Halt.OBEYED
        assert run.status("totals").state is GroupState.HALTED and has_ended(driver)
        assert halt(run, "totals") is Halt.LEFT, "it has ended"
        go_on(run, "totals", warehouse_url, small_transactions)


@pytest.mark.parametrize("point", STOPS)
def test_a_driver_that_is_stopped(
    point: CrashPoint, log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", 1): f"{point}:3:stop"})
    with running(log_url, warehouse_url, small_transactions, launcher) as run:
        driver = until_stopped(run)
        assert halt(run, "totals") is Halt.FORCED
        assert run.status("totals").state is GroupState.HALTED and has_ended(driver)
        go_on(run, "totals", warehouse_url, small_transactions)


@pytest.mark.parametrize("point", IN_HALTS)
def test_dying_around_the_halt_twice(
    point: CrashPoint, log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """The log says what was asked for: the process that finds the driver dead halts the group, and does not recover it."""
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", n): f"{point}:1" for n in (1, 2)})
    bound = BacklogBound(events=8)  # while hourly is not launched, totals holds these and waits for more
    with running(log_url, warehouse_url, small_transactions, launcher, backlog=bound) as run:
        run.until(lambda: run.count("totals.in", "in") > 0, "totals holds events", "ingest", "totals")
        for incarnation in (1, 2):
            run.until(partial(run.is_running, "totals", incarnation), "totals runs", "totals")
            run.store.request(run.run.run_id, "totals", GroupState.HALTED)
            assert launcher.drivers["totals", incarnation].wait(timeout=60) == -signal.SIGKILL, run.log_of("totals")
            run.until(lambda: run.status("totals").state is GroupState.HALTED, "totals has halted", "totals")
            run.relaunch("totals")
        run.finish()
        assert run.status("totals").incarnation == 3
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def until_stopped(run: Running) -> psutil.Process:
    run.until(lambda: run.is_running("totals"), "totals runs", "ingest", "totals")
    driver = run.process("totals")
    eventually(lambda: driver.status() == psutil.STATUS_STOPPED, what="totals has stopped", timeout=60)
    return driver


@pytest.mark.postgres
@pytest.mark.parametrize("point", STOPS)
def test_a_stopped_driver_on_another_machine_commits_nothing_when_it_goes_on(
    point: CrashPoint,
    postgres_url: str,
    warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", 1): f"{point}:3:stop"})
    with running(postgres_url, warehouse_url, small_transactions, launcher) as run:
        driver = until_stopped(run)
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(processes, "this_host", lambda: "another machine")
            assert halt(run, "totals", grace=0.5) is Halt.FORCED
        assert driver.status() == psutil.STATUS_STOPPED, "it was not reached"
        run.until(lambda: run.status("ingest").state is GroupState.FINISHED, "nothing else commits", "ingest")
        before = contents(postgres_url)
        driver.send_signal(signal.SIGCONT)
        child = next(child for child in launcher.children if child.pid == driver.pid)
        code = child.wait(timeout=60)
        assert code in (0, REPLACED), run.log_of("totals")  # refused, or its heartbeat was quicker and it halts
        assert contents(postgres_url) == before
        go_on(run, "totals", warehouse_url, small_transactions)


def test_a_driver_that_neither_obeys_nor_stands_still(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hung one, as observers see it: what it is asked never reaches it."""
    with running(sqlite_url, warehouse_url, small_transactions, PlainLauncher(tmp_path / "drivers")) as run:
        run.until(lambda: run.is_running("totals"), "totals runs", "totals")
        driver = run.process("totals")
        monkeypatch.setattr(run.store, "request", lambda *_, **__: True)
        assert halt(run, "totals", grace=0.5) is Halt.FORCED
        assert run.status("totals").state is GroupState.HALTED and has_ended(driver)


def test_what_was_replaced_or_has_finished_is_left_alone(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", 1): "after_commit:2"})
    with running(log_url, warehouse_url, small_transactions, launcher) as run:
        run.until(lambda: run.is_running("totals", 2), "totals is recovered")
        before = run.status("totals")
        assert halt(run, "totals") is Halt.LEFT
        after = run.status("totals")
        assert (after.desired, after.incarnation) == (before.desired, 2)
        run.finish()
        assert halt(run, "totals", 2) is Halt.LEFT
        assert run.status("totals").state is GroupState.FINISHED
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_a_claim_between_the_look_and_the_wish_is_not_hit(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor recovers the group just now: neither the wish nor the fence is for the new incarnation."""
    with running(log_url, warehouse_url, small_transactions, PlainLauncher(tmp_path / "drivers")) as run:
        run.until(lambda: run.is_running("totals"), "totals runs", "totals")
        old = run.status("totals")
        run.process("totals").kill()
        run.until(lambda: run.is_running("totals", 2), "totals is recovered", "totals")
        looks: list[Any] = [old]
        real = run.store.group
        monkeypatch.setattr(run.store, "group", lambda *where: looks.pop() if looks else real(*where))
        monkeypatch.setattr(halting, "_cannot_obey", lambda _: False)
        assert halt(run, "totals") is Halt.LEFT
        assert run.is_running("totals", 2) and run.status("totals").desired is GroupState.RUNNING
        assert not run.store.request(run.run.run_id, "totals", GroupState.HALTED, incarnation=1)


def test_a_group_whose_driver_has_not_registered(
    log_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", 1): "before_register:1:stop"})
    with running(log_url, warehouse_url, small_transactions, launcher) as run:
        run.tend("totals")
        identity = run.status("totals").identity
        assert identity is not None
        driver = psutil.Process(identity.parent_pid)
        eventually(lambda: driver.status() == psutil.STATUS_STOPPED, what="it is about to register", timeout=60)
        assert halt(run, "totals") is Halt.FORCED
        assert has_ended(driver) and run.status("totals").state is GroupState.HALTED


def test_whether_a_process_is_stopped() -> None:
    own = processes.own_identity()
    assert not processes.is_stopped(own)
    assert not processes.is_stopped(structs.replace(own, host="elsewhere"))
    assert not processes.is_stopped(DriverIdentity(own.host, own.boot_id, 2**22 + 1, 1.0))
