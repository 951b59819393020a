"""The shape of each writer of a run: where it writes, and what it does to other runs there (design, "Days")."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from airflow_logio.dataflow.names import schema_and_table
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.owning_writers import OwningWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.protocol.run_writers import Repeats, Together, WriterShape


def writer_shapes(
    operators: Mapping[str, Operator], connections: Mapping[str, str], partition: Collection[str] = ()
) -> tuple[WriterShape, ...]:
    """The shapes of all that writes among the operators of a run, as `Operator.for_run` has made them.

    :param operators: operators as their author named them: not once per slot.
    :param connections: name → id of the connection, by which runs are compared.
    :param partition: the parameters that the run's partition gives it, none without partitions.
    """
    return tuple(
        shape for name, operator in operators.items() for shape in _shapes(name, operator, connections, partition)
    )


def _shapes(
    name: str, operator: Operator, connections: Mapping[str, str], partition: Collection[str]
) -> Iterator[WriterShape]:
    for connection in operator.writes():
        place = (connections[connection], *_names(operator))
        what = f"{_what(operator)}, connection {connections[connection]!r}"
        is_of_author = not isinstance(operator, OwningWriter | ParquetWriter)
        repeats, closes = _repeats(operator, partition), isinstance(operator, ActionWriter) and operator.closes
        yield WriterShape(name, what, place, _together(operator), repeats, is_of_author, closes)


def _names(operator: Operator) -> tuple[str, ...]:
    """Below the connection. Of a class of the author's own, nothing is known: it may write anywhere there.

    A table without a schema is in one that the database chooses, so it may be that of the same name in any schema. Case
    is no difference, as for SQLite.
    """
    if isinstance(operator, TableWriter):
        schema, table = schema_and_table(operator.table)
        return tuple(part.casefold() for part in (table, schema) if part)
    if isinstance(operator, DeltaWriter):
        return tuple(filter(None, operator.table.split("/")))
    if isinstance(operator, DatasetWriter | ParquetWriter):
        return tuple(filter(None, operator.folder.split("/")))
    return ()


def _what(operator: Operator) -> str:
    kind = type(operator).__name__
    if isinstance(operator, TableWriter):
        return f"{kind} of table {operator.table!r}, {_mode(operator)}"
    if isinstance(operator, DeltaWriter):
        return f"{kind} of table {operator.table or '.'!r}, {_mode(operator)}"
    if isinstance(operator, DatasetWriter):
        return f"{kind} of folder {operator.folder or '.'!r}, {_mode(operator)}"
    if isinstance(operator, ParquetWriter):
        return f"{kind} of folder {operator.folder or '.'!r}"
    return f"{kind}, a class of its author's own"


def _mode(writer: OwningWriter) -> str:
    if isinstance(writer, TableWriter | DeltaWriter) and writer.upserts:
        version = "" if writer.version is None else f", version={writer.version!r}"
        return f"on_new_run={writer.on_new_run!r}, mode='upsert'{version}"
    said = f"on_new_run={writer.on_new_run!r}" + (f", by={writer.by!r}" if writer.by else "")
    return f"{said}, switch={writer.switch!r}" if writer.fills_at_once else said


def _together(operator: Operator) -> Together:
    if isinstance(operator, OwningWriter):
        if operator.owns:
            return Together.BY_PARTITION
        return Together.ALWAYS if operator.joins else Together.NEVER
    # Files of a ParquetWriter are in a folder of their run's own.
    return Together.ALWAYS if operator.runs_together or isinstance(operator, ParquetWriter) else Together.NEVER


def _repeats(operator: Operator, partition: Collection[str]) -> Repeats:
    """To replace is to remove all: at a place of the partition's own, just what was written for it. To overwrite is to
    remove what the new run writes to as well, so what only the old one has written to would stay."""
    if isinstance(operator, OwningWriter):
        own_place = not operator.placeholders().isdisjoint(partition)
        if operator.owns or (operator.on_new_run == "replace" and own_place):
            return Repeats.REPLACED
    return Repeats.ADDED
