"""A task that a person has cleared, of a run whose day a younger run has claimed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio.operators._task.group_task import GroupTask
from airflow_logio.protocol.states import GroupState
from airflow_logio.supervision.look import Watcher
from airflow_logio.supervision.retry import check_days
from tests.support.logs import SOMEBODY
from tests.support.owned_day import DAY, OwnedDay
from tests.support.running import Running


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


def cleared(run: Running, group: str = "replacing") -> GroupTask:
    """The first attempt of its task after a clear, when it has looked once."""
    task = GroupTask(run.context, group, Watcher(run.store, run.run, [group]), asked=True)
    task.advance(recovers=False)
    return task


def test_it_launches_nothing_and_names_the_younger_run(day: OwnedDay, run: Running) -> None:
    day.claim("f" * 32, 2)
    task = cleared(run)
    assert (run.status("replacing").state, run.status("replacing").incarnation) == (GroupState.PARKED, 1)
    said = task.failure(task.watcher.look())
    assert f"stays parked: run old of owned_day is not resumed: its writer 'save' would be refused. day={DAY}" in said
    assert f"run {'f' * 32}, number 2 of its pipeline, has claimed it, and is younger than run {run.run.uid}" in said
    assert f"`logio again {run.run.uid[:8]}` gives it up" in said
