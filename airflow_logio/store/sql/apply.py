"""A transaction behind its fence, as SQL: one batch of effects, a handful of statements.

Effects of many steps are applied by part, not one by one, in the order of `protocol/commit.py` (`TRANSACTION`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection
from sqlalchemy.sql.dml import ReturningUpdate

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import BEHIND_FENCE, LogPart, parts_of
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import GroupState, allowed_from
from airflow_logio.protocol.values import Kind, Port, ReadStatus, Status, storable
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.row_forms import (
    STATE_CHANNEL,
    encode_header,
    read_channel,
    seal,
    seal_json,
    write_channel,
)
from airflow_logio.store.sql import retention, schema, slots
from airflow_logio.store.sql.bulk import insert_rows
from airflow_logio.store.sql.engines import inserting, now
from airflow_logio.store.sql.schema import OPEN, PENDING

Row = dict[str, Any]


class EffectWriter:
    """Applies effects of one group on an open transaction, which has passed the fence at `clock`, by the database's clock."""

    def __init__(self, connection: Connection, ref: GroupRef, effects: Iterable[fx.Effect], clock: float) -> None:
        self._connection = connection
        self._ref = ref
        self._run = ref.run_id
        self._clock = clock
        self._dialect = connection.dialect.name
        self._rows = EffectRows(ref, effects)

    def apply(self) -> tuple[Collected, ...]:
        """All parts of the transaction behind its fence. Returns the results of the garbage collection among the effects."""
        concluding = ConcludingWriter(self._connection, self._ref)
        do: Mapping[LogPart, Callable[[], None]] = {
            LogPart.ROWS: self._add_rows,
            LogPart.ASSIGN: self._assign,
            LogPart.DONE: lambda: self._conclude(self._rows.done, Status.DONE),
            LogPart.ASIDE: self._set_aside,
            LogPart.CONCLUDE: lambda: concluding.apply_all(self._rows.concluding),
            LogPart.STATES: self._store_states,
            LogPart.COUNT: lambda: add_to_counters(self._connection, self._run, self._rows.counts),
        }
        for part in BEHIND_FENCE:
            do[part]()
        return tuple(concluding.collected)

    # --- statements ---------------------------------------------------------------------------------------------------

    def _add_rows(self) -> None:
        rows = self._rows
        insert_rows(self._connection, schema.event_log, rows.event_log)
        insert_rows(self._connection, schema.event_data, self._stamped(rows.event_data))
        insert_rows(self._connection, schema.state, rows.snapshots)
        insert_rows(self._connection, schema.read_action, rows.reads)
        insert_rows(self._connection, schema.event_lineage, rows.lineage)

    def _stamped(self, rows: list[Row]) -> list[Row]:
        """Note the time in rows that lineage keeps: retention goes by their age."""
        if any(row["kept"] for row in rows):
            for row in rows:
                row["logged_at"] = self._clock if row["kept"] else None
        return rows

    def _assign(self) -> None:
        by_port: dict[Port, list[fx.Acknowledge]] = {}
        for effect in self._rows.assigned:
            by_port.setdefault(effect.receiver, []).append(effect)
        for receiver, acknowledged in by_port.items():
            found = self._assign_port(receiver, acknowledged)
            expect(found, len(acknowledged), f"{receiver}: unassigned events to acknowledge")

    def _assign_port(self, receiver: Port, acknowledged: Sequence[fx.Acknowledge]) -> int:
        firsts = [effect.assignments[0] if effect.assignments else (None, Status.DONE) for effect in acknowledged]
        fixed = {"b_run": self._run, "b_op": receiver.operator, "b_port": receiver.name}
        event_ids = [effect.event_id for effect in acknowledged]
        insets = [inset for inset, _ in firsts]
        statuses = [status.value for _, status in firsts]
        statement = assign(self._dialect)
        if self._dialect == "postgresql":
            rows = {"b_event_ids": event_ids, "b_insets": insets, "b_statuses": statuses}
            return self._connection.execute(statement, fixed | rows).rowcount
        each = zip(event_ids, insets, statuses, strict=True)
        parameters = [fixed | {"b_event_id": n, "b_inset": inset, "b_status": status} for n, inset, status in each]
        return self._connection.execute(statement, parameters).rowcount

    def _conclude(self, effects: Sequence[fx.MarkDone | fx.SetAside], status: Status) -> None:
        """Mark all undone rows of these Input Sets done or set aside, in one statement per operator."""
        by_operator: dict[str, list[fx.MarkDone | fx.SetAside]] = {}
        for effect in effects:
            by_operator.setdefault(effect.operator, []).append(effect)
        for operator, concluded in by_operator.items():
            found: Counter[str] = Counter()
            moved = self._rows_moved(operator, [effect.inset_id for effect in concluded], status)
            for inset_id, port, count in moved:
                found[inset_id] += count
                if port is not None:  # the row of an event; a state event has no port
                    self._rows.under_way(Port(operator, port), schema.OPEN, -count)
            for effect in concluded:
                # Each Input Set is checked by itself: a row too many here and one too few there must not cancel out.
                what = f"operator {operator!r}: undone rows of Input Set {effect.inset_id!r}"
                expect(found[effect.inset_id], effect.rows, what)

    def _rows_moved(
        self, operator: str, insets: Sequence[str], status: Status
    ) -> Iterable[tuple[str, str | None, int]]:
        """Give all undone rows of these Input Sets this status. Returns how many there were, per Input Set and input
        port."""
        parameters = {
            "b_run": self._run,
            "b_op": operator,
            "b_insets": listed(self._dialect, insets),
            "b_status": status.value,
        }
        rows = self._connection.execute(conclude(self._dialect), parameters)
        if self._dialect == "postgresql":
            return [tuple(row) for row in rows]
        counted = Counter((inset_id, port) for inset_id, port in rows)
        return [(inset_id, port, count) for (inset_id, port), count in counted.items()]

    def _set_aside(self) -> None:
        if not self._rows.aside:
            return
        self._conclude(self._rows.aside, Status.ASIDE)
        rows: list[Row] = [
            {
                "run_id": self._run,
                "op": effect.operator,
                "inset_id": effect.inset_id,
                "group_name": replicated_group(self._ref.group),  # its slots may move
                "error": storable(effect.error),
                "since": self._clock,
            }
            for effect in self._rows.aside
        ]
        insert_rows(self._connection, schema.quarantine, rows)

    def _store_states(self) -> None:
        if self._rows.states:
            self._connection.execute(store_state(self._dialect), list(self._rows.states.values()))


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
                "action_desc": seal_json(
                    json.dumps(dict(description), sort_keys=True), operator, connection, action_id
                ),
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


