"""DAGs that scale a group of another DAG's run by the clock."""

from __future__ import annotations

# [START dag]
from datetime import UTC, datetime

from airflow.sdk import DAG

from airflow_logio.operators.scale import LogioScaleOperator

HOURS = {"shops_open": ("0 8 * * 1-6", 3), "shops_close": ("0 20 * * 1-6", 1)}

for dag_id, (cron, replicas) in HOURS.items():
    with DAG(dag_id, schedule=cron, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False):
        LogioScaleOperator(
            task_id="scale",
            pipeline="pipelines.sales_scaled:sales_scaled",
            external_dag_id="logio_sales_scaled",
            group="hourly",
            replicas=replicas,
            reason="opening hours",
        )
# [END dag]
