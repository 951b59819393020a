"""Data parallelization (Section 7.1): `partition.py` chooses a record's slot, `dispatcher.py` sends it there, and merges."""

from airflow_logio.dataflow.replication.dispatcher import Dispatcher, Merger, OrderedMerger
from airflow_logio.dataflow.replication.partition import ByKey, LeastLoaded, Partition, RoundRobin, Routes

__all__ = [
    "ByKey",
    "Dispatcher",
    "LeastLoaded",
    "Merger",
    "OrderedMerger",
    "Partition",
    "RoundRobin",
    "Routes",
]