class ConcludingWriter:
    """Applies such effects one at a time, on an open transaction; counts what it finds."""

    def __init__(self, connection: Connection, ref: GroupRef) -> None:
        self._connection = connection
        self._ref = ref
        self._run = ref.run_id
        self.collected: list[Collected] = []
        """Results of the garbage-collection effects."""

    def apply_all(self, effects: Iterable[fx.Effect]) -> None:
        """In their order, which is that of the steps."""
        for effect in effects:
            self._apply(effect)

    def _apply(self, effect: fx.Effect) -> None:
        match effect:
            case fx.WritesDone(operator, connection, first, last):
                self._writes_done(operator, connection, first, last)
            case fx.CompleteReadAction(operator, connection, action_id):
                self._complete_read(operator, connection, action_id)
            case fx.ReadDone(operator, connection, action_id):
                done = self._event_of_read(operator, connection, action_id)
                update = sa.update(schema.event_log).where(*done, schema.event_log.c.status == Status.UNDONE.value)
                found = self._connection.execute(update.values(status=Status.DONE.value)).rowcount
                expect(found, 1, f"undone event of read action {action_id} of {operator!r}")
            case fx.DropRead(operator, connection, action_id):
                self._drop_read(operator, connection, action_id)
            case fx.Release():
                self._release(effect)
            case fx.Collect() | fx.SweepShared() | fx.ExpireLineage():
                self.collected.append(self._collect(effect))
            case fx.DrainGroup():
                self._drain_group()
            case fx.FinishGroup():
                self._finish_group()
            case _:
                raise TypeError(f"{type(effect).__name__} changes no row of an earlier step")

    def _writes_done(self, operator: str, connection: str, first: int, last: int) -> None:
        channel = {"b_run": self._run, "b_op": operator, "b_channel": write_channel(connection)}
        found = self._connection.execute(end_writes(), channel | {"b_first": first, "b_last": last}).rowcount
        expect(found, last - first + 1, f"pending write actions {first}-{last} of {operator!r}")

    # --- read actions -------------------------------------------------------------------------------------------------

    def _complete_read(self, operator: str, connection: str, action_id: int) -> None:
        reads = schema.read_action
        complete = sa.update(reads).where(*self._read_action(operator, connection, action_id))
        found = self._connection.execute(complete.values(status=ReadStatus.COMPLETE.value)).rowcount
        expect(found, 1, f"read action {action_id} of {operator!r}")

    def _drop_read(self, operator: str, connection: str, action_id: int) -> None:
        event = self._event_of_read(operator, connection, action_id)
        found = self._connection.execute(
            sa.delete(schema.event_log).where(*event, schema.event_log.c.status == Status.DONE.value)
        ).rowcount
        expect(found, 1, f"done event of read action {action_id} of {operator!r}")
        data, reads = schema.event_data, schema.read_action
        self._connection.execute(
            sa.delete(data).where(
                data.c.run_id == self._run,
                data.c.send_op == operator,
                data.c.channel == read_channel(connection),
                data.c.event_id == action_id,
            )
        )
        self._connection.execute(
            sa.delete(reads).where(*self._read_action(operator, connection, action_id), ~reads.c.kept)
        )

    def _read_action(self, operator: str, connection: str, action_id: int) -> tuple[sa.ColumnElement[bool], ...]:
        columns = schema.read_action.c
        return (
            columns.run_id == self._run,
            columns.op == operator,
            columns.conn_id == connection,
            columns.action_id == action_id,
        )

    def _event_of_read(self, operator: str, connection: str, action_id: int) -> tuple[sa.ColumnElement[bool], ...]:
        columns = schema.event_log.c
        return (
            columns.run_id == self._run,
            columns.send_op == operator,
            columns.channel == read_channel(connection),
            columns.event_id == action_id,
            columns.rec_op == operator,
        )

    # --- events -------------------------------------------------------------------------------------------------------

    def _release(self, effect: fx.Release) -> None:
        table, sender = schema.event_log, effect.sender
        update = sa.update(table).where(
            table.c.run_id == self._run,
            table.c.send_op == sender.operator,
            table.c.channel == sender.name,
            table.c.event_id.between(effect.first, effect.last),
            table.c.status == Status.HELD.value,
        )
        found = self._connection.execute(update.values(status=Status.UNDONE.value)).rowcount
        expect(found, effect.rows, f"held events {effect.first}-{effect.last} of {sender}")

    def _collect(self, effect: fx.Collect | fx.SweepShared | fx.ExpireLineage) -> Collected:
        match effect:
            case fx.Collect():
                return retention.collect(self._connection, self._run, effect)
            case fx.SweepShared():
                return retention.sweep_shared(self._connection, self._run, effect)
            case fx.ExpireLineage():
                return retention.expire(self._connection, self._run, effect)

    def _enter(self, state: GroupState) -> int:
        """Returns the number of rows changed: 0 if the table of states does not allow the move."""
        table, ref = schema.group, self._ref
        entered = (
            sa.update(table)
            .where(
                table.c.run_id == ref.run_id,
                table.c.group_name == ref.group,
                table.c.state.in_([source.value for source in allowed_from(state)]),
            )
            .values(state=state.value, since=now(self._connection.dialect.name), error=None)
        )
        return self._connection.execute(entered).rowcount

    def _drain_group(self) -> None:
        """A group that is already draining after a rebuild, or that was declared dead, keeps its state. The time
        of the first request is kept in any case: a replacement of what is complete needs it (`GroupSession.why_short`)."""
        self._enter(GroupState.DRAINING)
        table = schema.group
        first = sa.func.coalesce(table.c.drained_at, now(self._connection.dialect.name))
        of_group = (table.c.run_id == self._run, table.c.group_name == self._ref.group)
        self._connection.execute(sa.update(table).where(*of_group).values(drained_at=first))
        crash_here(CrashPoint.IN_DRAIN)

    def _finish_group(self) -> None:
        drivers, ref = schema.driver, self._ref
        clock = now(self._connection.dialect.name)
        slots.finish(self._connection, ref)
        expect(self._enter(GroupState.FINISHED), 1, f"group {ref.group!r} in a state that can finish")
        self._connection.execute(
            sa.update(drivers)
            .where(
                drivers.c.run_id == ref.run_id,
                drivers.c.group_name == ref.group,
                drivers.c.incarnation == ref.incarnation,
            )
            .values(ended_at=clock)
        )


