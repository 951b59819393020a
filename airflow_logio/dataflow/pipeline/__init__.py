"""The pipeline: how it is built, what is checked, what runs."""

from airflow_logio.dataflow.pipeline.builder import Node, Pipeline

__all__ = ["Node", "Pipeline"]
