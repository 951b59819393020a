"""What a chain of operators has made of an event before the loop gets it (ADR-81)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.values import Port
from airflow_logio.systems.payloads.dataset import Dataset

Outputs = Mapping[str, "Evaluated"]
"""Output port → what is sent there."""


@dataclass(frozen=True)
class Evaluated:
    """The payload of an event: its records where they are materialized, and what the operators behind it make of it."""

    dataset: Dataset | None = None
    """None where the records were only part of a plan."""
    schema: str = ""
    """Of its records, as Spark has it."""
    then: Mapping[Port, Outputs] = field(default_factory=dict)
    """Receiver in the group that is evaluated with it → what it sends."""
    writes: Mapping[str, Dataset] = field(default_factory=dict)
    """Writer that is evaluated with it → the files of its write action."""
    windows: Mapping[Port, Mapping[int, int]] = field(default_factory=dict)
    """Receiver with windows of time → number of a window → records of the dataset."""
    given: pa.Table | None = None
    """The records, where they came as a table."""

    @property
    def num_rows(self) -> int:
        """Records; 0 where nobody has counted them: the event was only part of a plan."""
        counted = self.dataset or next(iter(self.writes.values()), None)
        return 0 if counted is None else counted.num_rows

    @property
    def materialized(self) -> Dataset:
        """Its dataset. Raises `ProtocolViolation` if it has none: the chain had to materialize it."""
        if self.dataset is None:
            raise ProtocolViolation(
                "an event has neither records nor a dataset: it was evaluated as part of a plan only"
            )
        return self.dataset

    @property
    def table(self) -> pa.Table:
        """As `Dataset.table`."""
        return self.materialized.table if self.given is None else self.given
