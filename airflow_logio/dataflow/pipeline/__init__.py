"""The pipeline: how it is built, what is checked, what runs. Open `builder.py` first."""

from airflow_logio.dataflow.pipeline.builder import Node, Pipeline

__all__ = ["Node", "Pipeline"]
