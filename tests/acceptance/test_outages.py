"""Databases that go away and come back: drivers wait and continue; no group is recovered, nothing is lost (hole H10)."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from airflow_logio.cli.display import waiting
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import Launched
from airflow_logio.protocol.liveness import Lease
from airflow_logio.run_report.report import Reporter
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.store.records.status_records import GroupStatus
from tests.support.grocery import assert_exact
from tests.support.postgres import PostgresServer
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.postgres]

SHORT = Lease(seconds=6, launch_seconds=60)
AWAY_SECONDS = 9.0
"""Longer than the lease."""


def test_the_log_and_the_warehouse_are_away_for_a_while(
    postgres_server: PostgresServer,
    postgres_url: str,
    postgres_warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
) -> None:
    """Polls fail as well, so no observer takes the silence for the death of every driver."""
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(
        postgres_url, postgres_warehouse_url, small_transactions, launcher, lease=SHORT, backlog=BacklogBound(events=8)
    ) as run:
        run.until(lambda: run.count("ingest.out", "out") > 5, "ingest has begun")
        postgres_server.stop()
        back_at = time.monotonic() + AWAY_SECONDS
        try:
            seen: set[GroupStatus | None] = set()
            while time.monotonic() < back_at:
                seen.update(run.tend().values())
            assert seen == {None}, "what cannot be asked is unknown, not dead"
        finally:
            postgres_server.start()
        run.finish()
        assert [run.status(group).incarnation for group in run.groups] == [1, 1, 1, 1]
    assert_exact(postgres_warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


@dataclass
class LateLauncher(PlainLauncher):
    """Drivers that take their time: submitted, and started when the test says so."""

    submitted: list[tuple[Claim, Launch]] = field(default_factory=list)

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        self.submitted.append((claim, launch))
        return Launched(None, None)

    def start_all(self) -> None:
        for submitted in self.submitted:
            PlainLauncher.launch(self, *submitted)


def test_a_driver_that_starts_during_an_outage_waits(
    postgres_server: PostgresServer,
    postgres_url: str,
    warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
) -> None:
    launcher = LateLauncher(tmp_path / "drivers")
    with running(postgres_url, warehouse_url, small_transactions, launcher) as run:
        run.tend()
        postgres_server.stop()
        try:
            launcher.start_all()
            log = tmp_path / "drivers" / "ingest" / "1" / "driver.log"
            eventually(lambda: "waiting for the log database" in log.read_text(), what="ingest waits", timeout=60)
        finally:
            postgres_server.start()
        run.finish()
        assert [run.status(group).incarnation for group in run.groups] == [1, 1, 1, 1]
    assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_a_warehouse_that_is_away_is_written_when_it_is_back(
    sqlite_url: str,
    postgres_server: PostgresServer,
    postgres_warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(sqlite_url, postgres_warehouse_url, small_transactions, launcher) as run:
        postgres_server.stop()
        try:
            run.until(lambda: "replaying" in run.log_of("publish"), "publish replays its first write action")
            run.until(lambda: "replaying" in run.log_of("hourly"), "hourly replays its first read action")
            reporter = Reporter(run.store, run.run.uid)
            run.until(
                lambda: {"publish", "hourly"} <= dict(reporter.look().long_calls).keys(), "the log knows, at once"
            )
            waits = dict(waiting(reporter.look().snapshot))
            assert waits["publish"].startswith("`wait` for write action"), "and logio run shows it"
            assert all("UTC: connection 'warehouse': " in waits[group] for group in ("publish", "hourly")), waits
        finally:
            postgres_server.start()
        run.finish()
        assert [run.status(group).incarnation for group in run.groups] == [1, 1, 1, 1]
    assert_exact(postgres_warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)


def test_the_server_is_restarted_while_a_driver_is_dead(
    postgres_server: PostgresServer,
    postgres_url: str,
    postgres_warehouse_url: str,
    small_transactions: Path,
    tmp_path: Path,
) -> None:
    launcher = PlainLauncher(tmp_path / "drivers")
    with running(postgres_url, postgres_warehouse_url, small_transactions, launcher) as run:
        run.until(lambda: run.is_running("hourly") and run.count("hourly.out", "out") > 2, "hourly has begun")
        run.signal("hourly", signal.SIGKILL)
        postgres_server.restart()
        run.finish()
        assert run.status("hourly").incarnation == 2
    assert_exact(postgres_warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)
