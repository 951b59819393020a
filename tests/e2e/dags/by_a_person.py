"""A pipeline with one run at a time, one whose days are isolated, and one whose recoveries have deadlines."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from airflow.providers.standard.operators.trigger_dagrun import TriggerDagRunOperator
from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor

PARAMS = {"transactions": Param("", type="string"), "folder": Param("", type="string")}
# Drivers run the code that Airflow's components run.
VARIABLES = {"TESTS_FOLDER": "{{ params.folder }}", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
SETTINGS: dict[str, Any] = {"group_id": "sums", "spark": {"env_vars": VARIABLES}}
# They have days for backfills, and none that Airflow would begin by itself.
DAILY: dict[str, Any] = {
    "schedule": "@daily",
    "start_date": datetime(2024, 1, 1, tzinfo=UTC),
    "end_date": datetime(2024, 1, 3, tzinfo=UTC),
    "catchup": False,
    "params": PARAMS,
}

with DAG("one_run", **DAILY):
    LogioPipelineGroup("by_a_person_pipelines:one", connections={"warehouse": "sums_one"}, **SETTINGS)

with DAG("isolated_days", **DAILY):
    LogioPipelineGroup(
        "by_a_person_pipelines:days",
        connections={"warehouse": "sums_{{ ds_nodash }}"},
        concurrent_runs="isolated",
        **SETTINGS,
    )

with DAG("counted", schedule=None, catchup=False, params=PARAMS):
    LogioPipelineGroup(
        "by_a_person_pipelines:counted", connections={"warehouse": "sums_counted"}, recovery="dag", **SETTINGS
    )

with DAG(
    "recovery_with_deadlines",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    catchup=False,
):
    findings = LogioFailedGroupSensor(task_id="failed_groups")
    recovered = LogioRecoverGroupOperator.partial(task_id="recover").expand(finding=findings.output)
    for dag_id in ("logio_recovered", "hurried"):
        TriggerDagRunOperator.partial(task_id=dag_id, trigger_dag_id=dag_id).expand(conf=recovered.output)
