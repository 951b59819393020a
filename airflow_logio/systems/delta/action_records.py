"""The records of a write action as they go into a Delta table, in the driver and in tasks of executors alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.writers.action_writers import EVENT, WriteAction
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.errors import OperatorFailed, WriteRefused


class Batches(Protocol):
    """What is asked of a dataset (`payloads.dataset.Dataset`)."""

    def empty(self) -> pa.Table:
        """No records, of the types that `batches` gives."""
        ...

    def batches(self, number: int | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Tables of bounded size, each with the number of records before it; of file `number` only, if one is given."""
        ...


@dataclass(frozen=True, slots=True)
class ActionRecords:
    """Those of the write actions of one writer; `named` is its table in words. It is part of jobs."""

    named: str
    writer: DeltaWriter

    def of_table(self, action: WriteAction) -> pa.Table:
        """Of an action that has them with it. Raises `WriteRefused`."""
        return self._checked(action, action.records)

    def in_files(self, action: WriteAction, stored: Batches, number: int | None = None) -> Iterator[pa.Table]:
        """Of a dataset, or of its file `number`, bit by bit. Raises `WriteRefused`, and as `Dataset.batches`."""
        yield self._checked(action, self.writer.records(self._event(action, stored.empty())))
        for _, table in stored.batches(number):
            yield self._checked(action, self.writer.records(self._event(action, table)))

    def _event(self, action: WriteAction, records: pa.Table) -> InputEvent:
        return InputEvent(self.writer.inputs[0], int(action.description.get(EVENT, 0)), records)

    def _checked(self, action: WriteAction, records: pa.Table) -> pa.Table:
        """Records of another day never get into the table."""
        if self.writer.owned is not None and records.num_columns:
            try:
                self.writer.owned.check_records(f"{self.named}, {where_of(action)}", records)
            except OperatorFailed as error:
                raise WriteRefused(f"{error}. The log has them, so that a retry would find them again") from error
        return records


def where_of(action: WriteAction) -> str:
    return f"write action {action.number} of {action.operator!r}"
