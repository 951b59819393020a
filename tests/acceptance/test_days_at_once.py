"""Days that runs fill at once, on real driver processes that die, stand still, or are replaced by a run of either kind.

Each day is compared with DuckDB's answer, table by table.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_logio.crash import CrashPoint
from airflow_logio.launch.bundle import parse_ref
from airflow_logio.protocol.states import CONCLUDED
from airflow_logio.store.records.driver_records import GroupRef
from tests.support.owned_day import LEASE, NOT_FIRST, OwnedDay, give_up, parked, until_alone, until_stopped, wake
from tests.support.running import PlainLauncher
from tests.support.slow_driver import Slowness, sessions_wait_for_a_lock

pytestmark = pytest.mark.acceptance

BUNDLE = Path(__file__).parents[1] / "support" / "bundle" / "owned_day.py"
FILLED, AT_THE_END = parse_ref(f"{BUNDLE}:filled"), parse_ref(f"{BUNDLE}:days")
DEATHS = (
    f"{CrashPoint.BEFORE_WRITE}:1",
    f"{CrashPoint.IN_DAY_SWITCH}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:1",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:2",
    f"{CrashPoint.AFTER_WRITE}:1",
    f"{CrashPoint.BEFORE_COMMIT}:2",
    f"{CrashPoint.AFTER_COMMIT}:2",
    f"{CrashPoint.IN_WAREHOUSE_TRANSACTION}:3",
    f"{CrashPoint.AFTER_WRITE}:2",
)
"""Where the drivers of the tables die, one incarnation after the other: in the openings, between them, among the rows."""


def test_a_day_is_exact_whatever_dies_while_it_fills(day: OwnedDay) -> None:
    """Readers may see a part of it meanwhile; rows of another day are not touched."""
    wanted = day.reads(0)
    armed = {("replacing", number): point for number, point in enumerate(DEATHS, 1)}
    with day.run("filled", armed, ref=FILLED) as run:
        run.finish()
        assert run.status("replacing").incarnation > len(DEATHS) // 2, "they have died"
        day.assert_is(wanted)
        assert set(day.live().values()) == {(run.run.uid, run.run.uid)}


@pytest.mark.parametrize(("first", "second"), [(FILLED, AT_THE_END), (AT_THE_END, FILLED), (FILLED, FILLED)])
@pytest.mark.parametrize("log_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_younger_run_of_either_kind_has_the_day(day: OwnedDay, first: object, second: object) -> None:
    """The older one has begun, and stands still in its transaction, or lives on: what it writes then is refused."""
    day.reads(0)
    stops = {("replacing", 1): f"{CrashPoint.BEFORE_WRITE}:3:stop"}
    with day.run("old", stops, ref=first, lease=LEASE, end_old_drivers=False) as old:
        zombie = until_stopped(old)
        give_up(old)
        wanted = day.reads(5_000)
        with day.run("young", ref=second) as young:
            young.finish()
            last = young.run.uid
        day.assert_is(wanted)
        wake(zombie)
    day.assert_is(wanted)
    assert set(day.live().values()) == {(last, last)}


@pytest.mark.parametrize("log_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
@pytest.mark.parametrize("is_replaced", [True, False], ids=["of the replaced run", "of the same run"])
def test_a_slow_driver_that_holds_the_day_was_first(day: OwnedDay, tmp_path: Path, is_replaced: bool) -> None:
    """It has inserted rows and is about to commit them, and keeps its locks: what follows waits, and then has the day."""
    slow = Slowness(tmp_path / "slow", 'INSERT INTO "public"."clicks"')
    wanted = day.reads(0)
    launcher = PlainLauncher(tmp_path / "drivers" / "old", variables={("replacing", 1): slow.variables})

    def is_waited_for() -> bool:
        return sessions_wait_for_a_lock(day.warehouse_url)

    with day.run("old", ref=FILLED, launcher=launcher, lease=LEASE, end_old_drivers=False) as old:
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
            with day.run("young", ref=FILLED) as young:
                young.until(is_waited_for, "the younger run waits")
                slow.end()
                young.finish()
        assert launcher.drivers["replacing", 1].wait(timeout=120) in NOT_FIRST, old.last_words()
    day.assert_is(wanted)


def test_a_fault_leaves_a_part_of_the_day_until_it_is_mended(day: OwnedDay) -> None:
    """What was set aside is put back, and the day is whole."""
    wanted = day.reads(0)
    day.fault.touch()
    with day.run("old", ref=FILLED) as old:
        ended = [*old.groups]
        old.until(lambda: all(old.status(one).state in CONCLUDED for one in ended), "all has ended", *ended)
        part = day.there()["clicks"]
        assert part and set(part) < set(wanted["clicks"]), "a part of the day is there"
        day.fault.unlink()
        old.store.retry_quarantined(old.run.run_id)
        for group in ("reading", "replacing"):
            old.relaunch(group)
        old.finish()
    day.assert_is(wanted)


@pytest.mark.parametrize("log_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_an_older_run_that_lives_on_parks(day: OwnedDay) -> None:
    day.reads(1_000)
    with day.run("red", {("replacing", 1): f"{CrashPoint.BEFORE_WRITE}:3:stop"}, ref=FILLED, lease=LEASE) as red:
        process = until_stopped(red)
        wanted = day.reads(2_000)
        with day.run("young", ref=AT_THE_END) as young:
            young.finish()
        process.resume()
        error = parked(red)
        assert f"run {young.run.uid}" in error and "claimed" in error, error
    day.assert_is(wanted)
