"""Fails once for each day, or hour, that is not there when it is due. The DAG's own page says more."""

from __future__ import annotations

# [START dag]
from airflow_logio.ready_dags import build_due_dag

dag = build_due_dag()
# [END dag]
