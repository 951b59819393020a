"""Sensor, recovery task and supervising task on a real log, with drivers that the test speaks for."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowException, AirflowFailException
from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.serialization.serialized_objects import BaseSerialization, DagSerialization

from airflow_logio.errors import ConfigurationError, LogUnavailable, PipelineDefinitionError
from airflow_logio.operators._task.launches import Launching
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.states import GroupState
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.sensors.recovered_group import LogioRecoveredGroupSensor
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.sql.store import SqlLogStore
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from tests.support.airflow_connections import connection
from tests.support.logs import SOMEBODY, finish
from tests.support.waiting import eventually
from tests.unit.airflow.support import (
    DAG_ID,
    RUN_ID,
    FakeLauncher,
    context,
    deferred,
    fired,
    register,
    run_started,
    write_transactions,
)

REF = "pipelines.sales:sales"
PARAMS = {"transactions": ""}
WAREHOUSE = {"warehouse": "warehouse_db"}


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


@pytest.fixture(autouse=True)
def only_fake_drivers(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    for operator in (LogioSparkOperator, LogioRecoverGroupOperator, LogioSuperviseOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)


@pytest.fixture
def totals(run: Run, log: LogStore, launcher: FakeLauncher) -> GroupStatus:
    """The group's own task has launched it, with Spark arguments of its own, and its driver runs."""
    task = LogioSparkOperator(
        task_id="totals", pipeline=REF, conf={"spark.ui.enabled": False}, driver_memory="700m", env_vars={"A": 1}
    )
    deferred(lambda: task.execute(context()))
    register(log, launcher)
    return status(log, run)


def status(log: LogStore, run: Run, group: str = "totals") -> GroupStatus:
    return log.group(run.run_id, group)


def failure(trigger: Any, launcher: FakeLauncher) -> dict[str, Any]:
    [failed] = fired(trigger, launcher.kill)["findings"]
    found: dict[str, Any] = failed
    return found


@pytest.fixture
def trigger(run: Run) -> LogioFailedGroupTrigger:
    return LogioFailedGroupTrigger(
        logio_conn_id="logio_default", supervisor="a test", run_uid=run.uid, poll_interval=0.01
    )


# --- finding ------------------------------------------------------------------------------------------------------------


def test_what_a_sensor_returns(log: LogStore, run: Run, totals: GroupStatus, launcher: FakeLauncher) -> None:
    sensor = LogioFailedGroupSensor(task_id="failed_groups", pipeline="sales", poke_interval=0.01)
    waiting = deferred(lambda: sensor.execute(context()))
    event = fired(waiting.trigger, launcher.kill)
    [failed] = sensor.resume(context(), event)
    died = status(log, run)
    assert failed == {
        "run_uid": run.uid,
        "pipeline": "sales",
        "dag_run_id": run.spec.key.dag_run_id,
        "group": "totals",
        "incarnation": totals.incarnation,
        "cause": died.error,
        "detected_at": died.since,
    }
    assert died.state is GroupState.DEAD and "has ended without saying so" in failed["cause"]


def test_a_supervisor_is_seen_to_look(log: LogStore, trigger: LogioFailedGroupTrigger, run: Run) -> None:
    async def look() -> None:
        looking = asyncio.ensure_future(anext(aiter(trigger.run())))
        await asyncio.to_thread(eventually, log.supervisors, what="it is seen to look")
        looking.cancel()
        await trigger.cleanup()

    asyncio.run(look())
    [seen] = log.supervisors()
    assert (seen.name, seen.run_uid, seen.pipeline) == ("a test", run.uid, None)
    assert 0 <= seen.age_seconds < 60 and seen.covers(run)


def test_it_waits_no_longer_than_it_is_told(run: Run, totals: GroupStatus) -> None:
    sensor = LogioFailedGroupSensor(task_id="s", poke_interval=0.01, give_up_after=timedelta(seconds=0.05))
    waiting = deferred(lambda: sensor.execute(context()))
    assert sensor.resume(context(), fired(waiting.trigger)) == []


