"""Drivers that are stopped, replaced, and continued (design D8): a zombie exits and has changed nothing.

On PostgreSQL the ending of old processes is switched off: fencing alone must hold. On SQLite a stopped writer shuts
everyone out, so the stopped driver is ended before it is replaced.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.driver_config import REPLACED
from airflow_logio.protocol.liveness import Lease
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.sql.engines import log_engine
from tests.support.forked import ForkedProcess
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, has_ended, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.acceptance

SHORT = Lease(seconds=6, launch_seconds=60)
"""Longer than the database lets a session idle in a transaction, as a lease must be."""

FEW = BacklogBound(events=8)
"""No group can finish while one of the groups has not begun."""

STOPS = [
    ("totals", CrashPoint.BEFORE_COMMIT, 2),
    ("totals", CrashPoint.IN_LOG_TRANSACTION, 2),
    ("totals", CrashPoint.AFTER_COMMIT, 2),
    ("ingest", CrashPoint.IN_LOG_TRANSACTION, 2),
    ("publish", CrashPoint.BEFORE_WRITE, 2),
    ("publish", CrashPoint.IN_WAREHOUSE_TRANSACTION, 2),
    ("publish", CrashPoint.AFTER_WRITE, 2),
    ("hourly", CrashPoint.IN_LOG_TRANSACTION, 2),
]


def contents(url: str) -> dict[str, Any]:
    """Every row of every table of the log, except heartbeats."""
    engine = log_engine(url)
    with engine.connect() as connection:
        names = [
            n
            for n in sa.inspect(connection).get_table_names()
            if n not in ("logio_heartbeat", "logio_load", "logio_waiting")
        ]
        found = {name: sorted(map(_text, connection.execute(sa.text(f"SELECT * FROM {name}")))) for name in names}
    engine.dispose()
    return found


def _text(row: sa.Row[Any]) -> str:
    return repr([bytes(value) if isinstance(value, memoryview) else value for value in row])


@pytest.mark.postgres
@pytest.mark.parametrize(("group", "point", "count"), STOPS, ids=str)
def test_a_continued_zombie_exits_and_has_changed_nothing(
    group: str,
    point: CrashPoint,
    count: int,
    postgres_url: str,
    postgres_warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {(group, 1): f"{point}:{count}:stop"})
    arguments = (postgres_url, postgres_warehouse_url, small_transactions, launcher)
    with running(*arguments, end_old_drivers=False, lease=SHORT) as run:
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
    assert_exact(postgres_warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


@pytest.mark.parametrize(("group", "point", "count"), STOPS[1:2] + STOPS[5:6], ids=str)
def test_on_sqlite_a_stopped_driver_is_ended_and_the_others_go_on(
    group: str,
    point: CrashPoint,
    count: int,
    sqlite_url: str,
    warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers", {(group, 1): f"{point}:{count}:stop"})
    with running(sqlite_url, warehouse_url, small_transactions, launcher, lease=SHORT, backlog=FEW) as run:
        others = [other for other in run.groups if other != group]
        run.until(lambda: all(map(run.is_running, others)), "the others run", *others)
        run.until(lambda: run.is_running(group), f"{group} runs")
        stopped = run.process(group)
        run.finish()
        assert run.status(group).incarnation == 2
        assert has_ended(stopped)
        incarnations = [run.status(other).incarnation for other in others]
        assert incarnations == [1, 1, 1], "the others were waiting for the lock, not dead"
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


class CopyingLauncher(PlainLauncher):
    """Keeps what the first driver is told: a driver removes the file as soon as it has read it."""

    @property
    def copy(self) -> Path:
        return self.work_dir.parent / "copy.json"

    def start(
        self, config: Path, log: Path, point: str | None, variables: Mapping[str, str] | None = None, *, seed: int = 0
    ) -> ForkedProcess:
        if not self.copy.exists():
            shutil.copy(config, self.copy)
        return super().start(config, log, point, variables, seed=seed)


@pytest.mark.postgres
def test_two_processes_cannot_hold_one_incarnation(
    postgres_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    launcher = CopyingLauncher(tmp_path / "drivers")
    with running(postgres_url, warehouse_url, small_transactions, launcher) as run:
        run.until(lambda: run.is_running("ingest"), "ingest runs", "ingest")
        second = PlainLauncher.start(launcher, launcher.copy, tmp_path / "second.log", None)
        eventually(lambda: second.poll() is not None, what="the second copy exits", timeout=60)
        assert second.returncode not in (0, None)
        assert "exits before its first read" in (tmp_path / "second.log").read_text()
        run.finish()
        assert run.status("ingest").incarnation == 1
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)
