"""Columns of the events of one run, read when they are first needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from airflow_logio.errors import LineageUnknown, NotKept
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.lineage_records import Elsewhere, columns_of
from airflow_logio.store.lineage.result import EventNode, InputSetNode
from airflow_logio.store.lineage_port import LineageLog


class EventColumns:
    """Reads one event after the other, and of it no more than the columns that are asked for."""

    def __init__(self, log: LineageLog, load: Elsewhere | None) -> None:
        self._log = log
        self._load = load
        self._records: dict[EventNode, int | None] = {}

    def know(self, events: Iterable[EventNode]) -> None:
        """Ask how many records events have, all at once; one by one they are asked for otherwise."""
        by_port: dict[Port, dict[int, EventNode]] = defaultdict(dict)
        for event in events:
            by_port[event.port][event.event_id] = event
        for port, group in by_port.items():
            found = {number: header.records for number, header in self._log.headers(port.operator, port.name, group)}
            self._records |= {event: found.get(number) for number, event in group.items()}

    def records(self, event: EventNode) -> int | None:
        """How many records it has; None if it is not in the log any more."""
        if event not in self._records:
            self.know([event])
        return self._records[event]

    def needed(self, event: EventNode, columns: Sequence[str] | None) -> pa.Table:
        """Those of `columns` that it has; None: all. Raises as `lineage_records.records`."""
        return columns_of(self._log, event.port, event.event_id, str(event), self._load, columns)

    def kept(self, event: EventNode, columns: Sequence[str] | None) -> pa.Table | None:
        """As `needed`; None for records that retention has removed, or that a replay operator made."""
        if self.records(event) is None:
            return None
        try:
            return self.needed(event, columns)
        except (LineageUnknown, NotKept):
            return None

    def ports_of(self, inset: InputSetNode) -> Collection[tuple[str, Port, int]]:
        """(input port, sender, event_id) of the events in an Input Set: one sender may feed several ports."""
        found = self._log.events_in(inset.operator, [inset.inset_id])
        return {(port, sender, number) for _, port, sender, number in found}

    def siblings(self, event: EventNode, inset_id: str) -> Collection[EventNode]:
        """All events of its port that were made from the Input Set."""
        made = self._log.outputs_of(event.port.operator, [inset_id], [event.port.name])
        found = [EventNode(port, number) for _, port, number in made]
        self.know(one for one in found if one not in self._records)
        return found


def common(tables: Iterable[pa.Table]) -> list[str]:
    """Names of the columns that all have, once each."""
    every = [one.column_names for one in tables]
    return [name for name in every[0] if all(names.count(name) == 1 for names in every)] if every else []
