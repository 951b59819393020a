"""Records of a write action that are in files, as a table gets them: bit by bit, or from a staging table (ADR-86)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import pyarrow as pa

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.writers.action_writers import EVENT, WriteAction
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.systems.table_names import TableName


class StoredRecords(Protocol):
    """What is asked of a dataset (`payloads.dataset.Dataset`)."""

    def counts(self) -> Sequence[int]:
        """The records of each file."""
        ...

    def empty(self) -> pa.Table:
        """No records, of the types that `batches` gives."""
        ...

    def batches(self, number: int | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Tables of bounded size, each with the number of records before it; of file `number` only, if one is given."""
        ...


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Where executors have put the records of a write action."""

    table: TableName
    attempts: Mapping[int, str]
    """Number of a file → the attempt that has loaded it, and that the job has named."""


@dataclass(frozen=True, slots=True)
class RecordsInFiles:
    """The records of one write action."""

    records: StoredRecords
    staged: StagedFiles | None = None
    """None: they pass through the driver."""


def parts(
    writer: TableWriter, action: WriteAction, stored: StoredRecords, number: int | None = None
) -> Iterator[WriteAction]:
    """A write action of a dataset as actions of some of its records each, as the writer would have logged them."""
    for first, table in stored.batches(number):
        yield _part(writer, action, first, table)


def no_part(writer: TableWriter, action: WriteAction, stored: StoredRecords) -> WriteAction:
    """As `parts`, without records."""
    return _part(writer, action, 0, stored.empty())


def _part(writer: TableWriter, action: WriteAction, first: int, table: pa.Table) -> WriteAction:
    event = InputEvent(writer.inputs[0], int(action.description.get(EVENT, 0)), table)
    return replace(action, records=writer.records(event), first_row=first, dataset=None)
