"""The adapter of a `StatelessOperator`, ready-made writers included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.driver.logics.adapter import Adapter, checked_tables
from airflow_logio.driver.logics.kept_in_files import written_in_files
from airflow_logio.protocol.logic import Emit, Output, Write
from airflow_logio.protocol.replicas import PLACE
from airflow_logio.protocol.values import Event


class StatelessLogic(Adapter):
    """Each event is an Input Set of its own; State Update and Triggering are trivial (Section 2.3)."""

    def initial_state(self) -> dict[str, Any]:
        return {}

    def assign(self, port: str, event: Event, state: dict[str, Any]) -> Mapping[str, Any]:
        inset_id = str(event.event_id) if len(self._operator.inputs) == 1 else f"{port}:{event.event_id}"
        return {inset_id: (port, event)}

    def part(self, port: str, event: Event, inset_id: str) -> Any:
        return (port, event)

    def accumulate(self, held: Any | None, part: Any) -> Any:
        return part

    def triggered(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return open_insets

    def flush(self, state: Mapping[str, Any], open_insets: Sequence[str]) -> Sequence[str]:
        return open_insets

    def order(self, inset_id: str) -> int | str | None:
        return None

    def generate(self, inset_id: str, held: Any, state: Mapping[str, Any]) -> Iterable[Output]:
        port, event = held
        try:
            in_files = written_in_files(self._operator, port, event)
            yield from self._generated(self._input(port, event), event) if in_files is None else in_files
        except Exception as error:
            self._fail_at(error, port, event, inset_id, is_first=not self._has_generated)
        self._has_generated = True

    def _generated(self, given: InputEvent, event: Event) -> Iterator[Output]:
        external = self._external()
        brings_records = given.table.num_rows or given.place is None
        outputs: Sequence[tuple[str, pa.Table]] = []
        if brings_records:
            with self._call("process", port=given.port, event=event):
                outputs = checked_tables(self._operator.process(given, external))
        serialized = {id(given.table): event.body} if event.body else {}
        for action in external.collected:
            yield _with_body(action, serialized)
        for name, table, about in self._told(given, outputs):
            yield Emit(name, table, table.num_rows, serialized.get(id(table)), about)

    def _told(
        self, given: InputEvent, outputs: Sequence[tuple[str, pa.Table]]
    ) -> Iterator[tuple[str, pa.Table, Mapping[str, Any]]]:
        """What is sent. If a Merger keeps the order, each event has its place. With the last one, a silent port gets an event
        without records, so that the Merger learns that nothing more comes."""
        if given.place is None:
            yield from ((name, table, {}) for name, table in outputs)
            return
        number, is_last = given.place
        left = Counter(name for name, _ in outputs)
        silent = [port for port in self._operator.outputs if port not in left and is_last]
        for name, table in [*outputs, *((port, given.table.slice(0, 0)) for port in silent)]:
            left[name] -= 1
            yield name, table, {PLACE: [number, is_last and left[name] <= 0]}


def _with_body(action: Any, serialized: Mapping[int, bytes | None]) -> Output:
    """A write action of the very records that arrived reuses their bytes."""
    body = serialized.get(id(action.payload))
    if isinstance(action, Write) and body is not None:
        return Write(action.connection, action.header, action.payload, action.records, body)
    return action  # type: ignore[no-any-return]
