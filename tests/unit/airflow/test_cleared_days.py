"""A task that a person has cleared, of a run whose day a younger run has claimed meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio.operators._task.group_task import GroupTask
from airflow_logio.protocol.states import GroupState
from airflow_logio.supervision.look import Watcher
from tests.support.owned_day import DAY, OwnedDay, parked_before_it_wrote
from tests.support.running import Running


@pytest.fixture
def day(sqlite_url: str, tmp_path: Path) -> OwnedDay:
    return OwnedDay(sqlite_url, f"sqlite:///{tmp_path}/tables.db", tmp_path)


@pytest.fixture
def run(day: OwnedDay) -> Iterator[Running]:
    with parked_before_it_wrote(day) as begun:
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
