"""Gives a run up, so that its DAG run can begin anew: trigger it with the uid of the run.

The uid is in the log of the run's task `start_run`, and in `logio status`. The drivers of the run are halted, and
nothing of it can be resumed; its lineage stays. Then clear the DAG run of the pipeline from `start_run` on. Clearing or
retrying the task of this DAG changes nothing: the fresh run has another uid.
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
