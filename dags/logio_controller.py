"""Scales the replicated groups of all active runs: every minute by policy, and on request. The DAG's own page says more.

To give a pipeline its own policy, copy this file, name the pipeline, and pause this DAG: two policies for one group
contradict each other. Examples are ``Threshold(up_lag_seconds=10)`` and ``Schedule({"0 8 * * 1-5": 4, "0 20 * * *": 0})``.
"""

from __future__ import annotations

# [START dag]
from airflow_logio.ready_dags import build_controller_dag
from airflow_logio.supervision.policies import DS2

dag = build_controller_dag(policy=DS2())
# [END dag]
