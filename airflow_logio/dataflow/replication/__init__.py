"""Data parallelization (Section 7.1): how a group is replicated, and what splits and merges its events."""

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
