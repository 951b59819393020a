"""A deadline on recoveries: "recovered within 60 s", or somebody is told.

A run of this DAG waits until one recovery has made its first commit; Airflow's deadline on the run calls whoever is to be
called. Replace `page`, unpause this DAG, and let `logio_recovery` trigger it for each group that it has launched again:

    recovered = LogioRecoverGroupOperator.partial(task_id="recover").expand(failed=failed.output)
    TriggerDagRunOperator.partial(task_id="deadline", trigger_dag_id="logio_recovered").expand(conf=recovered.output)

It is a DAG of its own because recovery waits for nothing: a driver that is slow to come up holds up no other recovery.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, AsyncCallback, DeadlineAlert, DeadlineReference  # type: ignore[attr-defined]

from airflow_logio.sensors.recovered_group import LogioRecoveredGroupSensor


async def page(**context: Any) -> None:
    """Runs in the triggerer."""
    logging.getLogger(__name__).error("A group is not recovered within 60 s: %s", context.get("dag_run"))


with DAG(
    "logio_recovered",
    schedule=None,
    catchup=False,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=timedelta(seconds=60), callback=AsyncCallback(page)
    ),
    tags=["logio"],
    doc_md=__doc__,
):
    LogioRecoveredGroupSensor(task_id="recovered", recovery="{{ dag_run.conf }}")
