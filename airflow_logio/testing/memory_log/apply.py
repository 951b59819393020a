"""Applies effects to the tables in memory, in the order of `protocol/commit.py`, with the refusals of the SQL adapter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import BEHIND_FENCE, LogPart, parts_of
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import GroupState, allowed_from
from airflow_logio.protocol.values import Kind, ReadStatus, Status
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.status_records import PortProgress
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.row_forms import STATE_CHANNEL, encode_header, read_channel, write_channel
from airflow_logio.testing.memory_log import retention, slots
from airflow_logio.testing.memory_log.tables import Body, BodyKey, GroupKey, LogRow, QuarantineRow, ReadRow, Tables


def apply_effects(tables: Tables, ref: GroupRef, effects: Sequence[fx.Effect]) -> tuple[Collected, ...]:
    """All parts of a transaction behind its fence. Returns the results of the garbage-collection effects."""
    writer = _Writer(tables, ref)
    waiting: dict[LogPart, list[fx.Effect]] = {part: [] for part in BEHIND_FENCE}
    for effect in effects:
        for part in parts_of(effect):
            waiting[part].append(effect)
    for part, of_part in waiting.items():
        do = _ADD if part is LogPart.ROWS else _CHANGE
        for effect in of_part:
            do[type(effect)](writer, effect)
    return tuple(writer.collected)


class _Writer:
    def __init__(self, tables: Tables, ref: GroupRef) -> None:
        self._tables = tables
        self._ref = ref
        self._run = ref.run_id
        self.collected: list[Collected] = []

    # --- rows that are new --------------------------------------------------------------------------------------------

    def _assign_further(self, effect: fx.Acknowledge) -> None:
        """The row that waited takes the first Input Set; each further one has a row of its own."""
        if len(effect.assignments) > 1:
            sender, receiver = effect.sender, effect.receiver
            body = BodyKey(self._run, sender.operator, sender.name, effect.event_id)
            for inset_id, status in effect.assignments[1:]:
                self._row(body, status, sender.name, receiver.operator, receiver.name, inset_id, kept=effect.kept)

    def _log_state(self, effect: fx.LogStateEvent) -> None:
        body = BodyKey(self._run, effect.operator, STATE_CHANNEL, effect.state_id)
        self._row(body, effect.status, None, effect.operator, None, effect.inset_id, kept=effect.kept)
        self._tables.add(self._tables.states, (self._run, effect.operator, effect.state_id), effect.data)

    def _record_lineage(self, effect: fx.RecordLineage) -> None:
        self._tables.add(self._tables.lineage, (self._run, effect.sender, effect.event_id, effect.inset_id), None)

    def _start_read(self, effect: fx.StartReadAction) -> None:
        key = (self._run, effect.operator, effect.connection, effect.action_id)
        about = json.loads(json.dumps(dict(effect.description)))
        self._tables.add(self._tables.reads, key, ReadRow(ReadStatus.INCOMPLETE, about, effect.kept))

    def _row(
        self,
        body: BodyKey,
        status: Status,
        send_port: str | None,
        receiver: str,
        rec_port: str | None,
        inset_id: str | None,
        size: int = 0,
        *,
        kept: bool = False,
    ) -> None:
        self._tables.log(LogRow(body, status, send_port, receiver, rec_port, inset_id, size, kept))

    def _log_event(self, effect: fx.LogEvent) -> None:
        event = effect.event
        data = b"" if event.made_of is not None else event.body or b""
        size = len(data) if event.made_of is None else event.made_of.size
        if event.kind is Kind.DATA and event.body is None and event.ref is None and event.made_of is None:
            raise LogInconsistent(f"event {event.event_id} of {event.sender} reached the log without a serialized body")
        body = BodyKey(self._run, event.sender.operator, event.sender.name, event.event_id)
        for delivery in effect.deliveries:
            receiver = delivery.receiver
            unassigned = Status.HELD if effect.held else Status.DONE if delivery.fused else Status.UNDONE
            for inset_id, status in delivery.assignments or ((None, unassigned),):
                port = event.sender.name
                self._row(body, status, port, receiver.operator, receiver.name, inset_id, size, kept=delivery.kept)
        header = encode_header(
            event.kind, event.records, data, dict(event.about), code=self._ref.code, made_of=event.made_of
        )
        self._body(body, Body(header, data, event.ref, effect.kept))

    def _body(self, key: BodyKey, row: Body) -> None:
        if row.ref is not None:
            row = row._replace(body=b"")
        self._tables.add(self._tables.bodies, key, row._replace(logged_at=self._tables.now()) if row.kept else row)

    def _log_write(self, effect: fx.LogWrite) -> None:
        data = effect.body or b""
        body = BodyKey(self._run, effect.operator, write_channel(effect.connection), effect.number)
        self._row(body, Status.UNDONE, None, effect.operator, effect.connection, None, len(data))
        header = encode_header(Kind.DATA, effect.records, data, dict(effect.header))
        self._body(body, Body(header, data, effect.ref))

    def _log_read_event(self, effect: fx.CompleteReadAction) -> None:
        """Event r of Algorithm 1 Step 2.b, where the effect is stored."""
        if effect.ref is None:
            return
        body = BodyKey(self._run, effect.operator, read_channel(effect.connection), effect.action_id)
        port = f"{effect.connection}.{effect.action_id}"
        self._row(body, Status.UNDONE, port, effect.operator, None, None)
        self._body(body, Body(encode_header(Kind.DATA, effect.records, b""), b"", effect.ref))

    def _log_read(self, effect: fx.LogRead) -> None:
        data, about = effect.body or b"", dict(effect.description)
        body = BodyKey(self._run, effect.operator, read_channel(effect.connection), effect.action_id)
        for inset_id in effect.inset_ids:
            port = f"{effect.connection}.{effect.action_id}"
            self._row(body, Status.DONE, port, effect.operator, None, inset_id, kept=True)
        self._body(body, Body(encode_header(Kind.DATA, effect.records, data, about), data, effect.ref, kept=True))
        key = (self._run, effect.operator, effect.connection, effect.action_id)
        self._tables.add(self._tables.reads, key, ReadRow(ReadStatus.COMPLETE, json.loads(json.dumps(about)), True))

    # --- rows that must be there --------------------------------------------------------------------------------------

    def _mark_done(self, effect: fx.MarkDone) -> None:
        rows = self._tables.events.undone_of(self._run, effect.operator, effect.inset_id)
        if len(rows) != effect.rows:
            what = f"operator {effect.operator!r}: undone rows of Input Set {effect.inset_id!r}"
            _expect(len(rows), effect.rows, what)
        self._tables.relog(rows, Status.DONE)

    def _conclude_read(self, effect: fx.CompleteReadAction | fx.ReadDone | fx.DropRead) -> None:
        operator, connection, action_id = effect.operator, effect.connection, effect.action_id
        match effect:
            case fx.CompleteReadAction():
                key = (self._run, operator, connection, action_id)
                found = self._tables.reads.get(key)
                if found is None:
                    _expect(0, 1, f"read action {action_id} of {operator!r}")
                else:
                    self._tables.put(self._tables.reads, key, found._replace(status=ReadStatus.COMPLETE))
            case fx.ReadDone():
                rows = self._event_of_read(operator, connection, action_id, Status.UNDONE)
                _expect(len(rows), 1, f"undone event of read action {action_id} of {operator!r}")
                self._tables.relog(rows, Status.DONE)
            case fx.DropRead():
                self._drop_read(effect)

    def _assign(self, effect: fx.Acknowledge) -> None:
        row = self._tables.events.on_their_way(self._run, effect.receiver).get(effect.event_id)
        if row is None:
            _expect(0, 1, f"{effect.receiver}: unassigned event {effect.event_id} to acknowledge")
        else:
            inset_id, status = effect.assignments[0] if effect.assignments else (None, Status.DONE)
            self._tables.relog([row], status, inset_id)

    def _event_of_read(self, operator: str, connection: str, action_id: int, status: Status) -> list[LogRow]:
        body = BodyKey(self._run, operator, read_channel(connection), action_id)
        row = self._tables.events.rows.get((body, operator, "", ""))
        return [row] if row is not None and row.status is status else []

    def _drop_read(self, effect: fx.DropRead) -> None:
        operator, connection, action_id = effect.operator, effect.connection, effect.action_id
        rows = self._event_of_read(operator, connection, action_id, Status.DONE)
        _expect(len(rows), 1, f"done event of read action {action_id} of {operator!r}")
        for row in rows:
            self._tables.unlog(row)
            self._tables.drop(self._tables.bodies, row.body)
        key = (self._run, operator, connection, action_id)
        if (action := self._tables.reads.get(key)) is not None and not action.kept:
            self._tables.drop(self._tables.reads, key)

    def _release(self, effect: fx.Release) -> None:
        sender, events = effect.sender, self._tables.events
        rows = [
            row
            for event_id in range(effect.first, effect.last + 1)
            for row in events.held_of(BodyKey(self._run, sender.operator, sender.name, event_id))
        ]
        _expect(len(rows), effect.rows, f"held events {effect.first}-{effect.last} of {sender}")
        self._tables.relog(rows, Status.UNDONE)

    def _set_aside(self, effect: fx.SetAside) -> None:
        rows = self._tables.events.undone_of(self._run, effect.operator, effect.inset_id)
        _expect(len(rows), effect.rows, f"operator {effect.operator!r}: undone rows of Input Set {effect.inset_id!r}")
        self._tables.relog(rows, Status.ASIDE)
        row = QuarantineRow(replicated_group(self._ref.group), effect.error, self._tables.now())
        self._tables.add(self._tables.quarantine, (self._run, effect.operator, effect.inset_id), row)

    def _finish_writes(self, effect: fx.WritesDone) -> None:
        rows = []
        for number in range(effect.first, effect.last + 1):
            body = BodyKey(self._run, effect.operator, write_channel(effect.connection), number)
            row = self._tables.events.rows.get((body, effect.operator, effect.connection, ""))
            if row is not None and row.status is Status.UNDONE:
                rows.append(row)
        what = f"pending write actions {effect.first}-{effect.last} of {effect.operator!r}"
        _expect(len(rows), effect.last - effect.first + 1, what)
        self._tables.relog(rows, Status.DONE)

    def _collect(self, effect: fx.Collect) -> None:
        self.collected.append(retention.collect(self._tables, self._run, effect))

    def _sweep_shared(self, effect: fx.SweepShared) -> None:
        self.collected.append(retention.sweep_shared(self._tables, self._run, effect))

    def _expire(self, effect: fx.ExpireLineage) -> None:
        self.collected.append(retention.expire(self._tables, self._run, effect))

    def _drain_group(self, _effect: fx.DrainGroup) -> None:
        """A group that is already draining after a rebuild, or that was declared dead, keeps its state."""
        key = GroupKey(self._run, self._ref.group)
        row, clock = self._tables.groups[key], self._tables.now()
        row = replace(row, drained_at=clock if row.drained_at is None else row.drained_at)
        if row.state in allowed_from(GroupState.DRAINING):
            row = replace(row, state=GroupState.DRAINING, since=clock, error=None)
        self._tables.put(self._tables.groups, key, row)

    def _finish_group(self, _effect: fx.FinishGroup) -> None:
        key, ref = GroupKey(self._run, self._ref.group), self._ref
        row, clock = self._tables.groups[key], self._tables.now()
        slots.finish(self._tables, ref)
        can_finish = row.state in allowed_from(GroupState.FINISHED)
        _expect(int(can_finish), 1, f"group {ref.group!r} in a state that can finish")
        finished = replace(row, state=GroupState.FINISHED, since=clock, error=None)
        self._tables.put(self._tables.groups, key, finished)
        driver = self._tables.drivers.get((key, ref.incarnation))
        if driver is not None:
            self._tables.put(self._tables.drivers, (key, ref.incarnation), replace(driver, ended_at=clock))

    # --- rows that are replaced ---------------------------------------------------------------------------------------

    def _store_state(self, effect: fx.StoreState) -> None:
        self._tables.put(self._tables.states, (self._run, effect.operator, 0), effect.data)

    def _count(self, effect: fx.CountEvents) -> None:
        key, clock, table = (self._run, effect.port, effect.direction), self._tables.now(), self._tables.counters
        old = table.get(key)
        events, records, size, first = (0, 0, 0, clock) if old is None else _totals(old)
        events, records, size = events + effect.events, records + effect.records, size + effect.bytes
        row = PortProgress(effect.port, effect.direction, events, records, size, first, clock)
        self._tables.put(table, key, row)


def _totals(row: PortProgress) -> tuple[int, int, int, float]:
    return row.events, row.records, row.bytes, row.first_at


_ADD: Mapping[type, Callable[[_Writer, Any], None]] = {
    fx.LogEvent: _Writer._log_event,
    fx.Acknowledge: _Writer._assign_further,
    fx.LogWrite: _Writer._log_write,
    fx.LogRead: _Writer._log_read,
    fx.LogStateEvent: _Writer._log_state,
    fx.RecordLineage: _Writer._record_lineage,
    fx.StartReadAction: _Writer._start_read,
    fx.CompleteReadAction: _Writer._log_read_event,
}
_CHANGE: Mapping[type, Callable[[_Writer, Any], None]] = {
    fx.Acknowledge: _Writer._assign,
    fx.MarkDone: _Writer._mark_done,
    fx.WritesDone: _Writer._finish_writes,
    fx.CompleteReadAction: _Writer._conclude_read,
    fx.ReadDone: _Writer._conclude_read,
    fx.DropRead: _Writer._conclude_read,
    fx.Release: _Writer._release,
    fx.SetAside: _Writer._set_aside,
    fx.Collect: _Writer._collect,
    fx.SweepShared: _Writer._sweep_shared,
    fx.ExpireLineage: _Writer._expire,
    fx.DrainGroup: _Writer._drain_group,
    fx.FinishGroup: _Writer._finish_group,
    fx.StoreState: _Writer._store_state,
    fx.CountEvents: _Writer._count,
}


def _expect(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise LogInconsistent(f"{what}: the step expects {expected} row(s) in the log, there are {found}")
