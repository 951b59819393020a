"""Where a column comes from: as its author declares, or as it follows from ready-made operators. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from airflow_logio.dataflow.operators import Operator, SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.sources import DeltaSource, FolderSource, ParquetSource, QuerySource, TableSource
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.parquet_writer import ParquetWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.openlineage.external_datasets import DatasetName, ExternalDatasets
from airflow_logio.protocol.values import Port

READY_MADE_WRITERS = (TableWriter, DatasetWriter, DeltaWriter, ParquetWriter)
"""They write records as they come, and send them on so. A class that is derived from them may not."""


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """A column of a dataset. `is_same`: values are handed on as they are."""

    dataset: DatasetName
    column: str
    is_same: bool = True


Origins = Mapping[str, tuple[Origin, ...]]
"""Column → what it is made from; empty if that is not known as a whole."""


@dataclass(frozen=True, slots=True)
class Written:
    """What is known of the columns of a dataset that is written."""

    schema: Mapping[str, str] = field(default_factory=dict)
    """Column → type, of all columns; empty if the author has not said them."""
    origins: Origins = field(default_factory=dict)
    """Without `schema`, there may be columns that are not here."""

    def joined(self, other: Written) -> Written:
        """What is known of a dataset that both write: only what both of them know."""
        schema = {**self.schema, **other.schema} if self.schema and other.schema else {}
        both = self.origins.keys() & other.origins.keys()
        known = {
            name: _united(self.origins[name], other.origins[name])
            for name in both
            if self.origins[name] and other.origins[name]
        }
        only_here = {name: found for name, found in self.origins.items() if name not in both and other._lacks(name)}
        only_there = {name: found for name, found in other.origins.items() if name not in both and self._lacks(name)}
        return Written(schema, {**only_here, **known, **only_there})

    def _lacks(self, column: str) -> bool:
        """Whether it is known that this writer does not write the column."""
        return bool(self.schema) and column not in self.schema


def _united(one: Iterable[Origin], other: Iterable[Origin]) -> tuple[Origin, ...]:
    """A column that one writer hands on as it is, and the other one does not, is not handed on as it is."""
    found: dict[tuple[DatasetName, str], Origin] = {}
    for origin in (*one, *other):
        place = origin.dataset, origin.column
        found[place] = replace(origin, is_same=origin.is_same and found.get(place, origin).is_same)
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class ColumnOrigins:
    """Origins within the operators `members` of a pipeline as its author wrote it; output ports of others are datasets.

    `external` gives what an operator reads and writes, by its name.
    """

    pipeline: Pipeline
    members: Collection[str]
    external: Callable[[str], ExternalDatasets]
    name_of_port: Callable[[Port], DatasetName]

    def of(self, port: Port, column: str) -> tuple[Origin, ...]:
        """What a column of an output port is made from; empty if that is not known as a whole."""
        if port.operator not in self.members:
            return (Origin(self.name_of_port(port), column),)
        operator = self.pipeline.operators[port.operator]
        if isinstance(operator, SourceOperator):
            datasets = self.external(port.operator).read_by(operator) if hands_on(operator) else []
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
        table = self.external(name).looked_up_by(operator).get(place)
        return () if table is None else (Origin(table, column),)

    def columns(self, port: Port) -> tuple[str, ...]:
        """The columns of an output port, as far as they are known before it has sent anything."""
        operator = self.pipeline.operators[port.operator]
        if isinstance(operator, SourceOperator):
            return tuple(getattr(operator, "columns", None) or ()) if hands_on(operator) else ()
        if type(operator) in READY_MADE_WRITERS:
            return self.columns(self.pipeline.sender(Port(port.operator, operator.inputs[0])))
        return tuple(self.pipeline.declared_columns.get(port, ()))

    def of_written(self, name: str) -> Written:
        """The columns that a writer writes. A class derived from a ready-made one may change records: nothing is known."""
        writer = self.pipeline.operators[name]
        if type(writer) not in READY_MADE_WRITERS:
            return Written()
        sender = self.pipeline.sender(Port(name, writer.inputs[0]))
        schema: dict[str, str] = {}
        taken = self.columns(sender)
        if isinstance(writer, TableWriter | DeltaWriter) and writer.columns is not None:
            schema = {column: str(kind) for column, kind in (writer.column_types() or {}).items()}
            beside = getattr(writer, "lineage_column", None)
            taken = tuple(column for column in schema if column != beside)
        elif isinstance(writer, ParquetWriter) and writer.schema is not None:
            schema = dict(zip(writer.schema.names, map(str, writer.schema.types), strict=True))
            taken = tuple(schema)
        return Written(schema, {column: self.of(sender, column) for column in taken})


def hands_on(source: SourceOperator) -> bool:
    """Whether a source's records are rows of what it reads, with their columns."""
    if isinstance(source, ParquetSource):
        return type(source) is ParquetSource and source.settings()["transform"] is None
    if isinstance(source, QuerySource):
        return type(source) is QuerySource and source.table is not None
    if isinstance(source, DeltaSource):
        return type(source) is DeltaSource and not source.changes
    return type(source) in (FolderSource, TableSource)
