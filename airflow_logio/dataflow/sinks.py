"""Ready-made sinks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.dataflow.operators import External, InputEvent, InputSet, PortTable, SinkOperator
from airflow_logio.errors import OperatorFailed


class Count(SinkOperator):
    """Counts what it is sent. Global state: ``{"events": ..., "records": ...}``; it uses no Input Sets."""

    order_insensitive = True

    def initial_state(self) -> dict[str, Any]:
        return {"events": 0, "records": 0}

    def assign(self, event: InputEvent, state: dict[str, Any]) -> Mapping[str, Any]:
        state["events"] += 1
        state["records"] += event.table.num_rows
        return {}

    def part(self, event: InputEvent, inset_id: str) -> Any:
        raise OperatorFailed(f"Count assigns no Input Sets, yet event {event.event_id} is logged for {inset_id!r}")

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return ()

    def generate(self, input_set: InputSet, state: Mapping[str, Any], external: External) -> Iterable[PortTable]:
        raise OperatorFailed(f"Count generates nothing, yet Input Set {input_set.inset_id!r} was triggered")
