"""The parts of Airflow that we use and that are not public: one place to mend when Airflow moves them."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import conf
from airflow.triggers.base import BaseTrigger, TriggerEvent

__all__ = [
    "BaseTrigger",
    "TriggerEvent",
    "aget_task_state",
    "pods_end_with_their_task",
    "poll_interval",
    "work_dir",
]

_ENDING_EXECUTORS = ("KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AwsLambdaExecutor")


def poll_interval() -> float:
    """Option ``[logio] poll_interval``."""
    return float(conf.getfloat("logio", "poll_interval", fallback=1.0))


def work_dir() -> Path:
    """Option ``[logio] work_dir``; the folder ``logio`` of AIRFLOW_HOME if it is empty."""
    configured = conf.get("logio", "work_dir", fallback="")
    if configured:
        return Path(configured).expanduser()
    return Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser() / "logio"


def pods_end_with_their_task(executor: str | None) -> str | None:
    """The name of the executor if what a task starts ends with the task; `executor` is the task's own, if it has one.

    A pod of the Kubernetes executor is told that it runs another executor inside; an environment variable tells.
    """
    if os.environ.get("AIRFLOW_IS_K8S_EXECUTOR_POD"):
        return "KubernetesExecutor"
    configured = executor or conf.get("core", "executor", fallback="").split(",")[0]
    name = configured.strip().rpartition(".")[2].rpartition(":")[2]
    return name if name in _ENDING_EXECUTORS else None


_asking = ThreadPoolExecutor(1, thread_name_prefix="logio asks Airflow")
"""Airflow answers one question at a time, the first one late. Those that wait must not fill the event loop's own executor:
Airflow's logging needs it, and so do other triggers."""


async def aget_task_state(task_instance: Any) -> str | None:
    """State of a task instance as the scheduler has it, for code in the triggerer; ``removed`` if it is gone.

    None means no state: a cleared task that waits for its next attempt.
    """
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    task_id, run_id = task_instance.task_id, task_instance.run_id
    map_index = task_instance.map_index if task_instance.map_index >= 0 else None

    def ask() -> Any:
        return RuntimeTaskInstance.get_task_states(
            dag_id=task_instance.dag_id, task_ids=[task_id], run_ids=[run_id], map_index=map_index
        )

    states = (await asyncio.get_running_loop().run_in_executor(_asking, ask)).get(run_id, {})
    key = task_id if map_index is None else f"{task_id}_{map_index}"
    if key not in states:
        return "removed"
    return None if states[key] is None else str(getattr(states[key], "value", states[key]))
