"""Where the order of a stream must be known: windows of time behind a source whose records come in any order."""

from __future__ import annotations

from airflow_logio.dataflow.definition import Definition
from airflow_logio.dataflow.graph import Graph
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.replication.progress import windows_at
from airflow_logio.dataflow.sources import SparkSource


def check_orders(definition: Definition, graph: Graph) -> None:
    """Raises PipelineDefinitionError for a window that later records close, behind a DataFrame in no order.

    Whether a column that functions in between have made is in the order of `ordered_by`, nobody can tell here: a record that
    comes too late is refused when it comes.
    """
    for name, source in definition.operators.items():
        if isinstance(source, SparkSource) and source.ordered_by is None:
            for other in sorted(graph.downstream(name)):
                for column in _ordered_on(definition.operators[other]):
                    definition.refuse(
                        f"operator {other!r} collects windows by {column!r}, which close when a later record comes, and the "
                        f"records of source {name!r} come in any order: write SparkSource(..., ordered_by={column!r}), or "
                        "name the column of the source that it is made of. A window that closes at the end of the stream, "
                        "or counts events, needs no order"
                    )


def _ordered_on(operator: Operator) -> list[str]:
    columns = (window.ordered_on() for port in operator.inputs for window in windows_at(operator, port))
    return [column for column in columns if column is not None]
