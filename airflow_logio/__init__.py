"""LOG.io for Apache Airflow and Spark: exactly-once recovery, event lineage, scaling replicas.

What pipeline authors need is here: ``from airflow_logio import Pipeline, ParquetSource, TableWriter, Tumbling, generate``.
What a DAG needs is in `airflow_logio.operators`, `sensors`, `hooks`; the simulator for your tests in `airflow_logio.testing`,
errors in `airflow_logio.errors`, the paper's own calls in `airflow_logio.contrib.paper_api`.

Each name is imported when it is first used: a Spark node needs no Airflow, and provider discovery must stay cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_logio.dataflow import (
        BatchGenerator,
        BatchOperator,
        ByKey,
        CheckableWriter,
        ConditionalWriter,
        ConnectedSource,
        Count,
        DatasetWriter,
        Dispatcher,
        EveryEvents,
        External,
        FolderSource,
        FrameOperator,
        FunctionOperator,
        FunctionRead,
        Group,
        IdempotentWriter,
        InputEvent,
        InputSet,
        LeastLoaded,
        LineageScope,
        ManualOperator,
        Marker,
        Merger,
        Node,
        Operator,
        ParquetSource,
        ParquetWriter,
        Partition,
        Pipeline,
        PortTable,
        PublishedFile,
        QuerySource,
        RangeConnection,
        RangeSource,
        Replicated,
        RoundRobin,
        SinkOperator,
        SourceBatch,
        SourceConnection,
        SourceOperator,
        SparkSource,
        StatefulOperator,
        StatelessOperator,
        Sums,
        Synchronized,
        TableRead,
        TableSource,
        TableWriter,
        Tumbling,
        Window,
        WindowedOperator,
        WriteAction,
        WriterOperator,
        filtered,
        from_every,
        from_one,
        generate,
        joined,
        lineage_paths,
        lineage_ports,
        published_files,
        selected,
        stateless,
        summed,
        window_start,
    )
    from airflow_logio.store import open_store

__version__ = "0.1.0"

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
    "__version__",
    "filtered",
    "from_every",
    "from_one",
    "generate",
    "joined",
    "lineage_paths",
    "lineage_ports",
    "open_store",
    "published_files",
    "selected",
    "stateless",
    "summed",
    "window_start",
]

_ELSEWHERE = {"open_store": "airflow_logio.store"}
"""Public names that do not come from `airflow_logio.dataflow`."""


def __getattr__(name: str) -> Any:
    """Import a public name on its first use (PEP 562). Raises `AttributeError` for any other name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_ELSEWHERE.get(name, "airflow_logio.dataflow")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
