"""A run that a person resumes, whose day a younger run has claimed meanwhile: asked before anything is launched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio import databases
from airflow_logio.errors import WriteRefused
from airflow_logio.supervision.local_run import LocalRun
from airflow_logio.supervision.retry import check_days
from airflow_logio.supervision.stop_run import StopMode, StopRun
from airflow_logio.systems.warehouse import Warehouse
from tests.support.logs import SOMEBODY, finish
from tests.support.owned_day import OwnedDay, parked_before_it_wrote
from tests.support.running import Running
from tests.support.warehouse import change


@pytest.fixture
def day(sqlite_url: str, tmp_path: Path) -> OwnedDay:
    return OwnedDay(sqlite_url, f"sqlite:///{tmp_path}/tables.db", tmp_path)


@pytest.fixture
def run(day: OwnedDay) -> Iterator[Running]:
    with parked_before_it_wrote(day) as begun:
        yield begun


@pytest.mark.parametrize("group", ["replacing", "reading", "beside"])
def test_only_what_leads_to_the_day_is_asked(day: OwnedDay, run: Running, group: str) -> None:
    day.claim("f" * 32, 2)
    if group == "beside":
        check_days(run.context, [group])
        return
    with pytest.raises(WriteRefused, match="its writer 'save' would be refused"):
        check_days(run.context, [group])


def test_an_older_claim_its_own_closing_and_a_group_that_has_finished_are_no_hindrance(
    day: OwnedDay, run: Running
) -> None:
    day.claim("f" * 32, 0)
    check_days(run.context, run.groups)
    change(day.warehouse_url, f"UPDATE logio_scope SET claimed_ordinal = 2, live_run = '{run.run.uid}'")
    check_days(run.context, run.groups)
    change(day.warehouse_url, "UPDATE logio_scope SET live_run = NULL")
    claim = run.store.claim(run.run.run_id, "replacing", expected=1, reason="test", by_user=True)
    finish(run.store, run.store.register(claim, SOMEBODY))
    check_days(run.context, run.groups)


def test_a_file_in_which_another_run_writes_is_left_to_the_driver(
    day: OwnedDay, run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for that, and asks again."""
    monkeypatch.setattr(databases, "BUSY_TIMEOUT_SECONDS", 0.05)
    other = Warehouse("other", day.warehouse_url)
    with other.for_writes() as connection, connection.begin():
        check_days(run.context, run.groups)
    other.close()


def test_a_halted_run_is_not_resumed_by_its_command_either(day: OwnedDay, run: Running) -> None:
    day.claim("f" * 32, 2)
    halt = StopRun(run.store, run.run, StopMode.HALT)
    halt.request()
    halt.look()
    with pytest.raises(WriteRefused, match="is not resumed: its writer 'save' would be refused"):
        LocalRun(run.context).run()
    assert {status.incarnation for status in run.store.groups(run.run.run_id)} == {0, 1}, "nothing was launched"
