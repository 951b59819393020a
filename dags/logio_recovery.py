"""Recovers failed groups of every pipeline of this deployment, one run per failure.

The sensor waits in the triggerer for findings, which are failed groups and requests to scale a group. Each finding gets a
task of its own. A pipeline relies on this DAG if it says so (``LogioPipelineGroup(recovery="dag")``). Keep this DAG
unpaused: while it is paused, dead groups are not recovered, and their task logs say why.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG

from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.sensors.failed_group import LogioFailedGroupSensor

# [START dag]
with DAG(
    "logio_recovery",
    schedule="@continuous",
    start_date=datetime(
        2026, 1, 1, tzinfo=UTC
    ),  # without one, the second run gets the first one's date, and never begins
    max_active_runs=1,
    catchup=False,
    tags=["logio"],
    doc_md=__doc__,
) as dag:
    findings = LogioFailedGroupSensor(task_id="failed_groups", give_up_after=timedelta(hours=6))
    LogioRecoverGroupOperator.partial(task_id="recover").expand(finding=findings.output)
# [END dag]
