"""When a deferred task is woken, and when it ends without a worker: Airflow loses the try of one that is woken too early."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from airflow.sdk import Asset
from airflow.sdk._shared.listeners.listener import ListenerManager
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from airflow_logio import _compat
from airflow_logio.launch.surroundings import machine_of_this_process
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.triggers import base as base_module
from airflow_logio.triggers.base import PlainTrigger
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from airflow_logio.triggers.group import LogioGroupTrigger
from airflow_logio.triggers.input_arrival import LogioInputTrigger
from airflow_logio.triggers.recovered_group import LogioRecoveredGroupTrigger
from airflow_logio.triggers.stop import LogioStopTrigger
from tests.support.logs import finish
from tests.unit.airflow.support import FakeLauncher, context, run_started

REF, GROUP = "pipelines.sales:sales", "totals"


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


@pytest.fixture
def running(log: LogStore, run: Run, launcher: FakeLauncher) -> GroupRef:
    """The group runs, as a process that does nothing."""
    claim = log.claim(run.run_id, GROUP, expected=0, reason="test")
    launcher.launch(claim)
    return log.register(claim, launcher.identity())


class Held:
    """In place of the time that an executor takes to report a deferral: the test says when it is over."""

    def __init__(self) -> None:
        self.asked, self.over = threading.Event(), threading.Event()

    async def wait(self) -> None:
        self.asked.set()
        await asyncio.to_thread(self.over.wait)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(PlainTrigger, "_settled", made.wait)
    return made


def first_event(trigger: PlainTrigger, held: Held) -> tuple[TriggerEvent, bool]:
    """The first event, and whether it was held back until the executor had reported."""

    async def first() -> tuple[TriggerEvent, bool]:
        task = asyncio.create_task(anext(aiter(trigger.run())))
        asked = asyncio.create_task(asyncio.to_thread(held.asked.wait, 30))
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            was_held = not task.done()
            held.over.set()
            return await asyncio.wait_for(task, 120), was_held
        finally:
            held.asked.set()
            await trigger.cleanup()

    return asyncio.run(first())


def test_a_group_that_has_finished_ends_its_task_without_a_worker(
    run: Run, log: LogStore, running: GroupRef, held: Held
) -> None:
    """Whatever the executor has reported by then: Airflow loses the try of a task that is back with it too early."""
    finish(log, running)
    trigger = LogioGroupTrigger(
        logio_conn_id="logio_default", run_uid=run.uid, group=GROUP, poll_interval=0.01, ends_task=True
    )
    event, was_held = first_event(trigger, held)
    assert isinstance(event, TaskSuccessEvent) and not was_held
    result = {"run": run.uid, "group": GROUP, "incarnations": 1, "recoveries": 0, "records": {}}
    assert event.xcoms == {"return_value": result}
    status = log.group(run.run_id, GROUP)
    assert status.killed is None, "no note for a worker that does not come"
    operator = LogioSparkOperator(task_id=GROUP, pipeline=REF)
    assert operator.execute(context(attempt=2)) == result, "what a worker returns"
    assert operator.resume(context(), "success") == result, "`dag.test()` resumes all the same"


@pytest.mark.parametrize("ends", ["parked", "halted", "finished, and a worker is needed"])
def test_any_other_event_waits_until_the_deferral_was_reported(
    ends: str, run: Run, log: LogStore, running: GroupRef, held: Held
) -> None:
    if ends == "parked":
        assert log.park(running, "KeyError")
    elif ends == "halted":
        assert log.halted(running)
    else:
        finish(log, running)
    trigger = LogioGroupTrigger(
        logio_conn_id="logio_default",
        run_uid=run.uid,
        group=GROUP,
        poll_interval=0.01,
        ends_task=not ends.startswith("finished"),
    )
    event, was_held = first_event(trigger, held)
    assert (event.payload["state"], was_held) == (ends.partition(",")[0], True)


@pytest.mark.parametrize("last_try", [True, False])
def test_a_task_with_tries_left_is_woken_at_once_and_one_without_waits(
    last_try: bool, run: Run, log: LogStore, running: GroupRef, held: Held
) -> None:
    given: dict[str, Any] = {"logio_conn_id": "logio_default", "run_uid": run.uid, "last_try": last_try}
    assert log.declare_dead(running, "a test")
    assert first_event(LogioFailedGroupTrigger(supervisor="a test", **given), held)[1] is last_try
    assert log.park(running, "a test")
    for trigger in (
        LogioRecoveredGroupTrigger(group=GROUP, incarnation=1, **given),
        LogioStopTrigger(mode="halt", group=GROUP, **given),
    ):
        held.asked.clear()
        held.over.clear()
        assert first_event(trigger, held)[1] is last_try


@pytest.mark.parametrize("last_try", [False, True])
def test_how_long_that_is(last_try: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from when the triggerer has made the trigger, which is after the worker has deferred the task."""
    trigger = LogioGroupTrigger(logio_conn_id="logio_default", run_uid="0" * 32, group=GROUP, last_try=last_try)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(base_module, "SETTLING_SECONDS", 10.0)
    whole = 20.0 if last_try else 10.0
    for age, expected in ((3.0, [whole - 3.0]), (whole + 1.0, [])):
        slept.clear()
        with monkeypatch.context() as patched:
            patched.setattr(base_module, "time", SimpleNamespace(monotonic=lambda age=age: trigger._made_at + age))
            patched.setattr(base_module, "asyncio", SimpleNamespace(sleep=sleep))
            asyncio.run(trigger._settled())
        assert slept == pytest.approx(expected)


@pytest.mark.parametrize("last_try", [False, True])
def test_a_task_whose_input_is_there_is_woken_without_the_loss_of_a_try(
    tmp_path: Path, held: Held, last_try: bool
) -> None:
    """Its run may begin with the first look, before the executor has reported the deferral."""
    places = [["path", str(tmp_path)]]
    made = LogioInputTrigger(places=places, machine=machine_of_this_process(), since=0.0, until=4e9, last_try=last_try)
    event, was_held = first_event(made, held)
    assert (event.payload, was_held) == ({"why": "it is there"}, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, True),
        ({"outlets": [Asset("x://y")]}, False),
        ({"on_success_callback": print}, False),
        ({"post_execute": print}, False),
        ({"do_xcom_push": False}, False),
    ],
)
def test_a_worker_is_needed_for_what_the_author_wants_done_at_the_end(
    arguments: dict[str, Any], expected: bool, run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogioSparkOperator, "make_launcher", lambda self: launcher)
    operator = LogioSparkOperator(task_id=GROUP, pipeline=REF, **arguments)
    with pytest.raises(TaskDeferred) as deferred:
        operator.execute(context())
    assert deferred.value.trigger.serialize()[1]["ends_task"] is expected


@pytest.mark.parametrize("needs", ["a listener", "another place for XComs"])
def test_and_for_what_the_deployment_wants(needs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listeners, such as OpenLineage's, are called on workers; XCom backends store what is too large for the database."""
    operator = LogioSparkOperator(task_id=GROUP, pipeline=REF)
    assert _compat.may_end_in_triggerer(operator)
    if needs == "a listener":
        monkeypatch.setattr(ListenerManager, "has_listeners", True)
    else:
        monkeypatch.setenv(
            "AIRFLOW__CORE__XCOM_BACKEND", "airflow.providers.common.io.xcom.backend.XComObjectStorageBackend"
        )
    assert not _compat.may_end_in_triggerer(operator)
