"""Tasks that are killed on their worker: a group halts only if it is known that a person has ended its task."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, TaskDeferred

from airflow_logio import _compat
from airflow_logio.operators._task import kills
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators.finish_run import LogioFinishRunOperator
from airflow_logio.operators.fresh_run import LogioFreshRunOperator
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.scale import LogioScaleOperator
from airflow_logio.operators.scaling_controller import LogioScalingController
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.states import GroupState
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import KilledTask
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision import task_notes as killed_tasks
from airflow_logio.supervision.findings import FailureFinder
from airflow_logio.supervision.policies import DS2
from airflow_logio.triggers.group import LogioGroupTrigger
from airflow_logio.triggers.log_poller import LogLook
from tests.support.own_calls import as_seen
from tests.support.waiting import eventually
from tests.unit.airflow.support import DAG_ID, RUN_ID, FakeLauncher, context, register, run_started

REF = "pipelines.sales:sales"
TASK = KilledTask(DAG_ID, RUN_ID, "totals")


class NoAnswer(RuntimeError):
    """What Airflow raises, say."""


@pytest.fixture(autouse=True)
def only_fake_drivers(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kills, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr("airflow_logio.operators._task.recovery_round.HALT_GRACE_SECONDS", 0.2)
    for operator in (LogioSparkOperator, LogioSuperviseOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | Exception | None], list[KilledTask]]:
    """Airflow's answer to what a task has become; returns the tasks that it is asked for."""

    def set_to(answer: str | Exception | None) -> list[KilledTask]:
        asked: list[KilledTask] = []

        def state(task: KilledTask) -> str | None:
            asked.append(task)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(_compat, "get_task_state", state)
        return asked

    return set_to


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


def totals(**arguments: Any) -> LogioSparkOperator:
    return LogioSparkOperator(task_id="totals", pipeline=REF, poll_interval=0.01, **arguments)


def status(log: LogStore, run: Run) -> GroupStatus:
    return log.group(run.run_id, "totals")


@pytest.fixture
def watching(
    run: Run, log: LogStore, launcher: FakeLauncher
) -> Iterator[Callable[[dict[str, Any]], LogioSparkOperator]]:
    """The group's task watches from its worker, as far as this attempt has come; it is killed by the test."""

    def watch(given: dict[str, Any]) -> LogioSparkOperator:
        task = totals(deferrable=True)
        with pytest.raises(TaskDeferred):
            task.execute(given)
        recipe = log.launch_recipe(run.run_id, "totals") or pytest.fail("no recipe")
        task = totals(deferrable=False)
        task._begin(given).group_task(log, replace(recipe, killed=None))
        if status(log, run).state is not GroupState.RUNNING:
            register(log, launcher)
        return task

    yield watch


