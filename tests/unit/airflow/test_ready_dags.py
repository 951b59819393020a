"""The DAGs that come with the package: what they are made of, and that a person is asked before a run is given up."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowSkipException
from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.serialization.serialized_objects import DagSerialization

import logio_controller
import logio_fresh
import logio_recovery
from airflow_logio.errors import ConfigurationError
from airflow_logio.operators.fresh_run import LogioFreshRunOperator
from airflow_logio.ready_dags import build_controller_dag, build_fresh_dag, build_recovery_dag, run_in_words
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision.policies import DS2, Schedule
from tests.unit.airflow.support import run_started

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
