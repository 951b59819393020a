"""Gives a run up, so that its DAG run can start over. Trigger this DAG with the uid of the run.

You find the uid in the log of the run's task `start_run`, and in `logio status`. This DAG halts the drivers of the run.
Nothing of the run can be resumed afterwards; its lineage stays. Then clear the pipeline's DAG run from `start_run` on.
Clearing or retrying the task of this DAG is harmless: the fresh run has another uid.
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_logio.operators.fresh_run import LogioFreshRunOperator

with DAG(
    "logio_fresh",
    schedule=None,
    catchup=False,
    params={"run": Param(None, type="string", minLength=8, description="uid of the run to give up")},
    tags=["logio"],
    doc_md=__doc__,
):
    LogioFreshRunOperator(task_id="give_up", run_uid="{{ params.run }}")
