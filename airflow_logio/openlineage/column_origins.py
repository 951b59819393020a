"""Where a column comes from: as its author declares, or as it follows from ready-made operators. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from airflow_logio.dataflow.dataset_writer import DatasetWriter
from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.dataflow.parquet_writer import ParquetWriter
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.sources import FolderSource, ParquetSource, QuerySource, TableSource
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.openlineage.external_datasets import ExternalDatasets
from airflow_logio.openlineage.naming import DatasetName
from airflow_logio.protocol.values import Port

READY_MADE_WRITERS = (TableWriter, DatasetWriter, ParquetWriter)
"""They write records as they come, and send them on so. A class that is derived from them may not."""


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """A column of a dataset. `is_same`: values are handed on as they are."""

    dataset: DatasetName
    column: str
    is_same: bool = True


@dataclass(frozen=True, slots=True)
class ColumnOrigins:
    """Of the operators `members` of a pipeline as its author wrote it; other operators' output ports are datasets."""

    pipeline: Pipeline
    members: Collection[str]
    external: ExternalDatasets
    name_of_port: Callable[[Port], DatasetName]

    def of(self, port: Port, column: str) -> tuple[Origin, ...]:
        """What a column of an output port is made from; empty if that is not known as a whole."""
        if port.operator not in self.members:
            return (Origin(self.name_of_port(port), column),)
        operator = self.pipeline.operators[port.operator]
        if isinstance(operator, SourceOperator):
            datasets = self.external.read_by(operator) if hands_on(operator) else []
            return tuple(Origin(dataset, column) for dataset in datasets)
        if type(operator) in READY_MADE_WRITERS:
            return self.of(self.pipeline.sender(Port(port.operator, operator.inputs[0])), column)
        found: dict[Origin, None] = {}
        for one in self.pipeline.declared_columns.get(port, {}).get(column, ()):
            origins = self._input(port.operator, operator, one.place, one.column)
            if not origins:
                return ()
            found |= {Origin(origin.dataset, origin.column, is_same=False): None for origin in origins}
        return tuple(found)

    def _input(self, name: str, operator: Operator, place: str, column: str) -> tuple[Origin, ...]:
        if place in operator.inputs:
            return self.of(self.pipeline.sender(Port(name, place)), column)
        table = self.external.looked_up_by(operator).get(place)
        return () if table is None else (Origin(table, column),)

    def columns(self, port: Port) -> tuple[str, ...]:
        """The columns of an output port, as far as they are known before it has sent anything."""
        operator = self.pipeline.operators[port.operator]
        if isinstance(operator, SourceOperator):
            return tuple(getattr(operator, "columns", None) or ()) if hands_on(operator) else ()
        if type(operator) in READY_MADE_WRITERS:
            return self.columns(self.pipeline.sender(Port(port.operator, operator.inputs[0])))
        return tuple(self.pipeline.declared_columns.get(port, ()))

    def columns_written(self, name: str) -> tuple[str, ...]:
        """The columns that a writer takes from its records."""
        writer = self.pipeline.operators[name]
        if isinstance(writer, TableWriter) and writer.columns is not None:
            return tuple(column for column in writer.columns if column != writer.lineage_column)
        if isinstance(writer, ParquetWriter) and writer.schema is not None:
            return tuple(writer.schema.names)
        return self.columns(self.pipeline.sender(Port(name, writer.inputs[0])))


def hands_on(source: SourceOperator) -> bool:
    """Whether a source's records are rows of what it reads, with their columns."""
    if isinstance(source, ParquetSource):
        return type(source) is ParquetSource and source.settings()["transform"] is None
    if isinstance(source, QuerySource):
        return type(source) is QuerySource and source.table is not None
    return type(source) in (FolderSource, TableSource)
