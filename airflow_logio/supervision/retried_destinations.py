"""Asked before quarantined Input Sets are put back: whether what lies behind them still takes records of their run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.errors import ExternalUnavailable, WriteRefused
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.warehouse_rules import Owner
from airflow_logio.spark.folder_inspection import check_not_replaced
from airflow_logio.systems.warehouse import Warehouse


def check_destinations(context: LaunchContext, operators: Iterable[str]) -> None:
    """Raise `WriteRefused` if a newer run owns a table or folder that events of these operators reach; it says what to do.

    Put back all the same, the Input Sets would only park the run. Raises `ExternalUnavailable` if a database or file system
    does not answer. A run that begins after this question, and takes one over, is found out by the write itself.
    """
    pipeline, run = context.pipeline, context.run
    graph = pipeline.graph
    reached = {name for operator in operators for name in (operator, *graph.downstream(operator))}
    for name in sorted(reached):
        try:
            _check(context, pipeline.operators[name], Owner(run.uid, run.created_at))
        except WriteRefused as error:
            raise WriteRefused(
                f"nothing was put back: {error}. To have the rows of these Input Sets, process the same input in a run "
                f"of its own: a new one, or this one again (`logio fresh {run.uid[:8]}`)"
            ) from error
        except ExternalUnavailable as error:
            raise ExternalUnavailable(
                f"nothing was put back: {error}. Try again when the database, or the file system, answers"
            ) from error


def _check(context: LaunchContext, writer: Operator, run: Owner) -> None:
    if isinstance(writer, TableWriter):
        with closing(Warehouse(writer.connection, context.connections[writer.connection])) as warehouse:
            warehouse.check_not_replaced(writer, run)
    elif isinstance(writer, DatasetWriter):
        check_not_replaced(writer, context.connections[writer.connection], run)
