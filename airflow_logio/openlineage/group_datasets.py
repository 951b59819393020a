"""The datasets that a group, or a whole run, reads and writes: with columns, where they come from, and counts of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import DatasetFacet, column_lineage_dataset, schema_dataset
from openlineage.client.generated.base import InputDatasetFacet, OutputDatasetFacet
from openlineage.client.generated.base_subset_dataset import (
    OutputSubsetOutputDatasetFacet,
    Partition,
    PartitionSubsetCondition,
)
from openlineage.client.generated.input_statistics_input_dataset import InputStatisticsInputDatasetFacet
from openlineage.client.generated.output_statistics_output_dataset import OutputStatisticsOutputDatasetFacet

from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.writers.action_writers import ActionWriter
from airflow_logio.openlineage.column_origins import ColumnOrigins, Origin, Written
from airflow_logio.openlineage.external_datasets import DatasetName, ExternalDatasets, port_name
from airflow_logio.openlineage.run_facet import PRODUCER
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.status_records import PortProgress

IN, OUT, WRITE = "in", "out", "write"


@dataclass(slots=True)
class _Dataset:
    rows: int | None = None
    """None: the log does not count them."""
    size: int | None = None
    written: Written = field(default_factory=Written)
    owned: tuple[str, str] | None = None
    """Column and key of the partition that is written, where a run owns it by its value."""


class GroupDatasets:
    """Inputs and outputs of one group; with None, of the whole run, which has no ports between groups.

    `pipeline` is as its author wrote it (`Pipeline.unreplicated`), and so are the ports of `counts`; None: no statistics.
    `external` gives what an operator reads and writes, by its name: groups may have connections of their own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        group: str | None,
        log_url: str,
        external: Callable[[str], ExternalDatasets],
        counts: Sequence[PortProgress] | None,
    ) -> None:
        self._pipeline = pipeline
        self._members = tuple(pipeline.operators if group is None else pipeline.groups[group].operators)
        self._log_url = log_url
        self._external = external
        self._counts: Mapping[tuple[Port, str], PortProgress] | None = (
            None if counts is None else {(row.port, row.direction): row for row in counts}
        )
        self._origins = ColumnOrigins(pipeline, self._members, external, self._port)

    def inputs(self) -> list[InputDataset]:
        """What is read: by sources, by declared reads, and from other groups."""
        found: dict[DatasetName, _Dataset] = {}
        for name, one in self._read():
            _add(found, name, one)
        return [_input(name, one) for name, one in sorted(found.items())]

    def outputs(self) -> list[OutputDataset]:
        """What is written: by writers, and to other groups."""
        found: dict[DatasetName, _Dataset] = {}
        for name, one in self._written():
            _add(found, name, one)
        return [_output(name, one) for name, one in sorted(found.items())]

    def _read(self) -> Iterator[tuple[DatasetName, _Dataset]]:
        incoming: dict[Port, _Dataset] = {}
        for name in self._members:
            operator = self._pipeline.operators[name]
            if isinstance(operator, SourceOperator):
                yield from self._read_by(name, operator)
            for table in self._external(name).looked_up_by(operator).values():
                yield table, _Dataset()
            for receiver in self._pipeline.graph.inputs_of(name):
                sender = self._pipeline.sender(receiver)
                if sender.operator not in self._members:
                    one = self._counted(receiver, IN)
                    incoming[sender] = max(incoming.get(sender, one), one, key=lambda dataset: dataset.rows or 0)
        for sender, one in incoming.items():
            yield self._port(sender), one

    def _read_by(self, name: str, source: SourceOperator) -> Iterator[tuple[DatasetName, _Dataset]]:
        datasets = self._external(name).read_by(source)
        is_counted = len(datasets) == 1 and getattr(source, "query", None) is None
        (port,) = self._pipeline.graph.outputs_of(name)
        rows = self._counted(port, OUT).rows if is_counted else None
        for dataset in datasets:
            yield dataset, _Dataset(rows)

    def _written(self) -> Iterator[tuple[DatasetName, _Dataset]]:
        for name in self._members:
            operator = self._pipeline.operators[name]
            if isinstance(operator, ActionWriter):
                rows = self._counted(Port(name, operator.connection), WRITE).rows
                external = self._external(name)
                owned = _owned(operator, external.params)
                for dataset in external.written_by(operator):
                    yield dataset, _Dataset(rows, None, self._origins.of_written(name), owned)
            for port in self._pipeline.graph.outputs_of(name):
                receivers = self._pipeline.receivers(port)
                if any(receiver.operator not in self._members for receiver in receivers):
                    one = self._counted(port, OUT)
                    columns = self._origins.columns(port)
                    one.written = Written(origins={column: self._origins.of(port, column) for column in columns})
                    yield self._port(port), one

    def _counted(self, port: Port, direction: str) -> _Dataset:
        if self._counts is None:
            return _Dataset()
        row = self._counts.get((port, direction))
        return _Dataset(0, 0) if row is None else _Dataset(row.records, row.bytes)

    def _port(self, port: Port) -> DatasetName:
        return port_name(self._log_url, self._pipeline.name, port)