@pytest.mark.usefixtures("totals")
def test_a_log_that_is_away_says_nothing(
    trigger: LogioFailedGroupTrigger, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = SqlLogStore.sight, list[int]()

    def away(*arguments: Any, **named: Any) -> Any:
        asked.append(1)
        if len(asked) < 10:
            raise LogUnavailable("away")
        return real(*arguments, **named)

    launcher.kill()
    monkeypatch.setattr(SqlLogStore, "sight", away)
    assert len(fired(trigger)["findings"]) == 1
    assert len(asked) >= 10


def test_a_trigger_that_cannot_look_says_why(trigger: LogioFailedGroupTrigger) -> None:
    trigger.logio_conn_id = "nowhere"
    event = fired(trigger)
    assert "nowhere" in event["error"]
    with pytest.raises(AirflowException, match="nowhere") as caught:
        LogioFailedGroupSensor(task_id="s").resume(context(), event)
    assert not isinstance(caught.value, AirflowFailException), "another attempt may help"


def test_the_trigger_survives_serialization(trigger: LogioFailedGroupTrigger) -> None:
    path, arguments = trigger.serialize()
    assert path == f"{LogioFailedGroupTrigger.__module__}.{LogioFailedGroupTrigger.__qualname__}"
    assert "sqlite" not in json.dumps(arguments), "a connection id, never a URL"
    stored = BaseSerialization.deserialize(BaseSerialization.serialize(arguments))
    assert LogioFailedGroupTrigger(**stored).serialize() == (path, arguments)


# --- recovering ---------------------------------------------------------------------------------------------------------


def test_it_is_launched_as_its_own_task_launched_it(
    log: LogStore, run: Run, totals: GroupStatus, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher
) -> None:
    told: list[Any] = []
    failed = failure(trigger, launcher)
    task = LogioRecoverGroupOperator(
        task_id="recover", finding=failed, on_recovery_callback=lambda context: told.append(context["recovery"])
    )
    recovery = task.execute(context())
    (before, was), (claim, launch) = launcher.launched
    first, settings, conf = was.config(before), was.settings, was.conf
    second, again, conf_again = launch.config(claim), launch.settings, launch.conf
    assert (settings, conf) == (again, conf_again)
    assert (conf["spark.driver.memory"], settings.env_vars) == ("700m", {"A": "1"})
    assert (first.connections, first.module, first.log_url) == (second.connections, second.module, second.log_url)
    assert claim.incarnation == 2 and status(log, run).state is GroupState.RESTARTED
    assert (recovery["outcome"], recovery["launched_incarnation"]) == ("launched", 2)
    assert failed["detected_at"] <= recovery["fenced_at"] <= recovery["launched_at"]
    assert told == [recovery]
    assert json.loads(json.dumps(recovery)) == recovery


def test_two_recoveries_of_one_failure(
    log: LogStore, run: Run, totals: GroupStatus, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher
) -> None:
    failed = failure(trigger, launcher)
    outcomes = [LogioRecoverGroupOperator(task_id="r", finding=failed).execute(context())["outcome"] for _ in range(2)]
    assert outcomes == ["launched", "not needed"]
    assert len(launcher.claims) == 2 and status(log, run).incarnation == 2


def test_a_spent_budget_parks_with_the_causes(
    log: LogStore, run: Run, totals: GroupStatus, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher
) -> None:
    budget = RecoveryBudget().recoveries
    for _ in range(budget):
        LogioRecoverGroupOperator(task_id="r", finding=failure(trigger, launcher)).execute(context())
        register(log, launcher)
    told: list[Any] = []
    last = LogioRecoverGroupOperator(
        task_id="r", finding=failure(trigger, launcher), on_recovery_callback=[told.append, told.append]
    )
    with pytest.raises(AirflowFailException, match=f"recovered {budget} times"):
        last.execute(context())
    parked = status(log, run)
    assert parked.state is GroupState.PARKED and str(parked.error).count("has ended without saying so") >= budget
    assert [one["recovery"]["outcome"] for one in told] == ["parked", "parked"]


def test_what_cannot_be_launched_is_parked_rather_than_tried_for_ever(
    log: LogStore,
    run: Run,
    totals: GroupStatus,
    trigger: LogioFailedGroupTrigger,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = failure(trigger, launcher)
    monkeypatch.delenv("AIRFLOW_CONN_WAREHOUSE_DB")
    with pytest.raises(AirflowFailException, match="warehouse_db"):
        LogioRecoverGroupOperator(task_id="r", finding=failed).execute(context())
    parked = status(log, run)
    assert parked.state is GroupState.PARKED
    assert "has ended without saying so" in str(parked.error) and "warehouse_db" in str(parked.error)
    assert len(launcher.claims) == 1


def test_what_cannot_be_launched_here_is_not_parked_if_somebody_else_has_launched_it(
    log: LogStore,
    run: Run,
    totals: GroupStatus,
    trigger: LogioFailedGroupTrigger,
    launcher: FakeLauncher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = failure(trigger, launcher)

    def while_another_recovers(*_: object, **__: object) -> None:
        claim = log.claim(run.run_id, "totals", expected=1, reason="another supervisor")
        launcher.launch(claim)
        register(log, launcher)
        raise ConfigurationError("this worker has no such connection")

    monkeypatch.setattr(Launching, "context", while_another_recovers)
    recovery = LogioRecoverGroupOperator(task_id="r", finding=failed).execute(context())
    assert recovery["outcome"] == "not needed"
    assert (status(log, run).state, status(log, run).incarnation) == (GroupState.RUNNING, 2)


def test_a_group_that_nobody_said_how_to_launch(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    claim = log.claim(run.run_id, "totals", expected=0, reason="test")
    launcher.launch(claim)
    ref = log.register(claim, launcher.identity())
    log.declare_dead(ref, "test")
    failed = {
        "run_uid": run.uid,
        "pipeline": "sales",
        "dag_run_id": "x",
        "group": "totals",
        "incarnation": 1,
        "cause": "test",
        "detected_at": 0.0,
    }
    with pytest.raises(AirflowFailException, match="logio retry"):
        LogioRecoverGroupOperator(task_id="r", finding=failed).execute(context())


@pytest.mark.parametrize("wrong", [None, {}, {"group": "totals"}, "totals", [1]])
def test_something_else_than_a_failure(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="as LogioFailedGroupSensor returns it"):
        LogioRecoverGroupOperator(task_id="r", finding=wrong).execute(context())


def test_a_callback_that_fails_harms_nobody(
    totals: GroupStatus, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(context: Any) -> None:
        raise KeyError("pager")

    told: list[Any] = []
    task = LogioRecoverGroupOperator(
        task_id="r", finding=failure(trigger, launcher), on_recovery_callback=[broken, told.append]
    )
    assert task.execute(context())["outcome"] == "launched"
    assert len(told) == 1 and "on_recovery_callback broken failed" in caplog.text


def test_no_secret_goes_from_task_to_task_through_the_log(
    log: LogStore, run: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = connection("postgres", host="db", schema="w", login="anna", password="p@ss:w/ord%")
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DB", fields)
    deferred(lambda: LogioSparkOperator(task_id="totals", pipeline=REF).execute(context()))
    recipe = str(log.launch_recipe(run.run_id, "totals"))
    assert "p@ss" not in recipe and "p%40ss" not in recipe and "anna" not in recipe


# --- supervising --------------------------------------------------------------------------------------------------------


def supervisor(**arguments: Any) -> LogioSuperviseOperator:
    return LogioSuperviseOperator(task_id="supervise", pipeline=REF, poll_interval=0.01, **arguments)


def test_a_supervisor_recovers_until_all_groups_have_ended(
    log: LogStore, run: Run, totals: GroupStatus, launcher: FakeLauncher
) -> None:
    told: list[Any] = []
    task = supervisor(on_recovery_callback=told.append)
    waiting = deferred(lambda: task.execute(context()))
    assert waiting.method_name == "resume" and waiting.timeout is None
    event = fired(waiting.trigger, launcher.kill)
    waiting = deferred(lambda: task.resume(context(), event))
    assert [claim.incarnation for claim in launcher.claims] == [1, 2]
    assert [one["recovery"]["launched_incarnation"] for one in told] == [2]
    finish(log, register(log, launcher))

    def end_the_others() -> None:
        for group in run.spec.groups:
            if group != "totals":
                deferred(lambda group=group: LogioSparkOperator(task_id=group, pipeline=REF).execute(context()))  # type: ignore[misc]
                finish(log, register(log, launcher))

    event = fired(waiting.trigger, end_the_others)
    assert event == {"findings": [], "notices": [], "seen": {"recovery": {"totals": 2}}}
    summary = task.resume(context(), event)
    assert summary == {
        "run": run.uid,
        "states": dict.fromkeys(run.spec.groups, "finished"),
        "recoveries": {"totals": 1},
    }
    assert task.execute(context()) == summary, "a clear of it does nothing again"


class Answers:
    """What Airflow says of the tasks of the DAG run, or raises."""

    def __init__(self) -> None:
        self.states: dict[str, str | None] = {"sales.start_run": "success", "sales.totals": None}
        self.error: Exception | None = None
        self.asked: list[set[str]] = []

    def get(self, *, task_ids: list[str], **_: Any) -> dict[str, dict[str, str | None]]:
        self.asked.append(set(task_ids))
        if self.error is not None:
            raise self.error
        return {RUN_ID: {name: state for name, state in self.states.items() if name in task_ids}}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    answers = Answers()
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(answers.get))
    monkeypatch.setattr("airflow_logio.operators._task.run_supervision.SETTLING_SECONDS", 0.2)
    return answers


def supervisor_in_dag(run: Run, **arguments: Any) -> Any:
    with DAG(DAG_ID, schedule=None, params=PARAMS, **arguments) as dag:
        LogioPipelineGroup(REF, connections=WAREHOUSE, on_parked_callback=print)
    task: Any = dag.get_task("sales.supervise")
    task.run_uid, task.poll_interval = run.uid, 0.01
    return task


def all_stopped(log: LogStore, run: Run, cause: str = "KeyError") -> None:
    for number, name in enumerate(run.spec.groups):
        ref = log.register(log.claim(run.run_id, name, expected=0, reason="test"), SOMEBODY)
        assert log.park(ref, cause) if number else log.halted(ref)


def rests(waiting: Any) -> float | None:
    assert (waiting.method_name, type(waiting.trigger)) == ("resume", LogioFailedGroupTrigger)
    rest: float | None = waiting.trigger.rest_seconds
    return rest


@pytest.mark.parametrize("ended", ["failed", "success", "skipped", "upstream_failed"])
def test_cleared_with_a_group_it_does_not_end_before_that_is_launched(
    ended: str, log: LogStore, run: Run, answers: Answers
) -> None:
    """Both begin at once, and it may be the faster: then every group has stopped, and the run would have no supervisor."""
    all_stopped(log, run)
    task = supervisor_in_dag(run)
    for state in (None, "queued", "running", "deferred", "up_for_retry"):
        answers.states["sales.totals"] = state
        waiting = deferred(lambda: task.execute(context()))
        assert rests(waiting) == 0.2, state
    assert "parked" in waiting.trigger.seen, "what it has told it does not tell again"

    def launch_and_die() -> None:
        claim = log.claim(run.run_id, "totals", expected=1, reason="cleared", by_user=True)
        assert log.declare_dead(log.register(claim, SOMEBODY), "killed")

    waiting.trigger.rest_seconds = 60.0  # however slow the machine is
    event = fired(waiting.trigger, launch_and_die)
    assert [one["cause"] for one in event["findings"]] == ["killed"], "it looks after the group while it rests"
    deferred(lambda: task.resume(context(), event))
    claim = log.claim(run.run_id, "totals", expected=2, reason="cleared", by_user=True)
    assert rests(deferred(lambda: task.resume(context(), {"findings": []}))) is None, "a group is under way"
    assert log.park(GroupRef(run.run_id, "totals", claim.incarnation), "KeyError")
    answers.states["sales.totals"] = ended
    assert set(task.resume(context(), {"findings": []})["states"].values()) == {"halted", "parked"}


@pytest.mark.parametrize("fail_fast", [False, True], ids=["behind the groups", "beside the groups"])
def test_it_stays_while_the_only_group_waits_for_its_input(
    fail_fast: bool, log: LogStore, run: Run, answers: Answers
) -> None:
    """The retries of the group's task launch it again: then there must be a supervisor. It asks ever less often."""
    all_stopped(log, run, "InputMissing: pipeline 'sales', source 'read': [PATH_NOT_FOUND] /data/today")
    task = supervisor_in_dag(run, fail_fast=fail_fast)
    answers.states["sales.totals"] = "up_for_retry"
    waiting = deferred(lambda: task.execute(context()))
    asked = []
    for _ in range(3):
        asked.append(rests(waiting))
        event = fired(waiting.trigger) if len(asked) == 1 else {"findings": [], "rested": asked[-1]}
        assert event["findings"] == [] and event["rested"] == asked[-1]
        waiting = deferred(lambda event=event: task.resume(context(), event))  # type: ignore[misc]
    assert asked == [0.2, 0.4, 0.8]
    waiting = deferred(lambda: task.resume(context(), {"findings": [], "rested": 50.0}))
    assert rests(waiting) == 60.0, "the longest"
    answers.states["sales.totals"] = "failed"
    assert "parked" in task.resume(context(), {"findings": []})["states"].values(), "its last try has failed"


def test_no_answer_of_airflow_is_no_reason_to_end(
    log: LogStore, run: Run, answers: Answers, caplog: pytest.LogCaptureFixture
) -> None:
    all_stopped(log, run)
    answers.error = AirflowRuntimeError(ErrorResponse(detail={"message": "the API server restarts"}))
    task = supervisor_in_dag(run)
    for event in ({}, {"findings": [], "rested": 0.2}, {"findings": [], "rested": 60.0}):
        assert rests(deferred(lambda event=event: task.resume(context(), event))) is not None  # type: ignore[misc]
    assert "Airflow does not say" in caplog.text and "the API server restarts" in caplog.text
    answers.error, answers.states = None, {"sales.totals": "failed"}
    assert set(task.execute(context())["states"].values()) == {"halted", "parked"}


def test_no_answer_of_airflow_is_no_reason_to_end_on_a_worker(log: LogStore, run: Run, answers: Answers) -> None:
    all_stopped(log, run)
    answers.error = TimeoutError("no answer")
    task = supervisor_in_dag(run)
    task.deferrable = False

    def then() -> None:
        eventually(lambda: len(answers.asked) > 2, what="it asks again")
        answers.states, answers.error = {}, None

    later = threading.Thread(target=then)
    later.start()
    assert "parked" in task.execute(context())["states"].values()
    later.join()


def test_an_airflow_that_cannot_be_asked_fails_the_attempt(log: LogStore, run: Run, answers: Answers) -> None:
    """Another question would find the same, so the task would neither end nor say why."""
    all_stopped(log, run)
    answers.error = AttributeError("RuntimeTaskInstance has no get_task_states")
    with pytest.raises(AttributeError, match="no get_task_states"):
        supervisor_in_dag(run).execute(context())


def test_on_a_worker_it_holds_a_slot_until_all_groups_have_ended(
    log: LogStore, run: Run, totals: GroupStatus, launcher: FakeLauncher
) -> None:
    """Without a triggerer."""
    launcher.kill()
    noted: list[str] = []

    def then() -> None:
        eventually(lambda: len(launcher.claims) == 2, what="it is recovered")
        noted.extend(one.name for one in log.supervisors())
        finish(log, register(log, launcher))
        for group in run.spec.groups:
            if group != "totals":
                claim = log.claim(run.run_id, group, expected=0, reason="test")
                finish(log, log.register(claim, launcher.identity()))

    drivers = threading.Thread(target=then)
    drivers.start()
    task = LogioSuperviseOperator(task_id="supervise", pipeline=REF, deferrable=False, poll_interval=0.01)
    assert task.execute(context())["recoveries"] == {"totals": 1}
    drivers.join()
    assert [name.startswith("task supervise of ") for name in noted] == [True]
    assert list(log.supervisors()) == [], "who retries a group now must not count on it"


def test_a_group_that_is_parked_does_not_keep_the_others_from_being_supervised(
    log: LogStore, run: Run, totals: GroupStatus, launcher: FakeLauncher
) -> None:
    assert log.park(GroupRef(run.run_id, "totals", 1), "KeyError: 'department'")
    waiting = deferred(lambda: supervisor().execute(context()))
    assert isinstance(waiting.trigger, LogioFailedGroupTrigger)


# --- in DAGs ------------------------------------------------------------------------------------------------------------


def test_a_pipeline_that_relies_on_a_recovery_dag_has_no_supervising_task(log: LogStore, tmp_path: Path) -> None:
    with DAG(DAG_ID, schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(REF, connections=WAREHOUSE, recovery="dag")
    assert "sales.supervise" not in dag.task_dict
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}
    uid = dag.get_task("sales.start_run").execute(context(params=params))
    assert log.find_run(uid).spec.supervision.value == "dag"


def test_nobody_else_recovers() -> None:
    with (
        DAG("d", schedule=None, params=PARAMS),
        pytest.raises(PipelineDefinitionError, match="recovery is 'none'"),
    ):
        LogioPipelineGroup(REF, connections=WAREHOUSE, recovery="none")


def test_a_callback_must_be_callable() -> None:
    with DAG("d", schedule=None, params=PARAMS), pytest.raises(ValueError, match="cannot be called"):
        LogioPipelineGroup(REF, connections=WAREHOUSE, on_recovery_callback="page me")  # type: ignore[arg-type]


def test_tasks_with_callbacks_survive_serialization() -> None:
    with DAG("d", schedule=None, params=PARAMS) as dag:
        LogioPipelineGroup(REF, connections=WAREHOUSE, on_recovery_callback=print)
        sensor = LogioFailedGroupSensor(task_id="failed_groups", give_up_after=timedelta(hours=1))
        LogioRecoverGroupOperator.partial(task_id="recover", on_recovery_callback=print).expand(finding=sensor.output)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(stored.task_dict) == set(dag.task_dict)


@pytest.mark.parametrize("wrong", [{"poke_interval": 0}, {"give_up_after": timedelta(0)}])
def test_nonsensical_times_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="above 0 seconds"):
        LogioFailedGroupSensor(task_id="s", **wrong)


# --- recovered in time --------------------------------------------------------------------------------------------------


def recovered(totals: GroupStatus, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher) -> tuple[Any, Any]:
    """(the sensor that waits for the recovery, its deferral)"""
    recovery = LogioRecoverGroupOperator(task_id="r", finding=failure(trigger, launcher)).execute(context())
    sensor = LogioRecoveredGroupSensor(task_id="recovered", recovery=recovery, poke_interval=0.01)
    return sensor, deferred(lambda: sensor.execute(context()))


def test_it_waits_for_the_first_commit(
    log: LogStore, totals: GroupStatus, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher
) -> None:
    sensor, waiting = recovered(totals, trigger, launcher)
    path, arguments = waiting.trigger.serialize()
    assert path == f"{type(waiting.trigger).__module__}.{type(waiting.trigger).__qualname__}"
    assert type(waiting.trigger)(**arguments).serialize() == (path, arguments)
    event = fired(waiting.trigger, lambda: finish(log, register(log, launcher)))
    assert event["state"] == "recovered"
    assert 0 <= sensor.resume(context(), event) == event["seconds"] < 60


def test_a_recovery_that_fails(
    log: LogStore, run: Run, totals: GroupStatus, trigger: LogioFailedGroupTrigger, launcher: FakeLauncher
) -> None:
    sensor, waiting = recovered(totals, trigger, launcher)

    def park() -> None:
        assert log.park(GroupRef(run.run_id, "totals", 2), "no memory")

    event = fired(waiting.trigger, park)
    with pytest.raises(AirflowFailException, match="parked: no memory"):
        sensor.resume(context(), event)


def test_a_recovery_that_was_not_needed_is_over() -> None:
    recovery = {"run_uid": "x", "group": "g", "launched_incarnation": None, "why": "somebody else"}
    assert LogioRecoveredGroupSensor(task_id="s", recovery=recovery).execute(context()) is None


def test_something_else_than_a_recovery() -> None:
    with pytest.raises(ConfigurationError, match="launched_incarnation missing"):
        LogioRecoveredGroupSensor(task_id="s", recovery={"run_uid": "x", "group": "g"}).execute(context())


def test_a_recovery_that_cannot_be_watched(trigger: LogioFailedGroupTrigger) -> None:
    recovery = {"run_uid": "nope", "group": "g", "launched_incarnation": 2}
    sensor = LogioRecoveredGroupSensor(task_id="s", recovery=recovery, poke_interval=0.01)
    waiting = deferred(lambda: sensor.execute(context()))
    with pytest.raises(AirflowException, match="UnknownRun"):
        sensor.resume(context(), fired(waiting.trigger))
