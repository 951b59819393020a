"""Columns of the events of one run, read when they are first needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa

from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.lineage_records import Elsewhere, columns_of, why_left_out
from airflow_logio.store.lineage.result import EventNode, InputSetNode
from airflow_logio.store.lineage_port import LineageLog

MOST_EVENTS_AT_ONCE = 500
MOST_RECORDS_AT_ONCE = 50_000
"""Of which the bodies are in memory at a time; one event may have more."""


class EventColumns:
    """Reads some events at a time, and of them no more than the columns that are asked for."""

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

    def kept(self, event: EventNode, columns: Sequence[str] | None) -> pa.Table | None:
        """Those of `columns` that it has; None: all. No table for records that retention has removed, or that a replay
        operator made. Raises as `lineage_records.records` for others."""
        return dict(self.each_kept([event], columns)).get(event)

    def each_kept(
        self, events: Collection[EventNode], columns: Sequence[str] | None
    ) -> Iterator[tuple[EventNode, pa.Table]]:
        """As `kept`, of all that have a table."""
        self.know(one for one in events if one not in self._records)
        for port, group in self._groups(events):
            nodes = {event.event_id: event for event in group}
            names = {number: str(event) for number, event in nodes.items()}
            for number, table in columns_of(self._log, port, names, self._load, columns):
                yield nodes[number], table

    def all_needed(self, events: Collection[EventNode], columns: Sequence[str] | None) -> dict[EventNode, pa.Table]:
        """As `kept`, of all these events. Raises `LineageUnknown` or `NotKept` if one has no table."""
        found = dict(self.each_kept(events, columns))
        for event in events:
            if event not in found:
                raise why_left_out(self._log, event.port, event.event_id, str(event))
        return found

    def _groups(self, events: Collection[EventNode]) -> Iterator[tuple[Port, list[EventNode]]]:
        """Those that are in the log, as many as may be in memory at a time."""
        by_port: dict[Port, list[EventNode]] = defaultdict(list)
        for event in dict.fromkeys(events):
            if self._records[event] is not None:
                by_port[event.port].append(event)
        for port, every in by_port.items():
            group: list[EventNode] = []
            records = 0
            for event in every:
                many = self._records[event] or 0
                if group and (len(group) == MOST_EVENTS_AT_ONCE or records + many > MOST_RECORDS_AT_ONCE):
                    yield port, group
                    group, records = [], 0
                group.append(event)
                records += many
            yield port, group

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
