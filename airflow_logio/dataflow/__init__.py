"""What a pipeline author writes. Importing it loads neither Airflow nor Spark nor a database driver."""

from airflow_logio.dataflow.accumulators import Sums
from airflow_logio.dataflow.action_writers import CheckableWriter, ConditionalWriter, IdempotentWriter
from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.dependencies import from_every, from_one, window_start
from airflow_logio.dataflow.frame_operators import FrameOperator
from airflow_logio.dataflow.function_operators import BatchOperator, FunctionOperator, WindowedOperator
from airflow_logio.dataflow.functions import generate, stateless
from airflow_logio.dataflow.lineage_scopes import LineageScope, lineage_paths, lineage_ports
from airflow_logio.dataflow.manual_operator import ManualOperator
from airflow_logio.dataflow.operator_groups import Group
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
from airflow_logio.dataflow.parquet_writer import ParquetWriter
from airflow_logio.dataflow.pipeline import Node, Pipeline
from airflow_logio.dataflow.published_folder import PublishedFile, published_files
from airflow_logio.dataflow.reads import FunctionRead, TableRead
from airflow_logio.dataflow.ready_made import filtered, joined, selected, summed
from airflow_logio.dataflow.replication import ByKey, Dispatcher, LeastLoaded, Merger, Partition, Replicated, RoundRobin
from airflow_logio.dataflow.sinks import Count
from airflow_logio.dataflow.sources import (
    ConnectedSource,
    FolderSource,
    ParquetSource,
    QuerySource,
    RangeConnection,
    RangeSource,
    SourceConnection,
    SparkSource,
    TableSource,
)
from airflow_logio.dataflow.synchronized import Synchronized
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.dataflow.windows import EveryEvents, Tumbling, Window
from airflow_logio.dataflow.write_actions import Marker, WriteAction

__all__ = [
    "BatchGenerator",
    "BatchOperator",
    "ByKey",
    "CheckableWriter",
    "ConditionalWriter",
    "ConnectedSource",
    "Count",
    "DatasetWriter",
    "Dispatcher",
    "EveryEvents",
    "External",
    "FolderSource",
    "FrameOperator",
    "FunctionOperator",
    "FunctionRead",
    "Group",
    "IdempotentWriter",
    "InputEvent",
    "InputSet",
    "LeastLoaded",
    "LineageScope",
    "ManualOperator",
    "Marker",
    "Merger",
    "Node",
    "Operator",
    "ParquetSource",
    "ParquetWriter",
    "Partition",
    "Pipeline",
    "PortTable",
    "PublishedFile",
    "QuerySource",
    "RangeConnection",
    "RangeSource",
    "Replicated",
    "RoundRobin",
    "SinkOperator",
    "SourceBatch",
    "SourceConnection",
    "SourceOperator",
    "SparkSource",
    "StatefulOperator",
    "StatelessOperator",
    "Sums",
    "Synchronized",
    "TableRead",
    "TableSource",
    "TableWriter",
    "Tumbling",
    "Window",
    "WindowedOperator",
    "WriteAction",
    "WriterOperator",
    "filtered",
    "from_every",
    "from_one",
    "generate",
    "joined",
    "lineage_paths",
    "lineage_ports",
    "published_files",
    "selected",
    "stateless",
    "summed",
    "window_start",
]
