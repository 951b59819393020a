"""A task that a person has cleared, of a run whose day a younger run has claimed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio import databases
from airflow_logio.errors import WriteRefused
from airflow_logio.operators._task.group_task import GroupTask
from airflow_logio.protocol.states import GroupState
from airflow_logio.supervision.look import Watcher
from airflow_logio.supervision.retry import check_days
from airflow_logio.systems.warehouse import Warehouse
from tests.support.logs import SOMEBODY, finish
from tests.support.owned_day import DAY, OwnedDay
from tests.support.running import Running
from tests.support.warehouse import change, rows_of


@pytest.fixture
def day(sqlite_url: str, tmp_path: Path) -> OwnedDay:
    made = OwnedDay(sqlite_url, f"sqlite:///{tmp_path}/tables.db", tmp_path)
    made.begin()
    made.reads(0)
    return made


@pytest.fixture
def run(day: OwnedDay) -> Iterator[Running]:
    """Its closing group is parked; nothing of it is in the tables but what they keep of runs."""
    with day.run("old") as begun:
        check_days(begun.context, begun.groups)
        claim = begun.store.claim(begun.run.run_id, "replacing", expected=0, reason="test")
        session = begun.store.session(begun.store.register(claim, SOMEBODY))
        session.open()
        session.park("a fault")
        session.close()
        yield begun


def claimed(day: OwnedDay, uid: str, ordinal: int) -> None:
    """By another run of the pipeline, in one of the two tables."""
    ((log_uid,),) = rows_of(day.log_url, "SELECT uid FROM logio_log")
    columns = "table_name, scope, pipeline, log_uid, claimed_ordinal, claimed_by"
    values = f"'pages', 'day={DAY}', 'owned_day', '{log_uid}', {ordinal}, '{uid}'"
    change(day.warehouse_url, f"INSERT INTO logio_scope ({columns}) VALUES ({values})")


def cleared(run: Running, group: str = "replacing") -> GroupTask:
    """The first attempt of its task after a clear, when it has looked once."""
    task = GroupTask(run.context, group, Watcher(run.store, run.run, [group]), asked=True)
    task.advance(recovers=False)
    return task


def test_it_launches_nothing_and_names_the_younger_run(day: OwnedDay, run: Running) -> None:
    claimed(day, "f" * 32, 2)
    task = cleared(run)
    assert (run.status("replacing").state, run.status("replacing").incarnation) == (GroupState.PARKED, 1)
    said = task.failure(task.watcher.look())
    assert f"stays parked: run old of owned_day is not resumed: its writer 'save' would be refused. day={DAY}" in said
    assert f"run {'f' * 32}, number 2 of its pipeline, has claimed it, and is younger than run {run.run.uid}" in said
    assert f"`logio again {run.run.uid[:8]}` gives it up" in said


@pytest.mark.parametrize("group", ["replacing", "reading", "beside"])
def test_only_what_leads_to_the_day_is_asked(day: OwnedDay, run: Running, group: str) -> None:
    claimed(day, "f" * 32, 2)
    if group == "beside":
        check_days(run.context, [group])
        return
    with pytest.raises(WriteRefused, match="its writer 'save' would be refused"):
        check_days(run.context, [group])


def test_an_older_claim_its_own_closing_and_a_group_that_has_finished_are_no_hindrance(
    day: OwnedDay, run: Running
) -> None:
    claimed(day, "f" * 32, 0)
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
