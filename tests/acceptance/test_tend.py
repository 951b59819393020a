"""`logio tend`: what dies under it continues, without Airflow and without a supervisor of the run's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.driver_folders import processes_under
from airflow_logio.protocol.states import CONCLUDED, GroupState
from airflow_logio.store.records.driver_records import LaunchRecipe
from airflow_logio.store.records.run_records import Supervision
from airflow_logio.supervision.presence import last_look
from tests.support.grocery import assert_exact
from tests.support.running import PLAIN_RECORDS_PER_BATCH, PlainLauncher, running
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]


@contextmanager
def tending(folder: Path, log_url: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon, whose output is in `tend.log`; ended with SIGTERM."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")}
    environment |= {"LOGIO_URL": log_url, "PYTHONPATH": str(Path(__file__).parents[2]), **variables}
    with (folder / "tend.log").open("ab") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "airflow_logio.cli", "tend", "--poll", "0.2"],
            cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield daemon
    finally:
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(30) == 0, (folder / "tend.log").read_text()


def test_a_group_that_dies_is_recovered_by_the_daemon_alone(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """At first it does not know the warehouse: it leaves the group as it is, and does not say that it looks after the run."""
    launcher = PlainLauncher(tmp_path / "drivers", {("totals", 1): f"{CrashPoint.AFTER_COMMIT}:2"})
    with running(sqlite_url, warehouse_url, small_transactions, launcher, supervision=Supervision.TASK) as run:
        for group in run.groups:
            run.store.note_launch(run.run.run_id, group, LaunchRecipe(None))
        run.tend()
        launched = {group: run.status(group).incarnation for group in run.groups}
        assert set(launched.values()) == {1}, "and from here on the test launches nothing"
        said = (tmp_path / "tend.log").read_text
        with tending(tmp_path, sqlite_url):
            eventually(
                lambda: "connection 'warehouse' is not known" in said(), what="it says what it needs", timeout=90
            )
            eventually(lambda: "nothing could be done for it from here" in said(), what="it gives up for now")
            assert run.status("totals").state is GroupState.DEAD
        with tending(tmp_path, sqlite_url, LOGIO_CONN_WAREHOUSE=warehouse_url):
            eventually(lambda: run.status("totals").incarnation == 2, what="totals is recovered", timeout=90)
            concluded = lambda: all(run.status(group).state in CONCLUDED for group in run.groups)  # noqa: E731
            eventually(concluded, what="all groups finish", timeout=120)
            seen = last_look(run.store.supervisors(), run.run)
            assert seen is not None and seen.name.startswith("logio tend on ")
        recoveries = {group: run.status(group).recoveries for group in run.groups}
        assert recoveries == {**dict.fromkeys(run.groups, 0), "totals": 1}
        assert_exact(warehouse_url, small_transactions, PLAIN_RECORDS_PER_BATCH)
        eventually(lambda: not processes_under(tmp_path / ".logio"), what="no driver of its own is left")
