"""A run for each day, which owns its day: its clicks in a lake, its ten most clicked pages in a table, exactly once.

The DAG run's partition key is its day. Until all of a day is there, the old one stays; then it is replaced, and no other.
Things to look at:

- **Backfill** three days: they run side by side, with two drivers at once (`drivers_at_once=2` of the pipeline).
- **Kill a driver** (`kill -9` its pid, from `logio status`): task `supervise` launches the next one, and the day is exact.
- **Clear a green DAG run**, after a change of the code or when a file came late: a new run computes that day again, and
  replaces it. `logio status` shows what it has replaced.
- **Late clicks**, which came with those of a later day, are in folder `late_clicks` of the lake.

`make demo DAG=logio_daily` does all this, and compares lake and table with DuckDB after each step.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import DAG, CronPartitionTimetable, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from pipelines.clicks import clicks

# [START dag]
with DAG(
    "logio_daily",
    # Midnight in the pipeline's zone. run_offset=-1: a run is for the day that has ended.
    schedule=CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="%Y-%m-%d"),
    start_date=datetime(2017, 1, 1, tzinfo=UTC),
    end_date=datetime(2017, 4, 1, tzinfo=UTC),  # the example has no input of today: leave it out of a DAG of yours
    catchup=False,
    params={"data": Param("/data", type="string", description="Folder with web/dt=<day>/*.parquet")},
    tags=["logio", "example"],
    doc_md=__doc__,
):
    LogioPipelineGroup(
        clicks,
        logio_conn_id="logio_default",
        conn_id="spark_default",
        connections={"lake": "lake_folder", "warehouse": "warehouse_db"},
    )
# [END dag]
