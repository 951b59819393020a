"""Gives a run up, so that its DAG run can start over, once a person has approved. The DAG's own page says more."""

from __future__ import annotations

# [START dag]
from airflow_logio.ready_dags import build_fresh_dag

dag = build_fresh_dag()
# [END dag]
