"""Sets a deadline on recoveries: if a group is not recovered within 60 s, a person is paged.

A run of this DAG waits until one recovery has made its first commit. If that takes too long, Airflow's deadline on the run
calls `page`. Replace `page`, unpause this DAG, and let `logio_recovery` trigger it for each group that it has relaunched:

    recovered = LogioRecoverGroupOperator.partial(task_id="recover").expand(finding=findings.output)
    TriggerDagRunOperator.partial(task_id="deadline", trigger_dag_id="logio_recovered").expand(conf=recovered.output)

This is a separate DAG because recovery waits for nothing: a slow start of one driver must not delay other recoveries.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, DeadlineAlert, DeadlineReference, SyncCallback  # type: ignore[attr-defined]

from airflow_logio.sensors.recovered_group import LogioRecoveredGroupSensor

WITHIN = timedelta(seconds=60)


def page(context: Mapping[str, Any]) -> None:
    """Runs on a worker; an `AsyncCallback` would run in the triggerer, which cannot import a function of a DAG file."""
    failed = context["dag_run"]["conf"]
    logging.getLogger(__name__).error(
        "Group %s of pipeline %s is not recovered within %s: %s",
        failed["group"],
        failed["pipeline"],
        WITHIN,
        failed["cause"],
    )


with DAG(
    "logio_recovered",
    schedule=None,
    catchup=False,
    deadline=DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=WITHIN, callback=SyncCallback(page)),
    tags=["logio"],
    doc_md=__doc__,
):
    LogioRecoveredGroupSensor(task_id="recovered", recovery="{{ dag_run.conf }}")