def _add(found: dict[DatasetName, _Dataset], name: DatasetName, one: _Dataset) -> None:
    """Two writers of one table are one dataset, and so are two reads."""
    other = found.setdefault(name, one)
    if other is not one:
        other.rows = _sum(other.rows, one.rows)
        other.size = _sum(other.size, one.size)
        other.written = other.written.joined(one.written)
        other.owned = one.owned if one.owned == other.owned else None  # another writer may write anywhere in it


def _owned(operator: ActionWriter, params: Mapping[str, Any]) -> tuple[str, str] | None:
    """Before there is a run, its partition is not known."""
    (column, *_) = getattr(operator, "by", ()) or (None,)
    return None if column is None or column not in params else (column, str(params[column]))


def _subset(column: str, key: str) -> OutputSubsetOutputDatasetFacet:
    """The partition that is written, or replaced, as the standard has it: no more of the dataset is changed."""
    partition = Partition(dimensions={column: key}, identifier=f"{column}={key}")
    return OutputSubsetOutputDatasetFacet(
        outputCondition=PartitionSubsetCondition(partitions=[partition]), producer=PRODUCER
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _input(name: DatasetName, one: _Dataset) -> InputDataset:
    statistics = InputStatisticsInputDatasetFacet(rowCount=one.rows, size=one.size, producer=PRODUCER)
    counted: dict[str, InputDatasetFacet] = {} if one.rows is None else {"inputStatistics": statistics}
    return InputDataset(namespace=name.namespace, name=name.name, facets={}, inputFacets=counted)


def _output(name: DatasetName, one: _Dataset) -> OutputDataset:
    facets = _schema(one.written)
    if fields := {column: _fields(origins) for column, origins in one.written.origins.items() if origins}:
        facets["columnLineage"] = column_lineage_dataset.ColumnLineageDatasetFacet(fields=fields, producer=PRODUCER)
    statistics = OutputStatisticsOutputDatasetFacet(rowCount=one.rows, size=one.size, producer=PRODUCER)
    counted: dict[str, OutputDatasetFacet] = {} if one.rows is None else {"outputStatistics": statistics}
    if one.owned is not None:
        counted["subset"] = _subset(*one.owned)
    return OutputDataset(namespace=name.namespace, name=name.name, facets=facets, outputFacets=counted)


def _schema(written: Written) -> dict[str, DatasetFacet]:
    """The facet means all columns: there is none where only some are known."""
    fields = [schema_dataset.SchemaDatasetFacetFields(name=name, type=kind) for name, kind in written.schema.items()]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields, producer=PRODUCER)} if fields else {}


def _fields(origins: Sequence[Origin]) -> column_lineage_dataset.Fields:
    same = column_lineage_dataset.Transformation(type="DIRECT", subtype="IDENTITY")
    return column_lineage_dataset.Fields(
        inputFields=[
            column_lineage_dataset.InputField(
                namespace=one.dataset.namespace,
                name=one.dataset.name,
                field=one.column,
                transformations=[same] if one.is_same else [],
            )
            for one in origins
        ]
    )
