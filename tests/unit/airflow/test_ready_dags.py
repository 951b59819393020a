"""The DAGs that come with the package: what they are made of, and that a person is asked before a run is given up."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow import settings
from airflow.models import DagRun
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.tasklog import LogTemplate
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, AirflowSkipException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk.definitions.dag import _run_task
from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG

import logio_controller
import logio_due
import logio_fresh
import logio_recovery
from airflow_logio import Days
from airflow_logio.errors import ConfigurationError
from airflow_logio.operators.fresh_run import LogioFreshRunOperator
from airflow_logio.ready_dags import (
    build_controller_dag,
    build_due_dag,
    build_fresh_dag,
    build_recovery_dag,
    check_nothing_late,
    run_in_words,
)
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.policies import DS2, Schedule
from tests.support.logs import spec
from tests.unit.airflow.support import make_dag_run, run_started

REF = "pipelines.sales:sales"


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


@pytest.mark.parametrize(
    ("file", "dag_id", "tasks"),
    [
        (logio_recovery, "logio_recovery", ["failed_groups", "recover"]),
        (logio_controller, "logio_controller", ["control"]),
        (logio_fresh, "logio_fresh", ["look", "ask", "give_up"]),
        (logio_due, "logio_due", ["look"]),
    ],
)
def test_the_files_only_call_them(file: Any, dag_id: str, tasks: list[str]) -> None:
    dag: DAG = file.dag
    assert (dag.dag_id, list(dag.task_dict), dag.tags, bool(dag.doc_md)) == (dag_id, tasks, {"logio"}, True)
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    assert set(stored.task_dict) == set(tasks)


def test_a_deployment_has_its_own_settings() -> None:
    recovery = build_recovery_dag(
        "ours", logio_conn_id="our_log", pipeline="sales", give_up_after=timedelta(hours=1), tags=["ours"],
        on_recovery_callback=print,
    )  # fmt: skip
    sensor = recovery.get_task("failed_groups")
    assert isinstance(sensor, LogioFailedGroupSensor)
    assert (sensor.pipeline, sensor.logio_conn_id, sensor.give_up_after) == ("sales", "our_log", timedelta(hours=1))
    assert (recovery.dag_id, recovery.tags, recovery.max_active_runs) == ("ours", {"ours"}, 1)
    nights = Schedule({"0 8 * * *": 4})
    controller = build_controller_dag("nights", policy=nights, pipeline="sales", schedule="@hourly")
    assert controller.get_task("control").policy is nights and controller.params["pipeline"] == "sales"
    assert isinstance(build_controller_dag("general").get_task("control").policy, DS2)
    fresh = build_fresh_dag("give_up", logio_conn_id="our_log").get_task("give_up")
    assert isinstance(fresh, LogioFreshRunOperator) and fresh.logio_conn_id == "our_log"


def test_a_run_is_given_up_only_behind_an_approval() -> None:
    dag = build_fresh_dag()
    ask = dag.get_task("ask")
    assert isinstance(ask, ApprovalOperator) and not ask.defaults, "silence is no consent"
    assert (ask.upstream_task_ids, ask.downstream_task_ids) == ({"look"}, {"give_up"})
    assert dag.get_task("give_up").upstream_task_ids == {"ask"}


def test_a_person_is_told_which_run_it_is(log: LogStore, run: Run) -> None:
    text = run_in_words(run.uid[:8], "logio_default")
    assert run.uid in text and "of pipeline sales (DAG logio_sales)" in text
    assert "is running: hourly is new, ingest is new, publish is new, totals is new." in text
    with pytest.raises(ConfigurationError, match="names no run to be given up"):
        run_in_words("x", "logio_default")
    log.supersede(run.run_id)
    with pytest.raises(AirflowSkipException, match="was given up before"):
        run_in_words(run.uid, "logio_default")


# --- days that are late -----------------------------------------------------------------------------------------------


def look(start: datetime, before: datetime | None = None, run_id: str = "scheduled__1") -> None:
    """A run of DAG `logio_due` whose interval begins then, behind one whose interval ended at `before`."""
    previous = None if before is None else SimpleNamespace(data_interval_end=before)
    dag_run = SimpleNamespace(run_id=run_id, data_interval_start=start, data_interval_end=start + timedelta(minutes=10))
    task = SimpleNamespace(get_previous_dagrun=lambda: previous)
    check_nothing_late(None, "logio_default", dag_run=dag_run, ti=task)


def test_each_late_day_fails_one_run_also_behind_a_gap(log: LogStore) -> None:
    """Paused, or down, for hours: what came due meanwhile is told by the run after."""
    due = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=5)
    day = due.date() - timedelta(days=1)
    plain = spec(dag_run="first")
    promise = Days("day", due=due.strftime("%H:%M")).promise()
    log.start_run(replace(plain, partition=day.isoformat(), due=promise))
    look(due - timedelta(minutes=20))
    for start in (due - timedelta(minutes=10), due - timedelta(minutes=5)):
        with pytest.raises(AirflowFailException, match=rf"day {day} of pipeline sales is not there.*has not finished"):
            look(start)
    look(due, before=due)
    with pytest.raises(AirflowFailException, match=str(day)):
        look(due + timedelta(hours=3), before=due - timedelta(minutes=10))
    with pytest.raises(AirflowFailException, match=str(day)):
        look(due + timedelta(hours=3), run_id="manual__1")


@pytest.mark.usefixtures("airflow_database")
def test_a_person_who_triggers_it_is_told_all_that_is_late(log: LogStore, caplog: pytest.LogCaptureFixture) -> None:
    """By Airflow's own task, whose failure calls what the DAG's author has given."""
    day = datetime.now(UTC).date() - timedelta(days=3)
    log.start_run(replace(spec(dag_run="first"), partition=day.isoformat(), due=Days("day", due="00:00").promise()))
    dag = build_due_dag("ours")
    with settings.Session() as session:
        session.add(DagBundleModel(name="dags"))
        session.flush()
        session.add(DagModel(dag_id="ours", bundle_name="dags", fileloc="x", is_paused=False))
        session.add(LogTemplate(id=0, filename="log", elasticsearch_id="log"))
        session.commit()
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "dags", session=session)
        session.commit()
    make_dag_run("ours", "manual__1", None)
    with settings.Session() as session:
        run = session.query(DagRun).filter(DagRun.run_id == "manual__1").one()
        task = run.get_task_instance("look", session=session)
        task.try_number, task.state = 1, "scheduled"
        session.commit()
        _run_task(ti=task, task=dag.get_task("look"))
        assert str(getattr(task.state, "value", task.state)) == "failed", caplog.text
