"""Scales the replicated groups of all active runs: every minute by policy, and at once on request.

While this DAG is unpaused, each replicated group of each run gets as many replicas as its incoming and waiting data need,
within the bounds that its author gives. The task log explains every decision with its figures, and `logio status` shows
every change.

To scale a group by hand, trigger this DAG. Fill in *replicas*, and as much of *pipeline*, *run* and *group* as it takes to
name one group; an empty field means any. The policy may change the number again a little later. To keep your number, pause
this DAG afterwards (Airflow starts no task of a paused DAG), or leave it paused and use `logio scale`. If you give a run or
a pipeline without *replicas*, the policy looks at that one only.

To give a pipeline its own policy, copy this file and pause this DAG: two policies for one group contradict each other.
Examples are ``Threshold(up_lag_seconds=10)`` and ``Schedule({"0 8 * * 1-5": 4, "0 20 * * *": 0})``, with
``pipeline="sales"``.
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
