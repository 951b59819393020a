"""A DAG whose input is late: what lies in `arrivals` for a task is in `folder` from the second attempt of that task on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup


def arrive(context: Mapping[str, Any]) -> None:
    """Before the task does anything; the second attempt only, whenever that is."""
    task, params = context["ti"], context["params"]
    if task.try_number == 2:
        for late in Path(params["arrivals"], task.task_id.rpartition(".")[2]).glob("*"):
            late.rename(Path(params["folder"], late.name))


with DAG(
    "late_input",
    schedule=None,
    catchup=False,
    params={"folder": Param("", type="string"), "arrivals": Param("", type="string")},
    default_args={"retries": 1, "retry_delay": timedelta(seconds=1), "pre_execute": arrive},
):
    LogioPipelineGroup(
        "late_pipelines:late", params={"folder": "{{ params.folder }}"}, connections={"warehouse": "warehouse_db"}
    )
