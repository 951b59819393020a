"""`LogioGroupTrigger` on a real log, with drivers that the test speaks for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.serialization.serialized_objects import BaseSerialization
from airflow.triggers.base import TriggerEvent

from airflow_logio.errors import LogUnavailable
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.launch import bundle, processes
from airflow_logio.launch.start_run import run_spec
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, Load, SparkApplication
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.supervision import halt as halting
from airflow_logio.supervision import presence
from airflow_logio.triggers import group as group_module
from airflow_logio.triggers import stored_link
from airflow_logio.triggers.group import LogioGroupTrigger
from airflow_logio.triggers.log_poller import LogLook
from tests.support.connections import connections_made, is_open
from tests.support.logs import finish
from tests.support.waiting import eventually
from tests.unit.airflow.support import DAG_ID, RUN_ID, FakeLauncher, cancelled, write_transactions

GROUP = "totals"


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    import pipelines.sales

    ref = bundle.PipelineRef("pipelines.sales", "sales", bundle.locate("pipelines.sales"))
    params = {"transactions": str(write_transactions(tmp_path / "t.parquet"))}
    connections = {"warehouse": "warehouse_db"}
    sales = pipelines.sales.sales
    return log.start_run(
        run_spec(
            sales,
            ref,
            dag_id=DAG_ID,
            dag_run_id=RUN_ID,
            params=params,
            connections=connections,
            supervision=Supervision.TASK,
        )
    )


@pytest.fixture
def trigger(run: Run) -> LogioGroupTrigger:
    return LogioGroupTrigger(logio_conn_id="logio_default", run_uid=run.uid, group=GROUP, poll_interval=0.01)


@pytest.fixture
def running(log: LogStore, run: Run, launcher: FakeLauncher) -> GroupRef:
    """The group runs, as a process that does nothing."""
    return start(log, run, launcher)


def start(log: LogStore, run: Run, launcher: FakeLauncher, expected: int = 0) -> GroupRef:
    claim = log.claim(run.run_id, GROUP, expected=expected, reason="test")
    launcher.launch(claim)
    return log.register(claim, launcher.identity())


def event_of(
    state: str, incarnation: int, cause: str | None = None, relayed: dict[str, list[int]] | None = None
) -> dict[str, Any]:
    return {"state": state, "group": GROUP, "incarnation": incarnation, "cause": cause, "relayed": relayed or {}}


def fired(trigger: LogioGroupTrigger, meanwhile: Callable[[], None] | None = None) -> Any:
    """Run the trigger to its event; `meanwhile` happens once it has found nothing to say for a while."""

    async def first() -> TriggerEvent:
        async def event() -> TriggerEvent:
            return await anext(aiter(trigger.run()))

        task = asyncio.create_task(event())
        if meanwhile is not None:
            await asyncio.sleep(0.1)
            assert not task.done(), f"the trigger fired too early: {task.result()}"
            await asyncio.to_thread(meanwhile)
        try:
            return await asyncio.wait_for(task, 120)
        finally:
            await trigger.cleanup()

    return asyncio.run(first()).payload


def test_the_link_of_a_deferred_task_follows_the_incarnations(
    trigger: LogioGroupTrigger,
    log: LogStore,
    run: Run,
    running: GroupRef,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Airflow itself stores a link only when a segment of the task ends."""
    stored: list[str] = []

    def store_link(task_instance: Any, key: str, link: str) -> Future[None]:
        stored.append(link)
        answer: Future[None] = Future()
        answer.set_result(None)
        return answer

    def report(ref: GroupRef) -> None:
        application = SparkApplication(f"local-{ref.incarnation}", f"http://driver:404{ref.incarnation}", False)
        load = Load(10.0, 0.5, 0.5, 0.0, 0, 0, 0, 0, application=application)
        log.heartbeat(ref, 1, ready=True, rss_bytes=1, load=load)
        eventually(lambda: stored[-1:] == [application.ui_url], what=f"incarnation {ref.incarnation} is linked")

    def recovered() -> None:
        report(running)
        log.declare_dead(running, "test")
        successor = start(log, run, launcher, expected=1)
        report(successor)
        finish(log, successor)

    monkeypatch.setattr(stored_link, "store_link", store_link)
    trigger.task_instance = SimpleNamespace(dag_id=DAG_ID, run_id=RUN_ID, task_id=GROUP, map_index=-1)
    assert fired(trigger, recovered)["state"] == "finished"
    assert stored[-1] == "", "the UI of a driver that has ended is gone"
    assert [link for link in stored if link] == ["http://driver:4041", "http://driver:4042"]


