"""Ready-made sources, and the base class of an author's own that read a connection."""

from airflow_logio.dataflow.sources.connected import ConnectedSource, RangeConnection, SourceConnection
from airflow_logio.dataflow.sources.delta import DeltaSource
from airflow_logio.dataflow.sources.folder import FolderSource
from airflow_logio.dataflow.sources.parquet import ParquetSource
from airflow_logio.dataflow.sources.query import QuerySource
from airflow_logio.dataflow.sources.ranges import RangeSource
from airflow_logio.dataflow.sources.spark import SparkSource
from airflow_logio.dataflow.sources.table import TableSource

__all__ = [
    "ConnectedSource",
    "DeltaSource",
    "FolderSource",
    "ParquetSource",
    "QuerySource",
    "RangeConnection",
    "RangeSource",
    "SourceConnection",
    "SparkSource",
    "TableSource",
]
