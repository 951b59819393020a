"""The Controller as a task: what it decides for the runs that continue, what a person asks of it, and its DAG."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_logio.errors import ConfigurationError
from airflow_logio.operators.scaling_controller import LogioScalingController
from airflow_logio.operators.start_run import LogioStartRunOperator
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LaunchRecipe, Load
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.policies import DS2, Policy, Schedule
from logio_controller import dag
from pipelines.sales_scaled import sales_scaled
from tests.support.logs import SOMEBODY
from tests.unit.airflow.support import FakeLauncher, context, write_transactions

REF = "pipelines.sales_scaled:sales_scaled"
ONE, TWO, THREE = "hourly.1", "hourly.2", "hourly.3"


def always(replicas: int) -> Schedule:
    return Schedule({"* * * * *": replicas})


@pytest.fixture(autouse=True)
def only_fake_drivers(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogioScalingController, "make_launcher", lambda self: launcher)


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    """Its first replica is at work."""
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    found = log.find_run(start.execute(context(params=params)))
    for name in (ONE, TWO, THREE):
        log.note_launch(found.run_id, name, LaunchRecipe(spark_conn_id="spark_default"))
    ref = log.register(log.claim(found.run_id, ONE, expected=0, reason="test"), SOMEBODY)
    log.heartbeat(ref, 1, ready=True, rss_bytes=1, load=Load(10.0, 0.5, 0.5, 0.0, 5, 500, 5, 500))
    return found


def control(policy: Policy | None = None, **arguments: Any) -> LogioScalingController:
    given = {"task_id": "control", "policy": policy or DS2(), "look_seconds": 0.01, **arguments}
    return LogioScalingController(**given)


def looked(controller: LogioScalingController) -> list[dict[str, Any]]:
    """Between its two looks it holds no worker slot."""
    with pytest.raises(TaskDeferred) as between:
        controller.execute(context())
    assert (type(between.value.trigger).__name__, between.value.method_name) == ("TimeDeltaTrigger", "decide")
    kwargs = json.loads(json.dumps(between.value.kwargs))
    return copy.copy(controller).decide(context(), {}, **kwargs)


def ready(log: LogStore, launcher: FakeLauncher) -> None:
    """The driver that was launched last registers, and is warm."""
    ref = log.register(launcher.claims[-1], launcher.identity())
    log.heartbeat(ref, 1, ready=True, rss_bytes=1)


def owners(log: LogStore, run: Run) -> set[str | None]:
    return {slot.owner for slot in log.slots(run.run_id, "hourly")}


def test_what_a_policy_wants_is_asked_for_and_carried_out(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    with pytest.raises(TaskDeferred) as waiting:
        looked(control(always(2)))
    assert [claim.group for claim in launcher.claims] == [TWO]
    assert waiting.value.trigger.serialize()[1]["request_id"] == 1
    [request] = log.scalings(run.run_id)
    assert (request.by, request.replicas, request.state) == ("controller", 2, ScalingState.ACCEPTED)
    with pytest.raises(TaskDeferred):
        looked(control(always(3))), "another one carries on what is open, and asks for nothing beside it"
    ready(log, launcher)
    [told] = control(always(2)).resume(context(), {}, **(waiting.value.kwargs or {}))
    assert (told["run"], told["replicas"], told["wanted"], told["request"]) == (run.uid, 1, 2, 1)
    assert told["result"] == "done: 2 replicas of hourly: 8 slots moved"
    assert owners(log, run) == {ONE, TWO}
    assert len(log.scalings(run.run_id)) == 1


def test_a_decision_to_leave_it_is_told_with_its_figures(
    log: LogStore, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    [told] = looked(control(pipeline=sales_scaled, group="hourly"))
    assert (told["replicas"], told["wanted"], told["request"]) == (1, 1, None)
    assert "hourly stays at 1 replica(s): 0.0 records/s arrive and 0 wait" in capsys.readouterr().out
    assert log.scalings(run.run_id) == []


@pytest.mark.parametrize(
    ("arguments", "looked_at"),
    [
        ({}, 1),
        ({"pipeline": "sales_scaled"}, 1),
        ({"pipeline": REF}, 1),
        ({"pipeline": "sales"}, 0),
        ({"group": "hourly"}, 1),
        ({"group": "totals"}, 0),
        ({"pipeline": "", "run_uid": "", "group": "", "replicas": ""}, 1),
    ],
)
def test_which_groups_it_looks_at(log: LogStore, run: Run, arguments: dict[str, Any], looked_at: int) -> None:
    assert len(control(deferrable=False, **arguments).execute(context())) == looked_at
    assert len(control(deferrable=False, **{**arguments, "run_uid": run.uid[:8]}).execute(context())) == looked_at
    with pytest.raises(AirflowFailException, match="no run 'nobody' is in the log"):
        control(**{**arguments, "run_uid": "nobody"}).execute(context())


def test_by_hand(log: LogStore, run: Run, launcher: FakeLauncher) -> None:
    for attempt in (1, 2):  # a retry continues with the same request
        with pytest.raises(TaskDeferred) as waiting:
            control(replicas="2", group="hourly").execute(context(attempt=attempt))
    ready(log, launcher)
    [told] = control(replicas="2").resume(context(), {}, **(waiting.value.kwargs or {}))
    assert told["result"] == "done: 2 replicas of hourly: 8 slots moved"
    [request] = log.scalings(run.run_id)
    assert (request.replicas, request.reason) == (2, "asked for by hand")
    assert request.by.startswith("task control of ")
    with pytest.raises(AirflowFailException, match="cannot have 4 replicas"):
        control(replicas="4", task_id="again").execute(context())
    with pytest.raises(AirflowFailException, match="whole number"):
        control(replicas="many", task_id="again").execute(context())
    not_there = rf"for group 'totals', pipeline 'sales'; there are: group hourly of run .*, uid {run.uid[:8]}"
    with pytest.raises(AirflowFailException, match=not_there):
        control(replicas="2", pipeline="sales", group="totals").execute(context())


def test_by_hand_one_group_has_to_be_named(log: LogStore, run: Run) -> None:
    log.start_run(replace(run.spec, key=replace(run.spec.key, dag_run_id="another")))
    with pytest.raises(AirflowFailException, match=r"2 replica\(s\) of which group\?.*hourly of .*; group hourly of "):
        control(replicas="2").execute(context())


def test_by_hand_it_is_said_when_a_newer_request_came(log: LogStore, run: Run) -> None:
    with pytest.raises(TaskDeferred) as waiting:
        control(replicas=2).execute(context())
    log.request_scaling(run.run_id, "hourly", 1, by="somebody")
    with pytest.raises(AirflowFailException, match="superseded by request 2"):
        control(replicas=2).resume(context(), {}, **(waiting.value.kwargs or {}))


def test_a_run_that_a_process_looks_after_is_left_to_it(log: LogStore, tmp_path: Path) -> None:
    params = {"transactions": str(write_transactions(tmp_path / "transactions.parquet"))}
    start = LogioStartRunOperator(task_id="start_run", pipeline=REF, connections={"warehouse": "warehouse_db"})
    run = log.find_run(start.execute(context(params=params)))
    log.register(log.claim(run.run_id, ONE, expected=0, reason="test"), SOMEBODY)
    [told] = looked(control(always(3)))
    assert told["result"] == "left to the process that started the run"
    assert log.scalings(run.run_id)[0].state is ScalingState.REQUESTED
    assert log.group(run.run_id, TWO).state is GroupState.RETIRED


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"policy": "DS2"}, "policy is 'DS2'"),
        ({"look_seconds": 0}, "look_seconds is 0"),
        ({"timeout": -1}, "timeout is -1"),
        ({"pipeline": sales_scaled, "group": "totals"}, r"no replicated group 'totals', only \['hourly'\]"),
    ],
)
def test_bad_arguments_are_refused_when_the_dag_is_parsed(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        control(**arguments)


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        (dict.fromkeys(("pipeline", "run", "group", "replicas")), ("", "", "", "")),
        ({"pipeline": None, "run": "0123abcd", "group": "hourly", "replicas": 0}, ("", "0123abcd", "hourly", "0")),
    ],
)
def test_its_dag_is_scheduled_and_has_a_form(form: dict[str, Any], arguments: tuple[str, ...]) -> None:
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert (stored.timetable.can_be_scheduled, stored.max_active_runs, stored.catchup) == (True, 1, False)
    assert set(stored.params) == set(form)
    task = copy.copy(dag.get_task("control"))
    assert isinstance(task.policy, DS2)
    task.render_template_fields({"params": form})
    assert (task.pipeline, task.run_uid, task.group, task.replicas) == arguments
