"""DAG `logio_revenue`: the smallest complete pipeline, in two drivers."""

# [START dag]
from airflow.sdk import DAG, Param

from airflow_logio.operators.pipeline_group import LogioPipelineGroup
from pipelines.revenue import revenue

with DAG(
    "logio_revenue",
    schedule=None,
    params={"transactions": Param("/data/transactions.parquet", type="string", description="Sorted by time")},
    tags=["logio", "example"],
):
    LogioPipelineGroup(
        revenue,
        logio_conn_id="logio_default",
        conn_id="spark_default",
        connections={"warehouse": "warehouse_db"},
    )
# [END dag]
