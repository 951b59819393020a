"""Columns of the events of one run, read when they are first needed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence

import pyarrow as pa

from airflow_logio.errors import LogioError, NotKept
from airflow_logio.lineage.lineage_records import Elsewhere, columns_of, why_left_out
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage.result import EventNode, InputSetNode
from airflow_logio.store.port.lineage_port import LineageLog, StoredBody

MOST_AT_ONCE = 500
BYTES_AT_ONCE = 64 * 2**20
"""Events, and bytes of their bodies, that are read at once and are in memory together; one event may be larger."""
UNKNOWN_RECORD = 2**16
"""Bytes that a record is taken to have until some were seen: the first events are read one by one if they are large."""


class EventColumns:
    """Reads some events at a time, and of them no more than the columns that are asked for."""

    def __init__(self, log: LineageLog, load: Elsewhere | None, most: tuple[int, LogioError] | None = None) -> None:
        """`most`: bytes of bodies that may be read, each counted once, and what is raised for more: of what would be too
        much, nothing is read, and less may be asked for."""
        self._log = log
        self._load = load
        self._most = most
        self._counted: set[EventNode] = set()
        self._counted_bytes = 0
        """Events whose records were asked for, and bytes of these, if they are bounded."""
        self._records: dict[EventNode, int | None] = {}
        self._record_bytes = 0.0
        """Bytes per record, of the largest records that were seen."""

    def know(self, events: Iterable[EventNode]) -> None:
        """Ask how many records events have, all at once, unless they say it; one by one they are asked for otherwise.

        What they say is as old as the question that found them: retention may have removed these records since.
        """
        unknown = []
        for event in events:
            if event.records is None:
                unknown.append(event)
            else:
                self._records[event] = event.records
        for port, group in _by_port(unknown).items():
            found = {number: header.records for number, header in self._log.headers(port.operator, port.name, group)}
            self._records |= {event: found.get(number) for number, event in group.items()}

    def records(self, event: EventNode) -> int | None:
        """How many records it has; None if it is not in the log any more."""
        if event not in self._records:
            self.know([event])
        return self._records[event]

    def kept(self, event: EventNode, columns: Sequence[str] | None) -> pa.Table | None:
        """Those of `columns` that the event has; all for None. No table for records that retention has removed, or that a
        replay operator made. Raises as `lineage_records.records` for others."""
        return dict(self.each_kept([event], columns)).get(event)

    def each_kept(
        self, events: Collection[EventNode], columns: Sequence[str] | None
    ) -> Iterator[tuple[EventNode, pa.Table]]:
        """As `kept`, for all events that have a table."""
        self.know(one for one in events if one not in self._records)
        there = [one for one in dict.fromkeys(events) if self._records[one] is not None]
        if columns is not None and not columns:
            yield from ((one, pa.table({})) for one in there)
            return
        self._check_sizes(there)
        for port, group in self._groups(there):
            nodes = {event.event_id: event for event in group}
            for number, stored in self._log.bodies(port.operator, port.name, nodes):
                self._learn(nodes[number], stored)
                try:
                    table = columns_of(stored, str(nodes[number]), self._load, columns)
                except NotKept:
                    continue
                yield nodes[number], table

    def _learn(self, event: EventNode, stored: StoredBody) -> None:
        size = len(stored.body) / max(1, self._records[event] or 0)
        self._record_bytes = max(self._record_bytes, size)

    def _check_sizes(self, events: Iterable[EventNode]) -> None:
        """Before any of them is read: one event may be larger than all that may be."""
        if self._most is None:
            return
        most, error = self._most
        uncounted = [one for one in events if one not in self._counted]
        size = self._counted_bytes
        for port, group in _by_port(uncounted).items():
            size += self._log.size(port.operator, port.name, group)
        if size > most:
            raise error
        self._counted.update(uncounted)
        self._counted_bytes = size

    def each_needed(
        self, events: Collection[EventNode], columns: Sequence[str] | None
    ) -> Iterator[tuple[EventNode, pa.Table]]:
        """As `each_kept`, for all these events. Raises `LineageUnknown` or `NotKept` at the end if one has no table."""
        missing = dict.fromkeys(events)
        for event, table in self.each_kept(events, columns):
            del missing[event]
            yield event, table
        for event in missing:
            raise why_left_out(self._log, event.port, event.event_id, str(event))

    def _groups(self, events: Collection[EventNode]) -> Iterator[tuple[Port, list[EventNode]]]:
        """Events of one port that are read at once, by what is known of the size of records when they are asked for."""
        by_port: dict[Port, deque[EventNode]] = defaultdict(deque)
        for event in events:
            by_port[event.port].append(event)
        at_once = BYTES_AT_ONCE if self._most is None else min(BYTES_AT_ONCE, self._most[0])
        for port, left in by_port.items():
            while left:
                group = [left.popleft()]
                size = self._size(group[0])
                while left and len(group) < MOST_AT_ONCE and size + self._size(left[0]) <= at_once:
                    size += self._size(left[0])
                    group.append(left.popleft())
                yield port, group

    def _size(self, event: EventNode) -> float:
        """An estimate of the body of an event, in bytes."""
        return max(1, self._records[event] or 0) * (self._record_bytes or UNKNOWN_RECORD)

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


def _by_port(events: Iterable[EventNode]) -> dict[Port, dict[int, EventNode]]:
    """Port → id → event."""
    found: dict[Port, dict[int, EventNode]] = defaultdict(dict)
    for event in events:
        found[event.port][event.event_id] = event
    return found


def common(tables: Iterable[pa.Table]) -> list[str]:
    """Names of the columns that all have, once each."""
    every = [one.column_names for one in tables]
    return [name for name in every[0] if all(names.count(name) == 1 for names in every)] if every else []
