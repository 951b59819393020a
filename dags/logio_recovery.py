"""Recovers failed groups of every pipeline of this deployment, one run per failure. The DAG's own page says more."""

from __future__ import annotations

# [START dag]
from airflow_logio.ready_dags import build_recovery_dag

dag = build_recovery_dag()
# [END dag]