def expect(found: int, expected: int, what: str) -> None:
    """A step counts the rows it changes; another number is a defect, or rows changed by hand (hole H2)."""
    if found != expected:
        raise LogInconsistent(f"{what}: the step expects {expected} row(s) in the log, there are {found}")


# --- the statements of every commit -----------------------------------------------------------------------------------

# Each is built once: to build one takes longer than the server takes to execute it. They change rows that are there: the
# fence, assignments to Input Sets, statuses, states, and counters, which spare figures a look at the events. Parameters
# begin with ``b_``, so that none of them is taken for a column. `bulk` adds rows.

_RUN = sa.bindparam("b_run", type_=sa.BigInteger)


@cache
def pass_fence(dialect: str) -> ReturningUpdate[Any]:
    """Raise the commit number of an incarnation (`b_group`, `b_incarnation`, `b_epoch`) from `b_before` to `b_number`.

    Returns the time by the database's clock, or no row if the commit number is another one.
    """
    table = schema.fence
    return (
        sa.update(table)
        .where(
            table.c.run_id == _RUN,
            table.c.group_name == sa.bindparam("b_group"),
            table.c.incarnation == sa.bindparam("b_incarnation"),
            table.c.epoch == sa.bindparam("b_epoch"),
            table.c.commit_no == sa.bindparam("b_before"),
        )
        .values(commit_no=sa.bindparam("b_number"))
        .returning(now(dialect))
    )


