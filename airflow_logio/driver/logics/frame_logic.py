"""The adapter of a stateless operator of mode ``dataframe``, and of a `DatasetWriter`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_logio.dataflow.functions.windowed_operators import SCHEMAS
from airflow_logio.dataflow.writers.action_writers import INSERT
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.driver.logics.stateless_logic import StatelessLogic
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit, Output, Write
from airflow_logio.protocol.values import Event, Port
from airflow_logio.spark.chains import Outputs
from airflow_logio.spark.schemas import said_of_columns


class FrameLogic(StatelessLogic):
    """An operator of mode ``dataframe``: what it makes of an event has come with the event (ADR-81).

    Its state is the schemas of what it has sent, by output port, or written: they stay the same for a whole run.
    """

    def initial_state(self) -> dict[str, Any]:
        return {SCHEMAS: {}}

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        for name, schema in self._schemas(port, event).items():
            known = state[SCHEMAS].setdefault(name, schema)
            if known != schema:
                self._fail_at(other_columns(self._named(name), known, schema), port, event)
        return super().assign(port, event, state)

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        port, event = held
        if isinstance(self._operator, DatasetWriter):
            written = event.payload.writes[self._name]
            yield Write(self._operator.connection, {"action": INSERT}, written, written.num_rows)
        for name, output in self._outputs(port, event).items():
            yield Emit(name, output, output.num_rows)

    def _named(self, port: str) -> str:
        """What has one schema."""
        if isinstance(self._operator, DatasetWriter):
            return f"folder {self._operator.folder or '.'!r} of connection {self._operator.connection!r}"
        return f"output port {port!r}"

    def _schemas(self, port: str, event: Event) -> Mapping[str, str]:
        if isinstance(self._operator, DatasetWriter):
            return {port: event.payload.schema}
        return {name: output.schema for name, output in self._outputs(port, event).items()}

    def _outputs(self, port: str, event: Event) -> Outputs:
        return {} if isinstance(self._operator, DatasetWriter) else event.payload.then[Port(self._name, port)]


def other_columns(what: str, known: str, schema: str) -> OperatorFailed:
    return OperatorFailed(f"{what} {said_of_columns(known, schema)}")