@pytest.mark.parametrize("state", ["failed", "success", "skipped", "removed"])
def test_a_person_has_ended_it(
    state: str, watching: Any, answers: Any, log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    task, asked = watching(context()), answers(state)
    task.on_kill()
    assert asked == [TASK]
    assert (status(log, run).state, status(log, run).killed) == (GroupState.HALTED, None)
    assert launcher.children[-1].poll() is not None, "nothing is left running"


@pytest.mark.parametrize("state", [None, "running", "queued", "scheduled", "up_for_retry", "restarting"])
def test_it_is_tried_again_or_was_cleared(
    state: str | None, watching: Any, answers: Any, log: LogStore, run: Run
) -> None:
    """A worker that is shut down, `execution_timeout`, a clear."""
    task = watching(context())
    answers(state)
    task.on_kill()
    found = status(log, run)
    assert (found.state, found.desired, found.killed) == (GroupState.RUNNING, GroupState.RUNNING, None)


def test_a_failure_at_the_last_try_may_be_its_own(watching: Any, answers: Any, log: LogStore, run: Run) -> None:
    task, asked = watching(context(attempt=4, max_tries=3)), answers("failed")
    task.on_kill()
    assert asked[0].last_try
    assert (status(log, run).state, status(log, run).desired) == (GroupState.RUNNING, GroupState.RUNNING)


@pytest.fixture
def unexplained(watching: Any, answers: Any, log: LogStore, run: Run) -> GroupStatus:
    """Airflow gives no answer: nothing is halted, and the note stays."""
    task = watching(context())
    answers(NoAnswer("the API server is unavailable"))
    task.on_kill()
    found = status(log, run)
    assert (found.state, found.desired, found.killed) == (GroupState.RUNNING, GroupState.RUNNING, TASK)
    return found


@pytest.mark.usefixtures("unexplained")
def test_the_next_attempt_takes_the_note_away(log: LogStore, run: Run) -> None:
    with pytest.raises(TaskDeferred):
        totals().execute(context(attempt=2))
    assert status(log, run).state is GroupState.RUNNING
    assert is_on_its_way(log, run), "it has left a note of its own"


def is_on_its_way(log: LogStore, run: Run) -> bool:
    killed = status(log, run).killed
    return killed is not None and replace(killed, ask_at=None) == TASK and (killed.ask_at or 0.0) > time.time()


def supervise(run: Run, log: LogStore) -> None:
    """One round: what the trigger finds, and what the task does with it."""
    found = FailureFinder(log, run_uid=run.uid).look()
    with pytest.raises(TaskDeferred):
        LogioSuperviseOperator(task_id="supervise", pipeline=REF).resume(
            context(), {"findings": [one.as_dict() for one in found.items]}
        )


@pytest.mark.usefixtures("unexplained")
@pytest.mark.parametrize(("state", "then"), [("failed", GroupState.HALTED), ("up_for_retry", GroupState.RUNNING)])
def test_the_supervisor_finds_out(state: str, then: GroupState, answers: Any, log: LogStore, run: Run) -> None:
    for _ in range(2):
        answers(NoAnswer("still away"))
        with pytest.raises(NoAnswer):  # its own retry asks again
            supervise(run, log)
    assert status(log, run).killed == TASK
    assert answers(state) == []
    supervise(run, log)
    assert (status(log, run).state, status(log, run).killed) == (then, None)
    assert FailureFinder(log, run_uid=run.uid).look().killed == ()


# --- on the way from the worker to the triggerer ----------------------------------------------------------------------


@pytest.mark.parametrize("state", ["failed", "success", "skipped"])
def test_a_mark_during_the_launch_is_noticed_before_the_deferral(
    state: str, answers: Any, log: LogStore, run: Run, launcher: FakeLauncher
) -> None:
    """The worker learns of it with its next heartbeat, and would have ended before."""
    asked = answers(state)
    with pytest.raises(AirflowFailException, match="is halted: a person has ended its task"):
        totals(deferrable=True).execute(context())
    assert asked == [TASK]
    assert (status(log, run).state, status(log, run).killed) == (GroupState.HALTED, None)
    assert launcher.children[-1].poll() is not None, "nothing is left running"


@pytest.fixture
def deferred(answers: Any, run: Run, log: LogStore, launcher: FakeLauncher) -> LogioSparkOperator:
    """Airflow may refuse the deferral now, or no trigger may come: no task would be told of a mark."""
    answers("running")
    task = totals(deferrable=True)
    with pytest.raises(TaskDeferred):
        task.execute(context())
    register(log, launcher)
    assert is_on_its_way(log, run)
    return task


@pytest.mark.usefixtures("deferred")
@pytest.mark.parametrize("answer", ["removed", NoAnswer("the API server is unavailable")])
def test_only_a_mark_ends_a_deferral(answer: str | Exception, answers: Any, log: LogStore, run: Run) -> None:
    answers(answer)
    with pytest.raises(TaskDeferred):
        totals(deferrable=True).execute(context(attempt=2))
    assert status(log, run).state is GroupState.RUNNING
    assert is_on_its_way(log, run)


@pytest.mark.usefixtures("deferred")
@pytest.mark.parametrize(
    ("state", "then", "stays"),
    [
        ("failed", GroupState.HALTED, False),
        ("removed", GroupState.HALTED, False),
        ("running", GroupState.RUNNING, True),
        ("deferred", GroupState.RUNNING, True),
        ("up_for_retry", GroupState.RUNNING, False),
    ],
)
def test_a_trigger_that_does_not_come_is_asked_after(
    state: str, then: GroupState, stays: bool, answers: Any, log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = answers(state)
    assert FailureFinder(log, run_uid=run.uid).look().killed == (), "it is given time"
    with monkeypatch.context() as later:
        clock = time.time() + killed_tasks.ARRIVAL_SECONDS + 1
        later.setattr(killed_tasks, "time", as_seen(time, time=lambda: clock))
        supervise(run, log)
        assert [replace(one, ask_at=None) for one in asked] == [TASK]
        assert FailureFinder(log, run_uid=run.uid).look().killed == (), "not again so soon"
    assert (status(log, run).state, is_on_its_way(log, run)) == (then, stays)


def test_a_worker_that_is_shut_down_during_the_deferral_leaves_it_to_the_trigger(
    deferred: LogioSparkOperator, answers: Any, log: LogStore, run: Run
) -> None:
    answers("deferred")
    deferred.on_kill()
    assert status(log, run).state is GroupState.RUNNING
    assert is_on_its_way(log, run)


def test_a_mark_during_the_deferral_halts_where_the_worker_is_told(
    deferred: LogioSparkOperator, answers: Any, log: LogStore, run: Run
) -> None:
    answers("failed")
    deferred.on_kill()
    assert (status(log, run).state, status(log, run).killed) == (GroupState.HALTED, None)


@pytest.mark.usefixtures("deferred")
def test_the_trigger_takes_the_note_away(log: LogStore, run: Run) -> None:
    """From its first look on it is told."""
    trigger = LogioGroupTrigger(logio_conn_id="logio_default", run_uid=run.uid, group="totals")
    assert trigger._see(LogLook(time.monotonic(), log, {run.uid: log.sight([run.uid])[0]})) is None
    assert (status(log, run).state, status(log, run).killed) == (GroupState.RUNNING, None)


# --- no answer has come -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("unexplained")
def test_so_does_a_recovery_dag(answers: Any, log: LogStore, run: Run) -> None:
    answers("success")
    sensor = LogioFailedGroupSensor(task_id="failed_groups", deferrable=False, give_up_after=timedelta(seconds=5))
    [found] = sensor.execute(context())
    result = LogioRecoverGroupOperator(task_id="recover", finding=found).execute(context())
    assert (result["outcome"], result["launched_incarnation"]) == ("halt", None)
    assert (status(log, run).state, status(log, run).killed) == (GroupState.HALTED, None)


@pytest.mark.usefixtures("unexplained")
def test_who_cannot_ask_airflow_leaves_it_to_others(log: LogStore, run: Run) -> None:
    """`logio tend`, say."""
    found = FailureFinder(log, run_uid=run.uid).look()
    assert found.work == [] and [one.group for one in found.killed] == ["totals"]


def test_an_answer_that_comes_too_late_is_not_waited_for(
    watching: Any, log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kills, "PATIENCE_SECONDS", 0.2)
    may_answer, task = threading.Event(), watching(context())

    def slow(_: KilledTask) -> str:
        assert may_answer.wait(90)
        return "failed"

    monkeypatch.setattr(_compat, "get_task_state", slow)
    task.on_kill()
    eventually(lambda: status(log, run).killed == TASK, what="the note comes first")
    assert status(log, run).state is GroupState.RUNNING
    may_answer.set()
    eventually(lambda: status(log, run).state is GroupState.HALTED, what="what is left of its seconds is used")
    eventually(lambda: status(log, run).killed is None, what="the note goes")


def test_sigterm_in_the_middle_of_the_watch(run: Run, answers: Any, log: LogStore, launcher: FakeLauncher) -> None:
    """As Airflow's task runner does it: the handler interrupts whatever the task does, and the task lives until SIGKILL."""
    answers("failed")
    task = totals(deferrable=False)

    def kill() -> None:
        try:
            eventually(lambda: launcher.claims, what="it is launched", timeout=120)
            register(log, launcher)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: task.on_kill())
    person = threading.Thread(target=kill)
    person.start()
    try:
        with pytest.raises(AirflowFailException, match="was halted on request"):
            task.execute(context())
    finally:
        person.join()
        signal.signal(signal.SIGTERM, before)


def test_killed_while_it_prepares_a_later_attempt_leaves_its_note(
    watching: Any, answers: Any, log: LogStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group lives. What the process does until SIGKILL takes the note not away."""
    watching(context())
    answers(NoAnswer("the API server is unavailable"))
    task, prepared = totals(deferrable=False), Launching.context

    def killed(*arguments: Any) -> Any:
        task.on_kill()
        return prepared(*arguments)

    monkeypatch.setattr(Launching, "context", killed)
    with pytest.raises(AirflowException, match="was killed before it launched anything"):
        task.execute(context(attempt=2))
    found = status(log, run)
    assert (found.state, found.killed) == (GroupState.RUNNING, TASK)


def test_before_it_knows_its_run_there_is_nothing_to_do(log: LogStore) -> None:
    totals().on_kill()


@pytest.mark.parametrize(
    "operator",
    [
        LogioStopOperator(task_id="t", pipeline=REF),
        LogioScaleOperator(task_id="t", pipeline="pipelines.sales_scaled:sales_scaled", group="hourly", replicas=2),
        LogioScalingController(task_id="t", policy=DS2()),
        LogioSuperviseOperator(task_id="t", pipeline=REF),
        LogioFreshRunOperator(task_id="t", run_uid="0" * 8),
        LogioFinishRunOperator(task_id="t", pipeline=REF),
        LogioRecoverGroupOperator(task_id="t", finding={}),
        LogioStartRunOperator(task_id="t", pipeline=REF, connections={"warehouse": "w"}),
    ],
    ids=lambda operator: type(operator).__name__,
)
def test_what_the_others_have_asked_for_stands(operator: Any, watching: Any, log: LogStore, run: Run) -> None:
    """Each of their steps is in the log or is not: the next attempt, or the supervisor, continues."""
    watching(context())
    before = list(log.groups(run.run_id))
    operator.on_kill()
    assert list(log.groups(run.run_id)) == before
