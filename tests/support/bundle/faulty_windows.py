"""Windows over the same events that errors stop: while an event is accumulated, at a trigger, at the end of the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.dataflow import Count, ParquetSource, Pipeline
from airflow_logio.dataflow.operators import External, InputEvent, InputSet, PortTable, StatefulOperator

RECORDS_PER_EVENT = 250
SIZE = 4
"""Events of a window."""
UNLUCKY = 7
"""Id of the event that the first two cannot use; it belongs to window 1."""


class Windows(StatefulOperator):
    """Counts the events of each window; raises in one phase."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def initial_state(self) -> dict[str, Any]:
        return {"seen": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        state["seen"] = event.event_id
        return {str((event.event_id - 1) // SIZE): event.event_id}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        return event.event_id

    def accumulate(self, held: Any | None, part: Any) -> Any:
        if self.phase == "accumulate" and part == UNLUCKY:
            raise KeyError("basket")
        return super().accumulate(held, part)

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        if self.phase == "trigger" and state["seen"] == UNLUCKY:
            raise KeyError("basket")
        return [inset for inset in open_insets if (int(inset) + 1) * SIZE <= state["seen"]]

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        if self.phase == "flush":
            raise KeyError("basket")
        return open_insets

    def order(self, inset_id: str) -> int:
        return int(inset_id)

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        return ()


def build() -> Pipeline:
    made = Pipeline("windows", params={"transactions": str})
    columns = ("basket_id", "product_id", "quantity")
    ingest = made.source(
        "ingest", ParquetSource("{transactions}", records_per_event=RECORDS_PER_EVENT, columns=columns)
    )
    made.group("ingest", ingest)
    for phase in ("accumulate", "trigger", "flush"):
        made.sink(f"{phase}_done", Count(), made.operator(phase, Windows(phase), ingest))
        made.group(phase, phase, f"{phase}_done")
    return made


windows = build()
