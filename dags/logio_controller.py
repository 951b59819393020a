"""Scales the replicated groups of all active runs: every minute by policy, and at once when a person asks.

Unpause it, and each replicated group of each run gets as many replicas as what arrives and what waits needs, within the
bounds that its author gives. The task log explains every decision with its figures; `logio status` shows every change.

To scale a group by hand, trigger this DAG and fill in *replicas*, and as much of *pipeline*, *run* and *group* as it takes to
name one group: an empty field means any. A policy may change the number again a little later. To keep yours, pause this DAG
afterwards (Airflow starts nothing of a paused DAG), or leave it paused and ask with `logio scale`. With only a run or a
pipeline, and no replicas, the policy looks at that one only.

Copy this file to give a pipeline a policy of its own, such as ``Threshold(up_lag_seconds=10)`` or
``Schedule({"0 8 * * 1-5": 4, "0 20 * * *": 0})`` with ``pipeline="sales"``, and pause this one: two policies for one group
contradict each other.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from airflow_logio.operators.scaling_controller import LogioScalingController
from airflow_logio.runtime.scaling.policies import DS2

# [START dag]
with DAG(
    "logio_controller",
    schedule="* * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    catchup=False,
    params={
        "pipeline": Param(None, type=["null", "string"], description="Name of the pipeline"),
        "run": Param(None, type=["null", "string"], description="uid of the run, or the beginning of it"),
        "group": Param(None, type=["null", "string"], description="Name of the replicated group"),
        "replicas": Param(
            None, type=["null", "integer"], minimum=0, description="Scale by hand to this many; empty: by policy"
        ),
    },
    tags=["logio"],
    doc_md=__doc__,
) as dag:
    LogioScalingController(
        task_id="control",
        policy=DS2(),
        pipeline="{{ params.pipeline or '' }}",
        run_uid="{{ params.run or '' }}",
        group="{{ params.group or '' }}",
        replicas="{{ '' if params.replicas is none else params.replicas }}",
    )
# [END dag]
