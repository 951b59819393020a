"""DAGs that wait for a file, before there is a run: one for hours, one for a second in each of its two attempts."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup

for name, retries in (("waits", 0), ("hurries", 1)):
    with DAG(
        f"late_{name}",
        schedule=None,
        catchup=False,
        params={"folder": Param("", type="string")},
        default_args={"retries": retries, "retry_delay": timedelta(seconds=1)},
    ):
        LogioPipelineGroup(
            f"late_pipelines:{name}",
            params={"folder": "{{ params.folder }}"},
            connections={"warehouse": "warehouse_db"},
        )
