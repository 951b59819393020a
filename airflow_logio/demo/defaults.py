"""What `logio run dags/pipelines/sales.py:sales` needs no options for: it is the pipeline of the demonstration."""

from __future__ import annotations

from pathlib import Path

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.runtime.launch.bundle import PipelineRef

WAREHOUSE = "warehouse"
TRANSACTIONS = "transactions"
DEFAULT_WAREHOUSE = Path(".logio/warehouse.db")


def is_demo(ref: PipelineRef, pipeline: Pipeline) -> bool:
    """Whether a pipeline is that of ``dags/pipelines/sales.py``."""
    return (
        ref.module == "pipelines.sales"
        and pipeline.name == "sales"
        and pipeline.connections == (WAREHOUSE,)
        and set(pipeline.params) == {TRANSACTIONS}
    )
