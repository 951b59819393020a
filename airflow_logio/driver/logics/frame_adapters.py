"""Adapters of operators of mode ``dataframe``: what they make of an event has come with the event (ADR-81)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from airflow_logio.dataflow.functions.holding import SCHEMAS
from airflow_logio.dataflow.windows import Arrival
from airflow_logio.dataflow.writers.action_writers import INSERT
from airflow_logio.dataflow.writers.dataset_writer import DatasetWriter
from airflow_logio.driver.logics.adapters import StatefulLogic, StatelessLogic
from airflow_logio.errors import OperatorFailed
from airflow_logio.protocol.logic import Emit, Output, Write
from airflow_logio.protocol.values import Event, Port
from airflow_logio.spark.chains import Evaluated, Outputs
from airflow_logio.spark.dataset_parts import DatasetPart
from airflow_logio.spark.published_places import records_outside, said_of_others
from airflow_logio.spark.schemas import said_of_columns
from airflow_logio.systems.payloads.dataset import Dataset


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
            self._check_day(self._operator, written, port, event)
            yield Write(self._operator.connection, {"action": INSERT}, written, written.num_rows)
        for name, output in self._outputs(port, event).items():
            yield Emit(name, output, output.num_rows, late=output.late)

    def _check_day(self, writer: DatasetWriter, written: Dataset, port: str, event: Event) -> None:
        """Records of another day, or of none, never get into the log as a write action."""
        others = records_outside(writer.scope, written.manifest) if writer.by else {}
        if others:
            advice = "put OwnPartition before the writer, and what is late elsewhere"
            self._fail_at(OperatorFailed(f"{said_of_others(writer.scope, others)}: {advice}"), port, event)

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


class FrameWindowLogic(StatefulLogic):
    """A window over datasets (ADR-84): an event is materialized before it comes, with how many records each window has."""

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        self._last = (port, event.event_id)
        try:
            with self._call("assign", port=port, event=event):
                parts = self._assign_evaluated(port, event, event.payload, state)
        except Exception as error:
            self._fail_at(error, port, event, is_first=not self._assigned)
        self._assigned += 1
        return parts

    def _assign_evaluated(self, port: str, event: Event, given: Evaluated, state: dict[str, Any]) -> Mapping[str, Any]:
        known = state[SCHEMAS].setdefault(port, given.schema)
        if known != given.schema:
            raise other_columns(f"input port {port!r}", known, given.schema)
        if given.given is not None:
            return dict(self._operator.assign(self._input(port, event), state))
        dataset, records = given.materialized, given.windows.get(Port(self._name, port), {})
        names = self._operator.window.joined(Arrival(port, event.event_id, records), state)
        counts = [records[number] for number in sorted(records)] if records else [dataset.num_rows] * len(names)
        return {name: self._part(port, dataset, count) for name, count in zip(names, counts, strict=True)}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        """Reference and name say it all: nothing is looked at."""
        given = event.payload
        return self._part(port, given, 0) if isinstance(given, Dataset) else super().part(port, event, inset_id)

    def _part(self, port: str, dataset: Dataset, records: int) -> Any:
        share = dataset.nbytes * records // max(dataset.num_rows, 1)
        return self._operator.part_of(port, DatasetPart(dataset, share))


def other_columns(what: str, known: str, schema: str) -> OperatorFailed:
    return OperatorFailed(f"{what} {said_of_columns(known, schema)}")
