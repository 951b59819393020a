"""A pipeline that its own task ``supervise`` looks after, and one that relies on the recovery DAG."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol.liveness import RecoveryBudget

PARAMS = {"transactions": Param("", type="string"), "slow": Param("", type="string")}
SETTINGS: dict[str, Any] = {
    "lease_seconds": 6,
    "launch_seconds": 60,
    "recovery_budget": RecoveryBudget(recoveries=50),
    "spark": {"env_vars": {"TESTS_SLOW_FILE": "{{ params.slow }}"}},
}

with DAG("supervised", schedule=None, catchup=False, max_active_runs=1, params=PARAMS):
    LogioPipelineGroup("lost_pipelines:sales", connections={"warehouse": "warehouse_db"}, group_id="sales", **SETTINGS)

with DAG("relying", schedule=None, catchup=False, max_active_runs=1, params=PARAMS):
    LogioPipelineGroup("lost_pipelines:sums", connections={"warehouse": "sums_db"}, recovery="dag", **SETTINGS)
