"""Several runs of one day, on real driver processes: the youngest has it, whatever the others do, and whenever they wake up.

Each day is compared with DuckDB's answer, table by table.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.commands import Terminal
from tests.support.owned_day import LEASE, NOT_FIRST, OwnedDay, give_up, parked, until_alone, until_stopped, wake
from tests.support.running import PlainLauncher
from tests.support.slow_driver import Slowness, sessions_wait_for_a_lock

pytestmark = pytest.mark.acceptance

BETWEEN_CLOSINGS = f"{CrashPoint.BEFORE_WRITE}:4"
"""Behind the openings of both writers and the closing of one, before the closing of the other."""


IN_CLOSING = f"{CrashPoint.IN_DAY_SWITCH}:1"


@pytest.mark.parametrize(
    ("log_url", "where", "is_replaced"),
    [
        ("sqlite", BETWEEN_CLOSINGS, True),
        pytest.param("postgres", BETWEEN_CLOSINGS, True, marks=pytest.mark.postgres),
        pytest.param("postgres", IN_CLOSING, True, marks=pytest.mark.postgres),
        pytest.param("postgres", IN_CLOSING, False, marks=pytest.mark.postgres),
    ],
    indirect=["log_url"],
)
def test_a_stopped_driver_that_was_replaced_changes_nothing(day: OwnedDay, where: str, is_replaced: bool) -> None:
    """By another run of the day, in whose favour its own was given up, or by its successor. Where it holds locks, the server
    ends its session."""
    wanted = day.reads(0)
    stops = {("replacing", 1): f"{where}:stop"}
    with day.run("old", stops, lease=LEASE, end_old_drivers=False) as old:
        zombie, last = until_stopped(old), old.run.uid
        if is_replaced:
            give_up(old)
            wanted = day.reads(5_000)
            with day.run("young") as young:
                last = young.run.uid
                young.finish()
        else:
            assert old.store.declare_dead(GroupRef(old.run.run_id, "replacing", 1), "test")
            old.finish()
        day.assert_is(wanted)
        wake(zombie)
    day.assert_is(wanted)
    assert set(day.live().values()) == {(last, last)}


@pytest.mark.postgres
@pytest.mark.parametrize("is_replaced", [True, False], ids=["of the replaced run", "of the same run"])
@pytest.mark.parametrize("log_url", ["postgres"], indirect=True)
def test_a_slow_driver_that_holds_its_rows_was_first(day: OwnedDay, tmp_path: Path, is_replaced: bool) -> None:
    """It is about to commit, and keeps its locks: what follows waits, and then has the day."""
    slow = Slowness(tmp_path / "slow", 'UPDATE "public".logio_scope SET live_ordinal')
    wanted = day.reads(0)
    launcher = PlainLauncher(tmp_path / "drivers" / "old", variables={("replacing", 1): slow.variables})

    def is_waited_for() -> bool:
        return sessions_wait_for_a_lock(day.warehouse_url)

    with day.run("old", launcher=launcher, lease=LEASE, end_old_drivers=False) as old:
        old.until(slow.is_reached, "it is about to commit")
        if not is_replaced:
            assert old.store.declare_dead(GroupRef(old.run.run_id, "replacing", 1), "it is slow")
            old.until(is_waited_for, "its successor waits")
            slow.end()
            old.finish()
        else:
            until_alone(old)
            give_up(old)
            wanted = day.reads(5_000)
            with day.run("young") as young:
                young.until(is_waited_for, "the younger run waits")
                slow.end()
                young.finish()
        assert launcher.drivers["replacing", 1].wait(timeout=120) in NOT_FIRST, old.last_words()
    day.assert_is(wanted)


def test_an_older_run_is_shut_out_and_is_not_retried(
    day: OwnedDay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both live. The older one names the younger in its way, and says so again before anything is launched."""
    day.reads(0)
    with day.run("old", {("replacing", 1): f"{BETWEEN_CLOSINGS}:stop"}, lease=LEASE) as old:
        logio = Terminal(old, monkeypatch, capsys).logio
        code, _, said = logio("stop", "--drain", old.run.uid[:8])
        assert code == 1 and "is not drained: its sources would end early" in said
        process = until_stopped(old)
        wanted = day.reads(5_000)
        with day.run("young") as young:
            young.finish()
        process.send_signal(signal.SIGCONT)
        assert f"was claimed by run {young.run.uid} of pipeline 'owned_day' since run {old.run.uid} began" in parked(
            old
        )
        day.assert_is(wanted)
        for group in ([], ["replacing"]):
            code, _, said = logio("retry", old.run.uid[:8], *group)
            assert code == 1, said
            assert "run old of owned_day is not resumed: its writer 'keep' would be refused" in said
            assert f"run {young.run.uid}, number 2 of its pipeline, has claimed it, and is younger than" in said
            assert f"`logio again {old.run.uid[:8]}` gives it up" in said
        assert old.status("replacing").incarnation == 1, "nothing was launched"
        again = day.reads(9_000)
        assert logio("again", old.run.uid[:8])[0] == 0
        with day.run("old") as run:
            run.finish()
    day.assert_is(again)
