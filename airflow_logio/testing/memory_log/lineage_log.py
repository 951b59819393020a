"""`LineageLog` in memory: the rows of one run, indexed by what queries ask for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from airflow_logio.protocol.values import Port
from airflow_logio.store.port.lineage_port import Delivered, LineageLog, StoredBody
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.row_forms import Header, read_channel, read_header, size_of_payload
from airflow_logio.testing.memory_log.tables import BodyKey, LogRow, Tables

READS = read_channel("")


class MemoryLineageLog(LineageLog):
    """Takes a snapshot when it is made, inside a transaction. Rows are frozen, so it needs no lock afterwards."""

    def __init__(self, tables: Tables, run: Run) -> None:
        self.run = run
        self._bodies = dict(tables.bodies)
        self._reads = dict(tables.reads)
        self._counters = dict(tables.counters)
        self._made_from: dict[tuple[Port, int], list[str]] = defaultdict(list)
        self._made: dict[tuple[str, str], list[tuple[Port, int]]] = defaultdict(list)
        self._in_set: dict[tuple[str, str], list[LogRow]] = defaultdict(list)
        self._uses: dict[tuple[str, str, int], list[LogRow]] = defaultdict(list)
        self._delivered: dict[tuple[str, str, int], list[LogRow]] = defaultdict(list)
        for run_id, sender, event_id, inset_id in tables.lineage:
            if run_id == run.run_id:
                self._made_from[sender, event_id].append(inset_id)
                self._made[sender.operator, inset_id].append((sender, event_id))
        for row in tables.events.rows.values():
            if row.body.run_id == run.run_id and row.send_port is not None:
                place = row.body.operator, row.body.channel, row.body.event_id
                self._delivered[place].append(row)
                if row.inset_id is not None:
                    self._in_set[row.receiver, row.inset_id].append(row)
                    self._uses[place].append(row)

    def input_sets_of(self, sender: Port, event_ids: Collection[int]) -> Iterator[tuple[int, str]]:
        for event_id in sorted(event_ids):
            for inset_id in self._made_from.get((sender, event_id), ()):
                yield event_id, inset_id

    def outputs_of(
        self, operator: str, inset_ids: Collection[str], ports: Collection[str] | None = None
    ) -> Iterator[tuple[str, Port, int]]:
        for inset_id in sorted(inset_ids):
            for sender, event_id in sorted(self._made.get((operator, inset_id), ())):
                if ports is None or sender.name in ports:
                    yield inset_id, sender, event_id

    def events_in(
        self, operator: str, inset_ids: Collection[str], ports: Collection[str] | None = None
    ) -> Iterator[tuple[str, str, Port, int]]:
        for inset_id in sorted(inset_ids):
            for row in self._in_set.get((operator, inset_id), ()):
                if row.rec_port is not None and (ports is None or row.rec_port in ports):
                    yield inset_id, row.rec_port, Port(row.body.operator, row.body.channel), row.body.event_id

    def reads_in(self, operator: str, inset_ids: Collection[str]) -> Iterator[tuple[str, str, int]]:
        for inset_id in sorted(inset_ids):
            for row in self._in_set.get((operator, inset_id), ()):
                if row.rec_port is None:
                    yield inset_id, row.body.channel.removeprefix(READS), row.body.event_id

    def uses_of(self, sender: Port, event_ids: Collection[int]) -> Iterator[tuple[int, Port, str]]:
        for event_id in sorted(event_ids):
            for row in self._uses.get((sender.operator, sender.name, event_id), ()):
                yield event_id, Port(row.receiver, row.rec_port or ""), row.inset_id or ""

    def deliveries_of(self, sender: Port, event_ids: Collection[int]) -> Iterator[Delivered]:
        for event_id in sorted(event_ids):
            for row in self._delivered.get((sender.operator, sender.name, event_id), ()):
                if row.rec_port is not None:
                    yield Delivered(event_id, Port(row.receiver, row.rec_port), row.inset_id, row.status)

    def input_sets_of_read(self, operator: str, connection: str, action_id: int) -> list[str]:
        rows = self._uses.get((operator, read_channel(connection), action_id), ())
        return [row.inset_id for row in rows if row.inset_id is not None]

    def headers(self, operator: str, channel: str, event_ids: Collection[int]) -> Iterator[tuple[int, Header]]:
        for event_id in sorted(event_ids):
            if (row := self._bodies.get(BodyKey(self.run.run_id, operator, channel, event_id))) is not None:
                yield event_id, read_header(f"event {event_id} of {operator}.{channel}", row.header)

    def read_actions(
        self, operator: str, connection: str, action_ids: Collection[int]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for action_id in sorted(action_ids):
            if (row := self._reads.get((self.run.run_id, operator, connection, action_id))) is not None:
                yield action_id, row.description

    def bodies(self, operator: str, channel: str, event_ids: Collection[int]) -> Iterator[tuple[int, StoredBody]]:
        for event_id in sorted(event_ids):
            if (row := self._bodies.get(BodyKey(self.run.run_id, operator, channel, event_id))) is not None:
                yield event_id, StoredBody(row.header, row.body, row.ref)

    def size(self, operator: str, channel: str, event_ids: Collection[int]) -> int:
        bodies = (stored for _, stored in self.bodies(operator, channel, set(event_ids)))
        return sum(len(stored.body) if stored.ref is None else size_of_payload(stored.ref) for stored in bodies)

    def bodies_before(self, operator: str, channel: str, before: int, limit: int) -> Iterator[tuple[int, StoredBody]]:
        wanted = (self.run.run_id, operator, channel)
        ids = sorted(
            (key.event_id for key in self._bodies if key[:3] == wanted and key.event_id < before), reverse=True
        )
        for event_id in ids[:limit]:
            row = self._bodies[BodyKey(*wanted, event_id)]
            yield event_id, StoredBody(row.header, row.body, row.ref)

    def logged_since(self, sender: Port, at: float, limit: int) -> list[int]:
        wanted = (self.run.run_id, sender.operator, sender.name)
        found = (
            key.event_id for key, row in self._bodies.items() if key[:3] == wanted and row.kept and row.logged_at >= at
        )
        return sorted(found)[:limit]

    def newest_by(self, senders: Collection[Port]) -> dict[Port, int]:
        found = dict.fromkeys(senders, 0)
        for run_id, operator, channel, event_id in self._bodies:
            if run_id == self.run.run_id and (sender := Port(operator, channel)) in found:
                found[sender] = max(found[sender], event_id)
        return found

    def sent_by(self, senders: Collection[Port]) -> dict[Port, int]:
        rows = {sender: self._counters.get((self.run.run_id, sender, "out")) for sender in senders}
        return {sender: 0 if row is None else row.events for sender, row in rows.items()}
