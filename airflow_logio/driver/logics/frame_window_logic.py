"""The adapter of a window over DataFrames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_logio.dataflow.functions.windowed_operators import SCHEMAS
from airflow_logio.dataflow.windows import Arrival
from airflow_logio.driver.logics.frame_logic import other_columns
from airflow_logio.driver.logics.stateful_logic import StatefulLogic
from airflow_logio.protocol.values import Event, Port
from airflow_logio.spark.chains import Evaluated
from airflow_logio.spark.dataset_parts import DatasetPart
from airflow_logio.systems.payloads.dataset import Dataset


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
