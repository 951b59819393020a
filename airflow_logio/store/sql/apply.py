"""Effects as SQL statements: one batch of effects, a handful of statements.

Effects of many steps are applied by kind, not one by one: rows first, then assignments, then done marks, then states.
That order is safe for any concatenation of steps, because an Input Set that is marked done can be assigned no more, and
of several states of one operator the last one holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, allowed_from
from airflow_logio.protocol.values import Kind, Port, ReadStatus, Status
from airflow_logio.store.header import encode_header
from airflow_logio.store.records import GroupRef
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now

Row = dict[str, Any]


def write_channel(connection: str) -> str:
    return f"write:{connection}"


def read_channel(connection: str) -> str:
    return f"read:{connection}"


class EffectWriter:
    """Applies effects of one group on an open transaction."""

    def __init__(self, connection: Connection, ref: GroupRef) -> None:
        self._connection = connection
        self._ref = ref
        self._run = ref.run_id
        self._postgres = connection.dialect.name == "postgresql"
        self._log_rows: list[Row] = []
        self._data_rows: list[Row] = []
        self._lineage: list[Row] = []
        self._reads: list[Row] = []
        self._assigned: list[fx.Acknowledge] = []
        self._done: list[fx.MarkDone] = []
        self._states: dict[tuple[str, int], bytes] = {}
        self._counts: dict[tuple[Port, str], list[int]] = {}
        self._late: list[fx.CompleteReadAction | fx.WritesDone | fx.FinishGroup] = []

    def apply(self, effects: Iterable[fx.Effect]) -> None:
        for effect in effects:
            self._sort(effect)
        self._insert(schema.event_log, self._log_rows)
        self._insert(schema.event_data, self._data_rows)
        self._insert(schema.read_action, self._reads)
        self._insert(schema.event_lineage, self._lineage)
        self._assign()
        self._mark_done()
        for late in self._late:
            self._apply_late(late)
        self._store_states()
        self._count()

    # --- sorting ------------------------------------------------------------------------------------------------------

    def _sort(self, effect: fx.Effect) -> None:
        match effect:
            case fx.LogEvent():
                self._log_event(effect)
            case fx.Acknowledge():
                self._acknowledge(effect)
            case fx.MarkDone():
                self._done.append(effect)
            case fx.LogWrite():
                self._log_write(effect)
            case fx.LogRead():
                self._log_read(effect)
            case fx.LogStateEvent():
                self._log_state(effect)
            case fx.RecordLineage(sender, event_id, inset_id):
                self._lineage.append(
                    {
                        "run_id": self._run,
                        "send_op": sender.operator,
                        "send_port": sender.name,
                        "event_id": event_id,
                        "inset_id": inset_id,
                    }
                )
            case fx.StartReadAction(operator, connection, action_id, description):
                self._read_row(operator, connection, action_id, ReadStatus.INCOMPLETE, description)
            case fx.StoreState(operator, data):
                self._states[operator, 0] = data
            case fx.Count(port, direction, events, records, size):
                total = self._counts.setdefault((port, direction), [0, 0, 0])
                for index, value in enumerate((events, records, size)):
                    total[index] += value
            case fx.CompleteReadAction() | fx.WritesDone() | fx.FinishGroup():
                self._late.append(effect)

    def _log_row(
        self,
        event_id: int,
        status: Status,
        sender: tuple[str, str | None, str],
        receiver: tuple[str, str | None],
        inset_id: str | None,
        size: int,
    ) -> None:
        send_op, send_port, channel = sender
        self._log_rows.append(
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
            }
        )

    def _data_row(self, sender: tuple[str, str | None, str], event_id: int, header: bytes, body: bytes) -> None:
        send_op, send_port, channel = sender
        self._data_rows.append(
            {
                "run_id": self._run,
                "send_op": send_op,
                "send_port": send_port,
                "channel": channel,
                "event_id": event_id,
                "header": header,
                "body": body,
            }
        )

    def _log_event(self, effect: fx.LogEvent) -> None:
        event = effect.event
        body = event.body or b""
        if event.kind is Kind.DATA and event.body is None:
            raise LogInconsistent(f"event {event.event_id} of {event.sender} reached the log without a serialized body")
        sender = (event.sender.operator, event.sender.name, event.sender.name)
        for delivery in effect.deliveries:
            receiver = (delivery.receiver.operator, delivery.receiver.name)
            if not delivery.assignments:
                status = Status.DONE if delivery.fused else Status.UNDONE
                self._log_row(event.event_id, status, sender, receiver, None, len(body))
            for inset_id, status in delivery.assignments:
                self._log_row(event.event_id, status, sender, receiver, inset_id, len(body))
        self._data_row(sender, event.event_id, encode_header(event.kind, event.records, body), body)

    def _acknowledge(self, effect: fx.Acknowledge) -> None:
        self._assigned.append(effect)
        sender = (effect.sender.operator, effect.sender.name, effect.sender.name)
        receiver = (effect.receiver.operator, effect.receiver.name)
        for inset_id, status in effect.assignments[1:]:
            self._log_row(effect.event_id, status, sender, receiver, inset_id, 0)

    def _log_write(self, effect: fx.LogWrite) -> None:
        body = effect.body or b""
        sender = (effect.operator, None, write_channel(effect.connection))
        self._log_row(effect.number, Status.UNDONE, sender, (effect.operator, effect.connection), None, len(body))
        header = encode_header(Kind.DATA, effect.records, body, dict(effect.header))
        self._data_row(sender, effect.number, header, body)

    def _log_read(self, effect: fx.LogRead) -> None:
        body = effect.body or b""
        channel = read_channel(effect.connection)
        sender = (effect.operator, f"{effect.connection}.{effect.action_id}", channel)
        for inset_id in effect.inset_ids:
            self._log_row(effect.action_id, Status.DONE, sender, (effect.operator, None), inset_id, 0)
        about = dict(effect.description)
        self._data_row(sender, effect.action_id, encode_header(Kind.DATA, effect.records, body, about), body)
        self._read_row(effect.operator, effect.connection, effect.action_id, ReadStatus.COMPLETE, about)

    def _read_row(self, operator: str, connection: str, action_id: int, status: ReadStatus, description: Any) -> None:
        self._reads.append(
            {
                "run_id": self._run,
                "op": operator,
                "conn_id": connection,
                "action_id": action_id,
                "status": status.value,
                "action_desc": json.dumps(dict(description), sort_keys=True),
            }
        )

    def _log_state(self, effect: fx.LogStateEvent) -> None:
        sender = (effect.operator, None, "state")
        self._log_row(effect.state_id, effect.status, sender, (effect.operator, None), effect.inset_id, 0)
        self._states[effect.operator, effect.state_id] = effect.data

    # --- statements ---------------------------------------------------------------------------------------------------

    def _insert(self, table: sa.Table, rows: list[Row]) -> None:
        if rows:
            self._connection.execute(sa.insert(table), rows)

    def _assign(self) -> None:
        by_port: dict[Port, list[fx.Acknowledge]] = {}
        for effect in self._assigned:
            by_port.setdefault(effect.receiver, []).append(effect)
        for receiver, acknowledged in by_port.items():
            found = self._assign_port(receiver, acknowledged)
            self._expect(found, len(acknowledged), f"{receiver}: unassigned events to acknowledge")

    def _assign_port(self, receiver: Port, acknowledged: Sequence[fx.Acknowledge]) -> int:
        firsts = [effect.assignments[0] if effect.assignments else (None, Status.DONE) for effect in acknowledged]
        table = schema.event_log
        where = [
            table.c.run_id == self._run,
            table.c.rec_op == receiver.operator,
            table.c.rec_port == receiver.name,
            table.c.inset_id.is_(None),
            table.c.status == Status.UNDONE.value,
        ]
        if self._postgres:
            rows = _unnest(
                event_id=(sa.BigInteger, [effect.event_id for effect in acknowledged]),
                inset_id=(sa.Text, [inset for inset, _ in firsts]),
                status=(sa.Text, [status.value for _, status in firsts]),
            )
            statement = (
                sa.update(table)
                .where(*where, table.c.event_id == rows.c.event_id)
                .values(inset_id=rows.c.inset_id, status=rows.c.status)
            )
            return self._connection.execute(statement).rowcount
        update = (
            sa.update(table)
            .where(*where, table.c.event_id == sa.bindparam("b_event_id"))
            .values(inset_id=sa.bindparam("b_inset"), status=sa.bindparam("b_status"))
        )
        parameters = [
            {"b_event_id": effect.event_id, "b_inset": inset, "b_status": status.value}
            for effect, (inset, status) in zip(acknowledged, firsts, strict=True)
        ]
        return self._connection.execute(update, parameters).rowcount

    def _mark_done(self) -> None:
        by_operator: dict[str, list[fx.MarkDone]] = {}
        for effect in self._done:
            by_operator.setdefault(effect.operator, []).append(effect)
        table = schema.event_log
        for operator, done in by_operator.items():
            update = (
                sa.update(table)
                .where(
                    table.c.run_id == self._run,
                    table.c.rec_op == operator,
                    table.c.status == Status.UNDONE.value,
                )
                .values(status=Status.DONE.value)
            )
            insets = [effect.inset_id for effect in done]
            if self._postgres:
                array = sa.cast(sa.literal(insets, postgresql.ARRAY(sa.Text)), postgresql.ARRAY(sa.Text))
                found = self._connection.execute(update.where(table.c.inset_id == sa.any_(array))).rowcount
            else:
                one = update.where(table.c.inset_id == sa.bindparam("b_inset"))
                found = self._connection.execute(one, [{"b_inset": inset} for inset in insets]).rowcount
            self._expect(
                found, sum(effect.rows for effect in done), f"operator {operator!r}: undone rows of {insets[:3]}"
            )

    def _apply_late(self, effect: fx.CompleteReadAction | fx.WritesDone | fx.FinishGroup) -> None:
        match effect:
            case fx.WritesDone(operator, connection, first, last):
                table = schema.event_log
                update = (
                    sa.update(table)
                    .where(
                        table.c.run_id == self._run,
                        table.c.send_op == operator,
                        table.c.channel == write_channel(connection),
                        table.c.event_id.between(first, last),
                        table.c.status == Status.UNDONE.value,
                    )
                    .values(status=Status.DONE.value)
                )
                found = self._connection.execute(update).rowcount
                self._expect(found, last - first + 1, f"pending write actions {first}-{last} of {operator!r}")
            case fx.CompleteReadAction(operator, connection, action_id):
                reads = schema.read_action
                complete = (
                    sa.update(reads)
                    .where(
                        reads.c.run_id == self._run,
                        reads.c.op == operator,
                        reads.c.conn_id == connection,
                        reads.c.action_id == action_id,
                    )
                    .values(status=ReadStatus.COMPLETE.value)
                )
                self._expect(self._connection.execute(complete).rowcount, 1, f"read action {action_id} of {operator!r}")
            case fx.FinishGroup():
                self._finish_group()

    def _finish_group(self) -> None:
        table, drivers, ref = schema.group, schema.driver, self._ref
        clock = now(self._connection.dialect.name)
        finish = (
            sa.update(table)
            .where(
                table.c.run_id == ref.run_id,
                table.c.group_name == ref.group,
                table.c.replica == ref.replica,
                table.c.state.in_([state.value for state in allowed_from(GroupState.FINISHED)]),
            )
            .values(state=GroupState.FINISHED.value, since=clock, error=None)
        )
        self._expect(self._connection.execute(finish).rowcount, 1, f"group {ref.group!r} in a state that can finish")
        self._connection.execute(
            sa.update(drivers)
            .where(
                drivers.c.run_id == ref.run_id,
                drivers.c.group_name == ref.group,
                drivers.c.replica == ref.replica,
                drivers.c.incarnation == ref.incarnation,
            )
            .values(ended_at=clock)
        )

    def _store_states(self) -> None:
        if not self._states:
            return
        rows = [
            {"run_id": self._run, "op": operator, "slot": 0, "state_id": state_id, "state": data}
            for (operator, state_id), data in self._states.items()
        ]
        insert = self._upserting(schema.state)
        statement = insert.on_conflict_do_update(
            index_elements=["run_id", "op", "slot", "state_id"], set_={"state": insert.excluded.state}
        )
        self._connection.execute(statement, rows)

    def _count(self) -> None:
        if not self._counts:
            return
        clock = self._connection.execute(sa.select(now(self._connection.dialect.name))).scalar_one()
        table = schema.port_counter
        insert = self._upserting(table)
        added = {name: table.c[name] + insert.excluded[name] for name in ("events", "records", "bytes")}
        statement = insert.on_conflict_do_update(
            index_elements=["run_id", "op", "port", "direction"], set_={**added, "last_at": insert.excluded.last_at}
        )
        rows = [
            {
                "run_id": self._run,
                "op": port.operator,
                "port": port.name,
                "direction": direction,
                "events": events,
                "records": records,
                "bytes": size,
                "first_at": clock,
                "last_at": clock,
            }
            for (port, direction), (events, records, size) in self._counts.items()
        ]
        self._connection.execute(statement, rows)

    def _upserting(self, table: sa.Table) -> Any:
        return postgresql.insert(table) if self._postgres else sqlite.insert(table)

    @staticmethod
    def _expect(found: int, expected: int, what: str) -> None:
        if found != expected:
            raise LogInconsistent(f"{what}: the step expects {expected} row(s) in the log, there are {found}")


def _unnest(**columns: tuple[type[sa.types.TypeEngine[Any]], list[Any]]) -> sa.FromClause:
    """``unnest`` of parallel arrays as a table (PostgreSQL): one statement for many rows, with one true row count."""
    arrays = [
        sa.cast(sa.literal(values, postgresql.ARRAY(kind)), postgresql.ARRAY(kind)) for kind, values in columns.values()
    ]
    return (
        sa.func.unnest(*arrays)
        .table_valued(*(sa.column(name, kind) for name, (kind, _) in columns.items()), name="v")
        .render_derived()
    )
