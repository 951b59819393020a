"""DAG `logio_orders_lake`: a lake of 51 million sales, whose records stay with Spark's executors."""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from pipelines.orders_lake import orders_lake

with DAG(
    "logio_orders_lake",
    description="Grocery sales to a lake and to sums per hour and department, as DataFrames, exactly once",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params={
        "sales": Param("", type="string", description="Folder of Parquet files, in the order of their days"),
        "products": Param("", type="string", description="Parquet file of products"),
    },
    tags=["logio", "example"],
    doc_md="""
### DataFrames, exactly once

Two operator groups, each a Spark application. `sales` reads a folder of Parquet files, two weeks at a time, cleanses the
sales and joins them with products: one Spark plan per event. `hours` sums up each day when it is over, many days in a job.
The log has references; executors write and read the records, in the payload store of the log, and publish them in the folder
of connection `lake_folder`.

What to look at:

- `logio status` shows events of two million records each, and drivers that need no more memory for them.
- **Kill a driver** (`kill -9` its pid, from `logio status`): at most the event at which it worked is computed again.
- In the folder of the lake, `_logio` has a receipt for every write action, which names its files.

`make demo DAG=logio_orders_lake` makes the data and runs this DAG: 51,425,745 sales, or as many as `RECORDS` says.
""",
):
    LogioPipelineGroup(
        orders_lake,
        logio_conn_id="logio_default",
        conn_id="spark_default",
        connections={"lake": "lake_folder", "warehouse": "warehouse_db"},
    )