@cache
def assign(dialect: str) -> sa.Update:
    """Assign waiting events of a receiver (`b_op`, `b_port`) to Input Sets.

    On PostgreSQL `b_event_ids`, `b_insets` and `b_statuses` are arrays; on SQLite an event is a row of parameters:
    `b_event_id`, `b_inset`, `b_status`.
    """
    table = schema.event_log
    waiting = sa.update(table).where(
        table.c.run_id == _RUN,
        table.c.rec_op == sa.bindparam("b_op"),
        table.c.rec_port == sa.bindparam("b_port"),
        table.c.inset_id.is_(None),
        table.c.status == Status.UNDONE.value,
        # A pending write action looks the same, if its connection has the name of this port.
        table.c.send_port.is_not(None),
    )
    if dialect == "postgresql":
        arrays = [_array("b_event_ids", sa.BigInteger), _array("b_insets", sa.Text), _array("b_statuses", sa.Text)]
        columns = ("event_id", "inset_id", "status")
        rows = sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="assigned")
        return waiting.where(table.c.event_id == rows.c.event_id).values(inset_id=rows.c.inset_id, status=rows.c.status)
    return waiting.where(table.c.event_id == sa.bindparam("b_event_id")).values(
        inset_id=sa.bindparam("b_inset"), status=sa.bindparam("b_status")
    )


@cache
def conclude(dialect: str) -> sa.Executable:
    """Give the undone rows of Input Sets of `b_op` the status `b_status`.

    The Input Sets are `b_insets`, as `listed` gives them. Returns (Input Set, input port) of each row, on PostgreSQL with
    how many there are.
    """
    table = schema.event_log
    update = (
        sa.update(table)
        .where(
            table.c.run_id == _RUN,
            table.c.rec_op == sa.bindparam("b_op"),
            table.c.status == Status.UNDONE.value,
            _is_listed(dialect, table.c.inset_id, "b_insets"),
        )
        .values(status=sa.bindparam("b_status"))
        .returning(table.c.inset_id, table.c.rec_port)
    )
    if dialect != "postgresql":
        return update
    moved = update.cte("moved")
    query = sa.select(moved.c.inset_id, moved.c.rec_port, sa.func.count())
    return query.group_by(moved.c.inset_id, moved.c.rec_port)


