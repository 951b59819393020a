"""Effects as rows: what a batch of effects adds to each table, and what remains to be done to existing rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import LogPart, parts_of
from airflow_logio.protocol.values import Kind, Port, ReadStatus, Status
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.rules.row_forms import STATE_CHANNEL, encode_header, read_channel, seal, write_channel
from airflow_logio.store.sql.schema import OPEN, PENDING

Row = dict[str, Any]


class EffectRows:
    """Effects of one commit, sorted by the parts of its transaction. Touches no database."""

    def __init__(self, ref: GroupRef, effects: Iterable[fx.Effect]) -> None:
        self._run = ref.run_id
        self._code = ref.code
        self.event_log: list[Row] = []
        self.event_data: list[Row] = []
        self.lineage: list[Row] = []
        self.reads: list[Row] = []
        self.assigned: list[fx.Acknowledge] = []
        self.done: list[fx.MarkDone] = []
        self.aside: list[fx.SetAside] = []
        self.states: dict[str, Row] = {}
        """Current states; the last one of an operator counts."""
        self.snapshots: list[Row] = []
        self.counts: dict[tuple[Port, str], list[int]] = {}
        self.concluding: list[fx.Effect] = []
        """Those that change rows of earlier steps, in the order of the steps."""
        sort: Mapping[LogPart, Callable[[Any], None]] = {
            LogPart.ROWS: self._add,
            LogPart.ASSIGN: self.assigned.append,
            LogPart.DONE: self.done.append,
            LogPart.ASIDE: self.aside.append,
            LogPart.CONCLUDE: self._conclude,
            LogPart.STATES: self._store,
            LogPart.COUNT: self._count,
        }
        for effect in effects:
            for part in parts_of(effect):
                sort[part](effect)

    def _conclude(self, effect: fx.Effect) -> None:
        if isinstance(effect, fx.WritesDone):
            done = effect.last - effect.first + 1
            self.under_way(Port(effect.operator, effect.connection), PENDING, -done)
        self.concluding.append(effect)

    def _store(self, effect: fx.StoreState) -> None:
        self.states[effect.operator] = self._state_row(effect.operator, 0, effect.data)

    def _count(self, effect: fx.CountEvents) -> None:
        total = self.counts.setdefault((effect.port, effect.direction), [0, 0, 0])
        for index, value in enumerate((effect.events, effect.records, effect.bytes)):
            total[index] += value

    def under_way(self, port: Port, direction: str, rows: int) -> None:
        """Count that many rows more, or fewer, as not done."""
        self.counts.setdefault((port, direction), [0, 0, 0])[0] += rows

    def _add(self, effect: fx.Effect) -> None:
        match effect:
            case fx.LogEvent():
                self._log_event(effect)
            case fx.Acknowledge():
                self._assign_further(effect)
            case fx.LogWrite():
                self._log_write(effect)
            case fx.LogRead():
                self._log_read(effect)
            case fx.LogStateEvent():
                self._log_state(effect)
            case fx.CompleteReadAction():
                self._read_event(effect)
            case fx.StartReadAction(operator, connection, action_id, description, kept):
                self._read_row(operator, connection, action_id, ReadStatus.INCOMPLETE, description, kept=kept)
            case fx.RecordLineage(sender, event_id, inset_id):
                self.lineage.append(
                    {
                        "run_id": self._run,
                        "send_op": sender.operator,
                        "send_port": sender.name,
                        "event_id": event_id,
                        "inset_id": inset_id,
                    }
                )
            case _:
                raise TypeError(f"{type(effect).__name__} adds no row")

    def _log_row(
        self,
        event_id: int,
        status: Status,
        sender: tuple[str, str | None, str],
        receiver: tuple[str, str | None],
        inset_id: str | None,
        size: int,
        *,
        kept: bool = False,
    ) -> None:
        send_op, send_port, channel = sender
        self.event_log.append(
            {
                "run_id": self._run,
                "event_id": event_id,
                "status": status.value,
                "send_op": send_op,
                "send_port": send_port,
                "channel": channel,
                "rec_op": receiver[0],
                "rec_port": receiver[1],
                "inset_id": inset_id,
                "size": size,
                "kept": kept,
            }
        )

    def _data_row(
        self,
        sender: tuple[str, str | None, str],
        event_id: int,
        header: bytes,
        body: bytes,
        *,
        ref: str | None = None,
        kept: bool = False,
    ) -> None:
        send_op, send_port, channel = sender
        self.event_data.append(
            {
                "run_id": self._run,
                "send_op": send_op,
                "send_port": send_port,
                "channel": channel,
                "event_id": event_id,
                "header": header,
                "body": b"" if ref is not None else body,
                "ref": ref,
                "kept": kept,
            }
        )

    def _log_event(self, effect: fx.LogEvent) -> None:
        event = effect.event
        body = b"" if event.made_of is not None else event.body or b""
        size = len(body) if event.made_of is None else event.made_of.size
        if event.kind is Kind.DATA and event.body is None and event.ref is None and event.made_of is None:
            raise LogInconsistent(f"event {event.event_id} of {event.sender} reached the log without a serialized body")
        sender = (event.sender.operator, event.sender.name, event.sender.name)
        for delivery in effect.deliveries:
            receiver = (delivery.receiver.operator, delivery.receiver.name)
            unassigned = Status.HELD if effect.held else Status.DONE if delivery.fused else Status.UNDONE
            for inset_id, status in delivery.assignments or ((None, unassigned),):
                self._log_row(event.event_id, status, sender, receiver, inset_id, size, kept=delivery.kept)
            self._assigned(delivery.receiver, delivery.assignments)
        header = encode_header(
            event.kind, event.records, body, dict(event.about), code=self._code, made_of=event.made_of
        )
        self._data_row(sender, event.event_id, header, body, ref=event.ref, kept=effect.kept)

    def _assign_further(self, effect: fx.Acknowledge) -> None:
        """The row that waited takes the first Input Set; each further one has a row of its own."""
        sender = (effect.sender.operator, effect.sender.name, effect.sender.name)
        receiver = (effect.receiver.operator, effect.receiver.name)
        for inset_id, status in effect.assignments[1:]:
            self._log_row(effect.event_id, status, sender, receiver, inset_id, 0, kept=effect.kept)
        self._assigned(effect.receiver, effect.assignments)

    def _assigned(self, receiver: Port, assignments: fx.Assignments) -> None:
        if undone := sum(status is Status.UNDONE for _, status in assignments):
            self.under_way(receiver, OPEN, undone)

    def _log_write(self, effect: fx.LogWrite) -> None:
        body = effect.body or b""
        sender = (effect.operator, None, write_channel(effect.connection))
        self._log_row(effect.number, Status.UNDONE, sender, (effect.operator, effect.connection), None, len(body))
        header = encode_header(Kind.DATA, effect.records, body, dict(effect.header))
        self._data_row(sender, effect.number, header, body, ref=effect.ref)
        self.under_way(Port(effect.operator, effect.connection), PENDING, 1)

    def _log_read(self, effect: fx.LogRead) -> None:
        body = effect.body or b""
        channel = read_channel(effect.connection)
        sender = (effect.operator, f"{effect.connection}.{effect.action_id}", channel)
        for inset_id in effect.inset_ids:
            self._log_row(effect.action_id, Status.DONE, sender, (effect.operator, None), inset_id, 0, kept=True)
        about = dict(effect.description)
        header = encode_header(Kind.DATA, effect.records, body, about)
        self._data_row(sender, effect.action_id, header, body, ref=effect.ref, kept=True)
        self._read_row(effect.operator, effect.connection, effect.action_id, ReadStatus.COMPLETE, about, kept=True)

    def _read_event(self, effect: fx.CompleteReadAction) -> None:
        """Event r of Algorithm 1 Step 2.b: undone until the last event of its effect is logged; its data is a reference."""
        if effect.ref is None:
            return
        channel = read_channel(effect.connection)
        sender = (effect.operator, f"{effect.connection}.{effect.action_id}", channel)
        self._log_row(effect.action_id, Status.UNDONE, sender, (effect.operator, None), None, 0)
        self._data_row(sender, effect.action_id, encode_header(Kind.DATA, effect.records, b""), b"", ref=effect.ref)

    def _read_row(
        self, operator: str, connection: str, action_id: int, status: ReadStatus, description: Any, *, kept: bool
    ) -> None:
        self.reads.append(
            {
                "run_id": self._run,
                "op": operator,
                "conn_id": connection,
                "action_id": action_id,
                "status": status.value,
                "action_desc": json.dumps(dict(description), sort_keys=True),
                "kept": kept,
            }
        )

    def _log_state(self, effect: fx.LogStateEvent) -> None:
        sender = (effect.operator, None, STATE_CHANNEL)
        receiver = (effect.operator, None)
        self._log_row(effect.state_id, effect.status, sender, receiver, effect.inset_id, 0, kept=effect.kept)
        self.snapshots.append(self._state_row(effect.operator, effect.state_id, effect.data))

    def _state_row(self, operator: str, state_id: int, data: bytes) -> Row:
        return {"run_id": self._run, "op": operator, "state_id": state_id, "sealed": seal(data)}
