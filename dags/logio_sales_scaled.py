"""DAG `logio_sales_scaled`: the sales pipeline with a group that gains replicas, loses one, and gives them back."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task

from airflow_logio.hooks.logio import LogioHook
from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from airflow_logio.operators.scale import LogioScaleOperator
from airflow_logio.sensors.recovered_group import LogioRecoveredGroupSensor
from pipelines.sales_scaled import sales_scaled

VICTIM = "hourly.2"


@task(retries=10, retry_delay=timedelta(seconds=2))  # type: ignore[untyped-decorator]
def kill_a_replica(run_uid: str) -> dict[str, Any]:
    """Kill a driver on purpose, with SIGKILL. Returns the recovery to expect."""
    store = LogioHook().get_store()
    try:
        status = store.group(store.find_run(run_uid).run_id, VICTIM)
    finally:
        store.dispose()
    if status.identity is None:
        raise RuntimeError(f"{VICTIM} has no driver on record, it is {status.state.value}")
    os.kill(status.identity.pid, signal.SIGKILL)
    return {"run_uid": run_uid, "group": VICTIM, "launched_incarnation": status.incarnation + 1}


with DAG(
    "logio_sales_scaled",
    description="The sales pipeline with a group that is scaled up and down while it runs, exactly once",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={
        "transactions": Param("", type="string", description="Parquet file, in transaction_timestamp order"),
    },
    tags=["logio", "example"],
    doc_md="""
### Replicas that come and go

Group `hourly` of the sales pipeline works in 16 slots by store, and is slow on purpose: a millisecond per record. It starts
with one replica. The tasks `scale_up`, `kill_a_replica`, `recovered` and `scale_down` take it to three replicas, kill the
driver of one, wait until it is recovered, and go back to one, while all other groups keep running.

- The task log of `scale_up` shows each step: which replicas were launched, how many slots have moved.
- `logio status` shows the replicas, `hourly.1` to `hourly.3`. Scale the group yourself with `logio scale`: task `supervise`
  of this DAG run carries it out.
- To let a policy do it, unpause `logio_controller` too: it looks every minute, and its task log says why it scales, or not.
- The result is that of `logio_sales` on the same file, row by row.

A file of 200,000 transactions takes about two minutes (`make demo DAG=logio_sales_scaled` makes one).
""",
):
    sales = LogioPipelineGroup(
        sales_scaled,
        logio_conn_id="logio_default",
        conn_id="spark_default",
        connections={"warehouse": "warehouse_db"},
        group_id="sales",
    )
    # [START scaling]
    start = sales.children["sales.start_run"]
    scale_up = LogioScaleOperator(task_id="scale_up", pipeline=sales_scaled, group="hourly", replicas=3)
    killed = kill_a_replica(start.output)
    recovered = LogioRecoveredGroupSensor(task_id="recovered", recovery=killed)
    scale_down = LogioScaleOperator(task_id="scale_down", pipeline=sales_scaled, group="hourly", replicas=1)
    start >> scale_up >> killed >> recovered >> scale_down
    # [END scaling]
