"""What a pipeline author writes. Importing it loads neither Airflow nor Spark nor a database driver."""

from airflow_logio.dataflow.arguments import with_told_arguments, with_told_methods
from airflow_logio.dataflow.dependencies import from_every, from_one, window_start
from airflow_logio.dataflow.functions.decorators import generate, stateless
from airflow_logio.dataflow.functions.function_operators import FrameOperator, FunctionOperator
from airflow_logio.dataflow.functions.own_partition import OwnPartition
from airflow_logio.dataflow.functions.ready_made import Count, Sums, filtered, joined, selected, summed
from airflow_logio.dataflow.functions.windowed_operators import BatchOperator, WindowedOperator
from airflow_logio.dataflow.operators import (
    BatchGenerator,
    External,
    InputEvent,
    InputSet,
    ManualOperator,
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
from airflow_logio.dataflow.pipeline.days import Days, Hours
from airflow_logio.dataflow.pipeline.definition import Group, Replicated
from airflow_logio.dataflow.pipeline.lineage import LineageScope, lineage_paths, lineage_ports
from airflow_logio.dataflow.reads import FunctionRead, TableRead
from airflow_logio.dataflow.replication import ByKey, Dispatcher, LeastLoaded, Merger, Partition, RoundRobin
from airflow_logio.dataflow.sources import (
    ConnectedSource,
    DeltaSource,
    FolderSource,
    ParquetSource,
    QuerySource,
    RangeConnection,
    RangeSource,
    SourceConnection,
    SparkSource,
    TableSource,
)
from airflow_logio.dataflow.windows import AllOfRun, EveryEvents, Tumbling, Window
from airflow_logio.dataflow.windows.counting import Synchronized
from airflow_logio.dataflow.writers.action_writers import (
    CheckableWriter,
    ConditionalWriter,
    IdempotentWriter,
    Marker,
    WriteAction,
)
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.dataflow.writers.published_folder import PublishedFile, published_files
from airflow_logio.dataflow.writers.table_writer import TableWriter

__all__ = [
    "AllOfRun",
    "BatchGenerator",
    "BatchOperator",
    "ByKey",
    "CheckableWriter",
    "ConditionalWriter",
    "ConnectedSource",
    "Count",
    "DatasetWriter",
    "Days",
    "DeltaSource",
    "DeltaWriter",
    "Dispatcher",
    "EveryEvents",
    "External",
    "FolderSource",
    "FrameOperator",
    "FunctionOperator",
    "FunctionRead",
    "Group",
    "Hours",
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
    "OwnPartition",
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

_VALUES = ("External", "InputEvent", "InputSet", "Marker", "Node", "PublishedFile", "SourceBatch", "WriteAction")
"""Made for each event, most of them by drivers: they are plain values, in whose way nothing stands."""

for _name in __all__:
    if _name not in _VALUES and not getattr(globals()[_name], "_is_protocol", False):
        globals()[_name] = with_told_arguments(globals()[_name])
with_told_methods(Pipeline)
del _name
