"""Which records of an event an Input Set has, without the code of the operator."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.timeline import Grid, window_numbers
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.record_rules import Part, RecordRules


@dataclass(frozen=True, slots=True)
class InputSetPart:
    """The rule for one Input Set; with `rule` None, nothing is known of the parts that it has."""

    rule: Part | None
    name: str
    """The Input Set for its generative function."""

    @classmethod
    def of(cls, rules: RecordRules, inset_id: str) -> InputSetPart:
        if "" in rules.parts:
            return cls(rules.parts[""], inset_id)
        function, _, name = inset_id.partition(":")
        return cls(rules.parts.get(function), name)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of an event that decide it."""
        return (self.rule.on,) if self.rule is not None and self.rule.on else ()

    def mask(self, port: str, event_id: int, table: pa.Table, records: int) -> npt.NDArray[np.bool_] | None:
        """For each record of an event of an input port, whether the Input Set has it; None if that is not known."""
        if self.rule is None:
            return None
        if not self.rule.on:
            return np.ones(records, dtype=bool)
        grid = Grid(self.rule.on, self.rule.seconds, self.rule.origin)
        try:
            start = datetime.fromisoformat(self.name).replace(tzinfo=UTC)
            numbers, _ = window_numbers(InputEvent(port, event_id, table), grid.on, grid.seconds, grid.origin)
        except (ValueError, OperatorFailed):
            return None
        found: npt.NDArray[np.bool_] = numbers == grid.number(int(start.timestamp()))
        return found
