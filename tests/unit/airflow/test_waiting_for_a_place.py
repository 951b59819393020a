"""A group's task whose run must not begin yet, because drivers of other runs have all places, waits deferred."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.triggers import group as group_trigger
from airflow_logio.triggers import log_poller
from airflow_logio.triggers.group import LogioGroupTrigger
from tests.support.logs import SOMEBODY
from tests.unit.airflow.support import FakeLauncher, context, deferred, fired, run_started

REF, GROUP = "pipelines.sales:sales", "ingest"


@pytest.fixture
def waiting(log: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that may have as many drivers as it has groups, beside a first one that has them."""
    monkeypatch.setattr(log_poller, "PLACE_SECONDS", 0.01)
    monkeypatch.setattr(group_trigger, "LINE_SECONDS", 0.01)
    spec = run_started(log, REF, tmp_path).spec
    bound = len(spec.groups)
    first, second = (
        log.start_run(replace(spec, key=replace(spec.key, dag_run_id=name), drivers_at_once=bound))
        for name in ("first", "second")
    )
    log.register(log.claim(first.run_id, GROUP, expected=0, reason="test"), SOMEBODY)
    return second


def first_run(log: LogStore) -> GroupRef:
    return GroupRef(log.find_run("first").run_id, GROUP, 1)


def task_of(run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, **given: Any) -> LogioSparkOperator:
    monkeypatch.setattr(LogioSparkOperator, "make_launcher", lambda self: launcher)
    return LogioSparkOperator(task_id=GROUP, pipeline=REF, group=GROUP, run_uid=run.uid, **given)


def test_a_group_task_defers_until_there_is_a_place_and_launches_then(
    log: LogStore,
    waiting: Run,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = task_of(waiting, launcher, monkeypatch)
    with caplog.at_level(logging.INFO):
        first = deferred(lambda: task.execute(context()))
    assert "waits for a place" in caplog.text and "It begins when there is one" in caplog.text
    assert not launcher.claims and log.group(waiting.run_id, GROUP).state is GroupState.NEW
    _, arguments = first.trigger.serialize()
    assert arguments["waits_for_place"] is True
    event = fired(LogioGroupTrigger(**arguments), lambda: log.park(first_run(log), "it is red"))
    assert event["state"] == "new"
    second = deferred(lambda: task.resume(context(), event))
    assert second.trigger.serialize()[1]["waits_for_place"] is False
    assert [claim.run_id for claim in launcher.claims] == [waiting.run_id]


def test_a_place_that_another_run_has_taken_meanwhile_is_waited_for_again(
    log: LogStore, waiting: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(waiting, launcher, monkeypatch)
    trigger = deferred(lambda: task.execute(context())).trigger
    event = fired(trigger, lambda: log.declare_dead(first_run(log), "killed"))
    log.register(log.claim(first_run(log).run_id, GROUP, expected=1, reason="a recovery passes"), SOMEBODY)
    again = deferred(lambda: task.resume(context(), event))
    assert again.trigger.serialize()[1]["waits_for_place"] is True and not launcher.claims


def test_the_second_in_line_waits_for_the_first_and_not_for_ever(
    log: LogStore, waiting: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that not all days wake at once for one place. The first one's DAG run may have been deleted: it never asks."""
    last = log.start_run(replace(waiting.spec, key=replace(waiting.spec.key, dag_run_id="last")))
    trigger = deferred(lambda: task_of(last, launcher, monkeypatch).execute(context())).trigger
    monkeypatch.setattr(group_trigger, "LINE_SECONDS", 0.4)
    freed: list[float] = []

    def free() -> None:
        freed.append(time.monotonic())  # the trigger may see it before `park` has returned
        assert log.park(first_run(log), "it is red")

    assert fired(trigger, free)["state"] == "new"
    assert time.monotonic() - freed[0] >= 0.4, "there is one ahead"


def test_a_group_that_waits_halts_with_its_task(
    log: LogStore, waiting: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = deferred(lambda: task_of(waiting, launcher, monkeypatch).execute(context())).trigger
    event = fired(trigger, lambda: log.halted(GroupRef(waiting.run_id, GROUP, 0)))
    assert event["state"] == "halted"


def test_a_run_that_was_given_up_while_it_waited_says_so(
    log: LogStore, waiting: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = deferred(lambda: task_of(waiting, launcher, monkeypatch).execute(context())).trigger
    event = fired(trigger, lambda: log.supersede(waiting.run_id))
    assert event["state"] == "halted"
