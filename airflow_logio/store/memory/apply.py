"""Effects applied to the tables in memory: in the order and with the refusals of the SQL adapter (`sql/apply.py`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, allowed_from
from airflow_logio.protocol.values import Kind, Port, ReadStatus, Status
from airflow_logio.store.channels import STATE_CHANNEL, read_channel, write_channel
from airflow_logio.store.header import encode_header
from airflow_logio.store.memory.tables import BodyKey, GroupKey, LogRow, Tables
from airflow_logio.store.records import GroupRef, PortProgress


def apply_effects(tables: Tables, ref: GroupRef, effects: Sequence[fx.Effect]) -> None:
    """Rows first, then assignments, done marks, what concludes, states: any concatenation of steps can be applied."""
    writer = _Writer(tables, ref)
    for insert in effects:
        writer.insert(insert)
    for conclude in (fx.Acknowledge, fx.MarkDone, fx.WritesDone, fx.CompleteReadAction, fx.FinishGroup):
        for effect in effects:
            if isinstance(effect, conclude):
                writer.conclude(effect)
    for effect in effects:
        writer.store(effect)


class _Writer:
    def __init__(self, tables: Tables, ref: GroupRef) -> None:
        self._tables = tables
        self._ref = ref
        self._run = ref.run_id

    # --- rows that are new --------------------------------------------------------------------------------------------

    def insert(self, effect: fx.Effect) -> None:
        match effect:
            case fx.LogEvent():
                self._log_event(effect)
            case fx.Acknowledge(sender, receiver, event_id, assignments):
                body = BodyKey(self._run, sender.operator, sender.name, event_id)
                for inset_id, status in assignments[1:]:
                    self._row(body, status, sender.name, receiver.operator, receiver.name, inset_id)
            case fx.LogWrite():
                self._log_write(effect)
            case fx.LogRead():
                self._log_read(effect)
            case fx.LogStateEvent(operator, state_id, inset_id, data, status):
                body = BodyKey(self._run, operator, STATE_CHANNEL, state_id)
                self._row(body, status, None, operator, None, inset_id)
                self._tables.add(self._tables.states, (self._run, operator, state_id), data)
            case fx.RecordLineage(sender, event_id, inset_id):
                self._tables.add(self._tables.lineage, (self._run, sender, event_id, inset_id), None)
            case fx.StartReadAction(operator, connection, action_id, description):
                key = (self._run, operator, connection, action_id)
                about = json.loads(json.dumps(dict(description)))
                self._tables.add(self._tables.reads, key, (ReadStatus.INCOMPLETE, about))

    def _row(
        self,
        body: BodyKey,
        status: Status,
        send_port: str | None,
        receiver: str,
        rec_port: str | None,
        inset_id: str | None,
        size: int = 0,
    ) -> None:
        self._tables.log(LogRow(body, status, send_port, receiver, rec_port, inset_id, size))

    def _log_event(self, effect: fx.LogEvent) -> None:
        event, data = effect.event, effect.event.body or b""
        if event.kind is Kind.DATA and event.body is None:
            raise LogInconsistent(f"event {event.event_id} of {event.sender} reached the log without a serialized body")
        body = BodyKey(self._run, event.sender.operator, event.sender.name, event.event_id)
        for delivery in effect.deliveries:
            receiver = delivery.receiver
            unassigned = Status.DONE if delivery.fused else Status.UNDONE
            for inset_id, status in delivery.assignments or ((None, unassigned),):
                self._row(body, status, event.sender.name, receiver.operator, receiver.name, inset_id, len(data))
        self._tables.add(self._tables.bodies, body, (encode_header(event.kind, event.records, data), data))

    def _log_write(self, effect: fx.LogWrite) -> None:
        data = effect.body or b""
        body = BodyKey(self._run, effect.operator, write_channel(effect.connection), effect.number)
        self._row(body, Status.UNDONE, None, effect.operator, effect.connection, None, len(data))
        header = encode_header(Kind.DATA, effect.records, data, dict(effect.header))
        self._tables.add(self._tables.bodies, body, (header, data))

    def _log_read(self, effect: fx.LogRead) -> None:
        data, about = effect.body or b"", dict(effect.description)
        body = BodyKey(self._run, effect.operator, read_channel(effect.connection), effect.action_id)
        for inset_id in effect.inset_ids:
            port = f"{effect.connection}.{effect.action_id}"
            self._row(body, Status.DONE, port, effect.operator, None, inset_id)
        self._tables.add(self._tables.bodies, body, (encode_header(Kind.DATA, effect.records, data, about), data))
        key = (self._run, effect.operator, effect.connection, effect.action_id)
        self._tables.add(self._tables.reads, key, (ReadStatus.COMPLETE, json.loads(json.dumps(about))))

    # --- rows that must be there --------------------------------------------------------------------------------------

    def conclude(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Acknowledge():
                self._assign(effect)
            case fx.MarkDone(operator, inset_id, expected):
                rows = self._tables.events.undone_of(self._run, operator, inset_id)
                _expect(len(rows), expected, f"operator {operator!r}: undone rows of Input Set {inset_id!r}")
                self._tables.relog(rows, status=Status.DONE)
            case fx.WritesDone():
                self._finish_writes(effect)
            case fx.CompleteReadAction(operator, connection, action_id):
                key = (self._run, operator, connection, action_id)
                found = self._tables.reads.get(key)
                if found is None:
                    _expect(0, 1, f"read action {action_id} of {operator!r}")
                else:
                    self._tables.put(self._tables.reads, key, (ReadStatus.COMPLETE, found[1]))
            case fx.FinishGroup():
                self._finish_group()

    def _assign(self, effect: fx.Acknowledge) -> None:
        row = self._tables.events.on_their_way(self._run, effect.receiver).get(effect.event_id)
        if row is None:
            _expect(0, 1, f"{effect.receiver}: unassigned event {effect.event_id} to acknowledge")
        else:
            inset_id, status = effect.assignments[0] if effect.assignments else (None, Status.DONE)
            self._tables.relog([row], inset_id=inset_id, status=status)

    def _finish_writes(self, effect: fx.WritesDone) -> None:
        rows = []
        for number in range(effect.first, effect.last + 1):
            body = BodyKey(self._run, effect.operator, write_channel(effect.connection), number)
            row = self._tables.events.rows.get((body, effect.operator, effect.connection, ""))
            if row is not None and row.status is Status.UNDONE:
                rows.append(row)
        what = f"pending write actions {effect.first}-{effect.last} of {effect.operator!r}"
        _expect(len(rows), effect.last - effect.first + 1, what)
        self._tables.relog(rows, status=Status.DONE)

    def _finish_group(self) -> None:
        key, ref = GroupKey(self._run, self._ref.group, self._ref.replica), self._ref
        row, clock = self._tables.groups[key], self._tables.now()
        can_finish = row.state in allowed_from(GroupState.FINISHED)
        _expect(int(can_finish), 1, f"group {ref.group!r} in a state that can finish")
        finished = replace(row, state=GroupState.FINISHED, since=clock, error=None)
        self._tables.put(self._tables.groups, key, finished)
        driver = self._tables.drivers.get((key, ref.incarnation))
        if driver is not None:
            self._tables.put(self._tables.drivers, (key, ref.incarnation), replace(driver, ended_at=clock))

    # --- rows that are replaced ---------------------------------------------------------------------------------------

    def store(self, effect: fx.Effect) -> None:
        match effect:
            case fx.StoreState(operator, data):
                self._tables.put(self._tables.states, (self._run, operator, 0), data)
            case fx.Count(port, direction, events, records, size):
                self._count(port, direction, events, records, size)

    def _count(self, port: Port, direction: str, events: int, records: int, size: int) -> None:
        key, clock = (self._run, port, direction), self._tables.now()
        old = self._tables.counters.get(key, PortProgress(port, direction, 0, 0, 0, clock, clock))
        new = replace(
            old, events=old.events + events, records=old.records + records, bytes=old.bytes + size, last_at=clock
        )
        self._tables.put(self._tables.counters, key, new)


def _expect(found: int, expected: int, what: str) -> None:
    if found != expected:
        raise LogInconsistent(f"{what}: the step expects {expected} row(s) in the log, there are {found}")
