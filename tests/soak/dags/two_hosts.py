"""The sales pipeline with a group on each of two hosts, by queues, and groups that any of them may run."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.protocol.liveness import RecoveryBudget

PARAMS = {"transactions": Param("", type="string"), "slow": Param("", type="string")}

with DAG("two_hosts", schedule=None, catchup=False, max_active_runs=1, params=PARAMS):
    LogioPipelineGroup(
        "lost_pipelines:sales",
        connections={"warehouse": "warehouse_db"},
        group_id="sales",
        lease_seconds=6,
        launch_seconds=90,
        recovery_budget=RecoveryBudget(recoveries=50),
        spark={"env_vars": {"TESTS_SLOW_FILE": "{{ params.slow }}"}, "retries": 20},
        groups={"hourly": {"queue": "east"}, "totals": {"queue": "west"}},
    )