@pytest.mark.usefixtures("running")
def test_one_that_is_cancelled_while_it_looks_leaves_no_connection(
    trigger: LogioGroupTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread continues, and asks the log."""
    see, began, may_look = trigger._see, threading.Event(), threading.Event()

    def slow(look: LogLook) -> Any:
        began.set()
        assert may_look.wait(120)
        return see(look)

    monkeypatch.setattr(trigger, "_see", slow)

    async def cancelled() -> None:
        looking = asyncio.ensure_future(anext(aiter(trigger.run())))
        assert await asyncio.to_thread(began.wait, 60)
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking
        await asyncio.wait_for(trigger.cleanup(), 60)
        may_look.set()

    with connections_made() as made:
        asyncio.run(cancelled())
        eventually(lambda: not any(map(is_open, made)), what="the poller has closed its connections")
    assert made


def test_it_survives_serialization(trigger: LogioGroupTrigger) -> None:
    path, arguments = trigger.serialize()
    assert path == f"{LogioGroupTrigger.__module__}.{LogioGroupTrigger.__qualname__}"
    assert "sqlite" not in json.dumps(arguments), "a connection id, never a URL"
    stored = BaseSerialization.deserialize(BaseSerialization.serialize(arguments))
    assert LogioGroupTrigger(**stored).serialize() == (path, arguments)


def test_a_nonsensical_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="poll_interval"):
        LogioGroupTrigger(logio_conn_id="x", run_uid="x", group="x", poll_interval=0)


@pytest.fixture
def nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that relies on a supervisor finds out at once that there is none."""
    monkeypatch.setattr(presence, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(presence, "LEFT_SECONDS", 0.0)


@pytest.mark.usefixtures("running", "nobody_looks")
def test_a_driver_that_is_killed_when_nobody_else_looks(
    trigger: LogioGroupTrigger, launcher: FakeLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    event = fired(trigger, launcher.kill)
    assert (event["state"], event["incarnation"]) == ("dead", 1)
    assert "has ended without saying so" in event["cause"]
    assert "no supervisor looks for failed groups" in capsys.readouterr().out


@pytest.mark.usefixtures("nobody_looks")
def test_a_driver_that_is_killed_is_its_supervisors_business(
    trigger: LogioGroupTrigger, log: LogStore, run: Run, launcher: FakeLauncher, running: GroupRef
) -> None:
    log.note_supervisor("a task", run_uid=run.uid)

    def recover_and_finish() -> None:
        launcher.kill()
        eventually(lambda: log.group(run.run_id, GROUP).state is GroupState.DEAD, what="it is declared dead")
        finish(log, start(log, run, launcher, expected=1))

    assert fired(trigger, recover_and_finish) == event_of("finished", 2)


@pytest.mark.usefixtures("nobody_looks")
def test_with_a_recovery_dag_that_is_paused_what_is_dead_stays_dead(
    log: LogStore, run: Run, launcher: FakeLauncher, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person who pauses it wants no recoveries; the task says so."""
    spec = replace(run.spec, supervision=Supervision.DAG, key=replace(run.spec.key, dag_run_id="another"))
    other = log.start_run(spec)
    log.note_supervisor("DAG logio_recovery", pipeline="another pipeline")
    ref = start(log, other, launcher)
    trigger = LogioGroupTrigger(logio_conn_id="logio_default", run_uid=other.uid, group=GROUP, poll_interval=0.01)

    def stays_dead() -> None:
        launcher.kill()
        eventually(lambda: log.group(other.run_id, GROUP).state is GroupState.DEAD, what="it is declared dead")
        eventually(lambda: "is paused, missing" in capsys.readouterr().out, what="the task is told")
        assert log.halted(ref)

    assert fired(trigger, stays_dead)["state"] == "halted"


def test_a_group_that_finishes(trigger: LogioGroupTrigger, log: LogStore, running: GroupRef) -> None:
    event = fired(trigger, lambda: finish(log, running))
    assert event == event_of("finished", 1)


def test_what_its_drivers_print_is_in_the_log_of_the_task(
    trigger: LogioGroupTrigger,
    log: LogStore,
    run: Run,
    running: GroupRef,
    launcher: FakeLauncher,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the task has relayed before is not said again, and another trigger resumes where this one was."""
    log.output.add(running, 1, 10, "from before\n")
    log.output.add(running, 2, 20, "one\ntwo\n")
    trigger.relayed = {GROUP: [1, 1]}

    def print_and_recover() -> None:
        eventually(lambda: trigger.relayed == {GROUP: [1, 2]}, what="the first lines are relayed")
        log.declare_dead(running, "test")
        successor = start(log, run, launcher, expected=1)
        log.output.add(running, 3, 30, "last words of the dead\n")
        log.output.add(successor, 1, 10, "three\n")
        eventually(lambda: trigger.relayed == {GROUP: [2, 1]}, what="the next driver's lines are relayed")
        finish(log, successor)

    trigger.poll_interval = 0.2
    assert fired(trigger, print_and_recover) == event_of("finished", 2, relayed={GROUP: [2, 1]})
    said = [line for line in capsys.readouterr().out.splitlines() if f"[{GROUP} #" in line]
    expected = ["#1] one", "#1] two", "#1] last words of the dead", "#2] three"]
    assert [wanted in line for line, wanted in zip(said, expected, strict=True)] == [True] * 4


def test_a_group_that_is_parked(trigger: LogioGroupTrigger, log: LogStore, running: GroupRef) -> None:
    event = fired(trigger, lambda: None if log.park(running, "KeyError: 'department'") else pytest.fail())
    assert event == event_of("parked", 1, "KeyError: 'department'")


def test_a_group_nobody_has_launched(trigger: LogioGroupTrigger) -> None:
    """The worker lost the log before it could launch: once the log is back, the task is woken to do it."""
    assert fired(trigger)["state"] == "new"


def test_it_watches_over_incarnations(
    trigger: LogioGroupTrigger, log: LogStore, run: Run, launcher: FakeLauncher, running: GroupRef
) -> None:
    """Another process recovers the group faster than this trigger looks: no task is woken for it."""

    def recover_and_finish() -> None:
        log.declare_dead(running, "test")
        finish(log, start(log, run, launcher, expected=1))

    trigger.poll_interval = 0.5
    assert fired(trigger, recover_and_finish) == event_of("finished", 2)


@pytest.mark.usefixtures("running", "nobody_looks")
def test_a_log_that_is_away_means_nothing(
    trigger: LogioGroupTrigger, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is unavailable when the watch begins, and again when the driver dies: seen only when it answers."""
    away = threading.Event()
    away.set()
    asked: list[str] = []

    def unless_away(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            asked.append(name)
            if away.is_set():
                raise LogUnavailable("away")
            return real(*arguments, **named)

        return ask

    monkeypatch.setattr(LogioHook, "get_store", unless_away("open", LogioHook.get_store))
    monkeypatch.setattr(SqlLogStore, "sight", unless_away("sight", SqlLogStore.sight))
    monkeypatch.setattr(SqlLogStore, "declare_dead", unless_away("declare_dead", SqlLogStore.declare_dead))

    def outage() -> None:
        assert set(asked) == {"open"}
        away.clear()
        eventually(lambda: asked.count("sight") > 2)
        away.set()
        launcher.kill()
        asked.clear()
        eventually(lambda: len(asked) > 3)
        away.clear()

    assert fired(trigger, outage)["state"] == "dead"


def test_what_it_cannot_watch_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = LogioGroupTrigger(logio_conn_id="logio_default", run_uid="nope", group=GROUP)
    event = fired(unknown)
    assert event["state"] == "error" and "UnknownRun" in event["cause"]
    missing = LogioGroupTrigger(logio_conn_id="nowhere", run_uid=run.uid, group=GROUP)
    assert "nowhere" in fired(missing)["cause"]


# --- what a person does to the task -----------------------------------------------------------------------------------


def killed(
    trigger: LogioGroupTrigger,
    state: str | None,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: Callable[[], str | None] | None = None,
) -> None:
    """`meanwhile` happens while the first answer is on its way; it returns what the task is when it is asked again."""
    states = [state]

    async def answer(task_instance: Any) -> str | None:
        answered = states[-1]
        if meanwhile is not None and len(states) == 1:
            states.append(await asyncio.to_thread(meanwhile))
        return answered

    monkeypatch.setattr(group_module, "aget_task_state", answer)
    monkeypatch.setattr(group_module, "HALT_GRACE_SECONDS", 0.2)
    trigger.task_instance = SimpleNamespace(task_id=GROUP, dag_id=DAG_ID, run_id=RUN_ID, map_index=-1)

    async def kill() -> None:
        trigger.incarnations.setdefault(GROUP, 1)
        await cancelled(trigger)
        await asyncio.gather(*group_module._following)

    monkeypatch.setattr(group_module, "FOLLOW_SECONDS", 0.0)
    asyncio.run(kill())


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("state", ["failed", "success", "removed", "skipped"])
def test_a_task_that_was_marked_halts_its_group_even_if_the_driver_does_not_listen(
    state: str,
    trigger: LogioGroupTrigger,
    log: LogStore,
    run: Run,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed(trigger, state, monkeypatch)
    status = log.group(run.run_id, GROUP)
    assert (status.state, status.desired) == (GroupState.HALTED, GroupState.HALTED)
    assert processes.identity_of(launcher.children[-1].pid) is None, "nothing is left running"


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("state", [None, "scheduled", "queued", "running", "restarting"])
def test_a_task_that_was_cleared_leaves_its_group_running(
    state: str | None, trigger: LogioGroupTrigger, log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed(trigger, state, monkeypatch)
    assert log.group(run.run_id, GROUP).desired is GroupState.RUNNING


@pytest.mark.parametrize("then", ["failed", "running"])
def test_what_was_launched_while_airflow_answered_is_the_tasks_unless_it_was_cleared(
    then: str,
    trigger: LogioGroupTrigger,
    log: LogStore,
    run: Run,
    launcher: FakeLauncher,
    running: GroupRef,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its supervisor, when the driver died; or by the next attempt of the task, after a clear."""

    def replaced() -> str:
        log.declare_dead(running, "test")
        start(log, run, launcher, expected=1)
        return then

    killed(trigger, "failed", monkeypatch, meanwhile=replaced)
    status = log.group(run.run_id, GROUP)
    assert status.incarnation == 2
    assert status.state is (GroupState.HALTED if then == "failed" else GroupState.RUNNING)


def test_a_halt_waits_for_a_log_that_is_away(
    trigger: LogioGroupTrigger, log: LogStore, run: Run, running: GroupRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    halt, tried = halting.halt_all_for_good, list[Any]()

    def away_at_first(*arguments: Any, **named: Any) -> Any:
        tried.append(arguments)
        if len(tried) == 1:
            raise LogUnavailable("away")
        return halt(*arguments, **named)

    monkeypatch.setattr(group_module, "halt_all_for_good", away_at_first)
    killed(trigger, "failed", monkeypatch)
    assert log.group(run.run_id, GROUP).state is GroupState.HALTED


def test_a_triggerer_that_ends_says_what_it_leaves(
    trigger: LogioGroupTrigger, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def never(task_instance: Any) -> str:
        await asyncio.sleep(60)
        return "failed"

    monkeypatch.setattr(group_module, "aget_task_state", never)
    trigger.task_instance = SimpleNamespace(task_id=GROUP, dag_id=DAG_ID, run_id=RUN_ID, map_index=-1)

    async def kill() -> None:
        await cancelled(trigger)
        await asyncio.to_thread(eventually, lambda: trigger._share is not None, what="it follows")
        following = list(group_module._following)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)

    monkeypatch.setattr(group_module, "FOLLOW_SECONDS", 0.0)
    asyncio.run(kill())
    said = f"the triggerer is stopping. `logio stop {run.uid[:8]} {GROUP}` halts it"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("marked", [True, False])
def test_a_kill_is_followed_though_airflow_cancels_what_it_has_called(
    marked: bool,
    trigger: LogioGroupTrigger,
    log: LogStore,
    run: Run,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its triggerer does so once per second until the trigger has ended, however long the first answer takes."""
    asked, answered = threading.Event(), threading.Event()

    async def answer(task_instance: Any) -> str:
        asked.set()
        await asyncio.to_thread(answered.wait, 10)
        return "failed" if marked else "queued"

    monkeypatch.setattr(group_module, "aget_task_state", answer)
    monkeypatch.setattr(group_module, "HALT_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(group_module, "FOLLOW_SECONDS", 0.0)
    names = {"task_id": GROUP, "dag_id": DAG_ID, "run_id": RUN_ID, "map_index": -1, "try_number": 1}
    trigger.task_instance = SimpleNamespace(id="ti", context_carrier=None, **names)

    async def triggerer() -> None:
        runner = TriggerRunner()
        task = asyncio.create_task(runner.run_trigger(1, trigger))
        runner.triggers[1] = {"task": task, "is_watcher": False, "name": GROUP, "events": 0}
        await asyncio.to_thread(eventually, lambda: trigger.incarnations, what="it watches")
        while not task.done():
            runner.to_cancel.append(1)
            await runner.cancel_triggers()
            await asyncio.to_thread(asked.wait, 10)
        assert log.group(run.run_id, GROUP).desired is GroupState.RUNNING
        answered.set()
        await asyncio.to_thread(eventually, lambda: not group_module._following, what="it is followed")

    asyncio.run(triggerer())
    assert log.group(run.run_id, GROUP).state is (GroupState.HALTED if marked else GroupState.RUNNING)
    assert trigger._share is None, "the last one that needs it leaves it"


@pytest.mark.usefixtures("running")
def test_what_keeps_it_from_halting_is_said(
    trigger: LogioGroupTrigger, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(*arguments: Any, **named: Any) -> None:
        raise LogUnavailable("away")

    monkeypatch.setattr(group_module, "halt_all_for_good", away)
    monkeypatch.setattr(group_module, "LOG_AWAY_SECONDS", 0.0)
    killed(trigger, "failed", monkeypatch)
    said = f"may have been marked: away. `logio stop {run.uid[:8]} {GROUP}` halts it"
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("running")
def test_a_triggerer_that_ends_asks_nothing(
    trigger: LogioGroupTrigger, log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cancels its triggers as for a mark, and nothing would answer."""
    asked = list[Any]()

    async def answer(task_instance: Any) -> str:
        asked.append(task_instance)
        return "failed"

    monkeypatch.setattr(group_module, "aget_task_state", answer)
    monkeypatch.setattr(group_module, "FOLLOW_SECONDS", 600.0)  # longer than this machine may need to end
    names = {"task_id": GROUP, "dag_id": DAG_ID, "run_id": RUN_ID, "map_index": -1, "try_number": 1}
    trigger.task_instance = SimpleNamespace(id="ti", context_carrier=None, **names)

    async def triggerer() -> None:
        runner = TriggerRunner()
        runner.triggers[1] = {"is_watcher": False, "name": GROUP, "events": 0}
        runner.triggers[1]["task"] = asyncio.create_task(runner.run_trigger(1, trigger))
        await asyncio.to_thread(eventually, lambda: trigger.incarnations, what="it watches")

    asyncio.run(triggerer())
    assert trigger._is_followed, "it was cancelled"
    assert trigger._share is None, "its process can end"
    assert not asked and not group_module._following
    status = log.group(run.run_id, GROUP)
    assert (status.state, status.desired) == (GroupState.RUNNING, GroupState.RUNNING)
