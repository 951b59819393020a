"""What a pipeline author writes. Importing it loads neither Airflow nor Spark nor a database driver."""

from airflow_logio.dataflow.accumulators import Sums
from airflow_logio.dataflow.function_operators import BatchOperator, FunctionOperator, WindowedOperator
from airflow_logio.dataflow.functions import generate, stateless
from airflow_logio.dataflow.groups import Group
from airflow_logio.dataflow.lineage import LineageScope, lineage_paths, lineage_ports
from airflow_logio.dataflow.operators import (
    BatchGenerator,
    External,
    InputEvent,
    InputSet,
    Operator,
    PortTable,
    SinkOperator,
    SourceBatch,
    SourceOperator,
    StatefulOperator,
    StatelessOperator,
    WriterOperator,
)
from airflow_logio.dataflow.pipeline import Node, Pipeline
from airflow_logio.dataflow.reads import TableRead
from airflow_logio.dataflow.sinks import Count
from airflow_logio.dataflow.sources import ParquetSource
from airflow_logio.dataflow.windows import EveryEvents, Tumbling, Window
from airflow_logio.dataflow.writers import TableWriter

__all__ = [
    "BatchGenerator",
    "BatchOperator",
    "Count",
    "EveryEvents",
    "External",
    "FunctionOperator",
    "Group",
    "InputEvent",
    "InputSet",
    "LineageScope",
    "Node",
    "Operator",
    "ParquetSource",
    "Pipeline",
    "PortTable",
    "SinkOperator",
    "SourceBatch",
    "SourceOperator",
    "StatefulOperator",
    "StatelessOperator",
    "Sums",
    "TableRead",
    "TableWriter",
    "Tumbling",
    "Window",
    "WindowedOperator",
    "WriterOperator",
    "generate",
    "lineage_paths",
    "lineage_ports",
    "stateless",
]
