"""A log that is older than what its drivers have written elsewhere: it was restored, or a standby took over that lacked the
last commits (line by line in docs/how-to/operate.md)."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.protocol.states import GroupState
from tests.support.running import PlainLauncher, running
from tests.support.warehouse import change

pytestmark = pytest.mark.acceptance

AHEAD = "UPDATE logio_marker SET last_write = last_write + 100"
HOURLY_STANDS_STILL = {("hourly", 1): f"{CrashPoint.AFTER_COMMIT}:2:stop"}
"""Until its lease is over, so that something is left to be written."""
"""The table has seen write actions that this log has never given out."""


def test_a_log_that_has_lost_incarnations_parks_the_group_at_once(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """The table has seen drivers that this log has never heard of. That is no reason to be recovered again and again."""
    launcher = PlainLauncher(tmp_path / "drivers", HOURLY_STANDS_STILL)
    with running(sqlite_url, warehouse_url, small_transactions, launcher) as run:
        run.until(lambda: run.count("publish.warehouse", "write") >= 1, "some hours are written")
        run.signal("publish", signal.SIGKILL)
        change(warehouse_url, f"{AHEAD}, token = token + 9 WHERE operator = 'publish'")
        run.until(lambda: run.status("publish").state is GroupState.PARKED, "the group is parked")
        status = run.status("publish")
        assert status.incarnation == 2, "one recovery is enough to know"
        assert "token 10 has written, but this driver holds 2" in (status.error or "")
        assert "it has lost commits" in (status.error or "") and "was replaced, yet the log" in (status.error or "")


def test_a_marker_ahead_of_the_log_parks_the_group_with_both_numbers(
    sqlite_url: str, warehouse_url: str, small_transactions: Path, tmp_path: Path
) -> None:
    """No driver was lost with the commits, so no token says so: the numbers do, also to the one that resumes."""
    launcher = PlainLauncher(tmp_path / "drivers", HOURLY_STANDS_STILL)
    with running(sqlite_url, warehouse_url, small_transactions, launcher) as run:
        run.until(lambda: run.count("publish.warehouse", "write") >= 1, "some hours are written")
        run.signal("publish", signal.SIGKILL)
        change(warehouse_url, f"{AHEAD} WHERE operator = 'publish'")
        run.until(lambda: run.status("publish").state is GroupState.PARKED, "the group is parked")
        status = run.status("publish")
        assert status.incarnation == 2
        said = re.search(r"up to (\d+), but the log has given out numbers up to (\d+) only", status.error or "")
        assert said is not None and "it has lost commits" in (status.error or ""), status.error
        applied, logged = map(int, said.groups())
        assert applied >= 100 > logged >= 1