def listed(dialect: str, values: Sequence[str]) -> Any:
    """Texts as the one parameter that `conclude` takes."""
    return list(values) if dialect == "postgresql" else json.dumps(list(values))


def _is_listed(dialect: str, column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[bool]:
    if dialect == "postgresql":
        return column == sa.any_(_array(name, sa.Text))
    wanted = sa.func.json_each(sa.bindparam(name)).table_valued("value")
    return column.in_(sa.select(wanted.c.value))


@cache
def end_writes() -> sa.Update:
    """Give the pending write actions `b_first` to `b_last` of `b_op` on `b_channel` the status done."""
    table = schema.event_log
    pending = (
        table.c.run_id == _RUN,
        table.c.send_op == sa.bindparam("b_op"),
        table.c.channel == sa.bindparam("b_channel"),
        table.c.event_id.between(sa.bindparam("b_first"), sa.bindparam("b_last")),
        table.c.status == Status.UNDONE.value,
    )
    return sa.update(table).where(*pending).values(status=Status.DONE.value)


@cache
def store_state(dialect: str) -> sa.Insert:
    """Takes rows of STATE."""
    insert = inserting(dialect, schema.state)
    return insert.on_conflict_do_update(  # type: ignore[no-any-return]
        index_elements=["run_id", "op", "state_id"], set_={"sealed": insert.excluded.sealed}
    )


@cache
def add_counts(dialect: str) -> sa.Insert:
    """Add to counters of run `b_run`; the times are the database's.

    On PostgreSQL a column is one parameter, ``b_op`` and so on, an array; on SQLite a counter is a row of them.
    """
    table = schema.port_counter
    given = [column for column in table.columns if column.name != "run_id" and not column.name.endswith("_at")]
    names, clock = [column.name for column in given], now(dialect)
    if dialect == "postgresql":
        arrays = [_array(f"b_{column.name}", type(column.type)) for column in given]
        rows = sa.func.unnest(*arrays).table_valued(*names).render_derived(name="counted")
        values = sa.select(_RUN, *rows.c, clock, clock)
        insert = inserting(dialect, table).from_select(["run_id", *names, "first_at", "last_at"], values)
    else:
        parameters: dict[str, Any] = {name: sa.bindparam(f"b_{name}") for name in names}
        insert = inserting(dialect, table).values(run_id=_RUN, **parameters, first_at=clock, last_at=clock)
    added = {name: table.c[name] + insert.excluded[name] for name in ("events", "records", "bytes")}
    return insert.on_conflict_do_update(  # type: ignore[no-any-return]
        index_elements=["run_id", "op", "port", "direction"], set_={**added, "last_at": insert.excluded.last_at}
    )


_PARAMETERS = ("b_op", "b_port", "b_direction", "b_events", "b_records", "b_bytes")


def add_to_counters(connection: Connection, run_id: int, counts: Mapping[tuple[Port, str], Sequence[int]]) -> None:
    """Add events, records and bytes, or subtract them, by (port, direction), in the transaction that changes the
    numbers."""
    changed = {key: total for key, total in counts.items() if any(total)}
    if not changed:
        return
    rows = [(*port, direction, *total) for (port, direction), total in changed.items()]
    statement, run = add_counts(connection.dialect.name), {"b_run": run_id}
    if connection.dialect.name == "postgresql":
        connection.execute(statement, run | dict(zip(_PARAMETERS, map(list, zip(*rows, strict=True)), strict=True)))
    else:
        connection.execute(statement, [run | dict(zip(_PARAMETERS, row, strict=True)) for row in rows])


def _array(name: str, kind: type[sa.types.TypeEngine[Any]]) -> sa.BindParameter[Any]:
    return sa.bindparam(name, type_=postgresql.ARRAY(kind))
