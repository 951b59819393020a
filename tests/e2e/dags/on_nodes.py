"""A pipeline whose drivers a standalone master starts, with the properties that the test has put into the environment."""

from __future__ import annotations

import json
import os

from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup

with DAG(
    "on_nodes",
    schedule=None,
    catchup=False,
    params={"transactions": Param("", type="string"), "slow": Param("", type="string")},
):
    LogioPipelineGroup(
        "lost_pipelines:sales",
        conn_id="spark_cluster",
        connections={"warehouse": "warehouse_db"},
        group_id="sales",
        lease_seconds=20,
        launch_seconds=300,
        spark={
            "conf": json.loads(os.environ.get("TESTS_SPARK_CONF", "{}")),
            "env_vars": {"TESTS_SLOW_FILE": "{{ params.slow }}"},
            "executor_memory": "512m",
            "executor_cores": 1,
            "total_executor_cores": 1,
        },
    )
