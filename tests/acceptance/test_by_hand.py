"""Operators written by hand with `airflow_logio.contrib.paper_api`, on real drivers: killed everywhere, stopped, halted."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.driver_config import REPLACED
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.run_records import BacklogBound
from tests.acceptance.test_zombies import contents
from tests.support.by_hand import BY_HAND, assert_exact, changing
from tests.support.crash_sites import ELSEWHERE, IN_STORES, named
from tests.support.running import Armed, PlainLauncher, Running, assert_died, running

pytestmark = pytest.mark.acceptance

SHORT = Lease(seconds=6, launch_seconds=60)

NOT_BY_HAND = ELSEWHERE.difference(IN_STORES).union(named("_next_action", "_warehouse_transaction"))
"""Those of the other suites (test_draining.py drains an operator by hand as well), and those inside our own sources and
writers."""
IN_READS = {CrashPoint.BEFORE_READ, CrashPoint.AFTER_READ, *IN_STORES}
IN_WRITES = {CrashPoint.BEFORE_WRITE, CrashPoint.AFTER_WRITE}
MANY_TIMES = {CrashPoint.BEFORE_COMMIT, CrashPoint.AFTER_COMMIT, CrashPoint.IN_LOG_TRANSACTION} | IN_WRITES


@contextlib.contextmanager
def by_hand(
    log_url: str, folder: Path, armed: Armed | None = None, launcher: PlainLauncher | None = None, **settings: Any
) -> Iterator[Running]:
    """A run of `by_hand` over a file that changes all the time; at the end the run is exact."""
    params = {"readings": str(folder / "readings.parquet"), "store": str(folder / "store")}
    warehouse = f"sqlite:///{folder}/by_hand.db"
    launcher = launcher or PlainLauncher(folder / "drivers", armed or {})
    with (
        changing(folder / "readings.parquet"),
        running(log_url, warehouse, folder, launcher, ref=BY_HAND, params=params, **settings) as run,
    ):
        yield run
        zombies = {incarnation for (_, incarnation), point in launcher.armed.items() if point.endswith(":stop")}
        assert_exact(log_url, warehouse, folder / "store", run.run.uid, zombies)


def passing(point: CrashPoint) -> tuple[str, ...]:
    return ("readings",) if point in IN_READS else ("days",) if point in IN_WRITES else ("readings", "days")


@pytest.mark.parametrize("point", [point for point in CrashPoint if point not in NOT_BY_HAND])
def test_dying_there_twice_changes_nothing(point: CrashPoint, log_url: str, tmp_path: Path) -> None:
    count = 2 if point in MANY_TIMES else 1
    armed = {(group, incarnation): f"{point}:{count}" for group in passing(point) for incarnation in (1, 2)}
    launcher = PlainLauncher(tmp_path / "drivers", armed)
    with by_hand(log_url, tmp_path, launcher=launcher) as run:
        run.finish()
        assert_died(run, launcher, point, passing(point))


@pytest.mark.parametrize("point", [CrashPoint.AFTER_COMMIT, CrashPoint.AFTER_WRITE])
def test_a_dozen_drivers_that_do_one_thing_each_and_die_change_nothing(
    point: CrashPoint, sqlite_url: str, tmp_path: Path
) -> None:
    """Whatever two steps belong together are separated somewhere (test_every_commit.py does it to the end)."""
    armed = {(group, n): f"{point}:1" for group in passing(point) for n in range(1, 13)}
    with by_hand(sqlite_url, tmp_path, armed) as run:
        run.finish()
        assert [run.status(group).incarnation for group in passing(point)] == [13] * len(passing(point))


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("group", "point", "count"),
    [
        ("readings", CrashPoint.BEFORE_COMMIT, 4),
        ("readings", CrashPoint.IN_LOG_TRANSACTION, 4),
        ("readings", CrashPoint.AFTER_READ, 1),
        ("readings", CrashPoint.BEFORE_DROP, 1),
        ("days", CrashPoint.IN_LOG_TRANSACTION, 4),
        ("days", CrashPoint.BEFORE_WRITE, 2),
        ("days", CrashPoint.AFTER_WRITE, 2),
    ],
    ids=str,
)
def test_a_continued_zombie_exits_and_has_changed_nothing(
    group: str, point: CrashPoint, count: int, postgres_url: str, tmp_path: Path
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {(group, 1): f"{point}:{count}:stop"})
    with by_hand(postgres_url, tmp_path, launcher=launcher, end_old_drivers=False, lease=SHORT) as run:
        run.until(lambda: run.is_running(group), f"{group} runs")
        zombie = run.process(group)
        run.until(lambda: zombie.status() == psutil.STATUS_STOPPED, f"{group} has stopped at {point}")
        run.finish()
        assert run.status(group).incarnation == 2
        before = contents(postgres_url)
        zombie.send_signal(signal.SIGCONT)
        child = next(child for child in launcher.children if child.pid == zombie.pid)
        assert child.wait(timeout=60) == REPLACED, run.log_of(group)
        assert contents(postgres_url) == before


def test_halted_on_request_and_taken_up_again(sqlite_url: str, tmp_path: Path) -> None:
    with by_hand(sqlite_url, tmp_path, backlog=BacklogBound(events=2)) as run:
        run.until(lambda: run.count("readings.out", "out") >= 2, "the source has sent", "readings")
        run.store.request(run.run.run_id, "readings", GroupState.HALTED)
        run.until(lambda: run.status("readings").state is GroupState.HALTED, "the source has halted", "readings")
        assert run.count("readings.out", "out") <= 3, "the source waited for its receiver"
        run.relaunch("readings")
        run.finish()
