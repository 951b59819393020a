"""A transaction behind its fence, as SQL: one batch of effects, a handful of statements.

Effects of many steps are applied by part, not one by one, in the order of `protocol/commit.py` (`TRANSACTION`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import BEHIND_FENCE, LogPart
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import GroupState, allowed_from
from airflow_logio.protocol.values import Port, ReadStatus, Status, storable
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.row_forms import read_channel, write_channel
from airflow_logio.store.sql import retention, schema, slots
from airflow_logio.store.sql.bulk import insert_rows
from airflow_logio.store.sql.commit_statements import add_to_counters, assign, conclude, end_writes, listed, store_state
from airflow_logio.store.sql.effect_rows import EffectRows, Row
from airflow_logio.store.sql.engines import now


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
        """A group that is already draining after a rebuild, or that was declared dead, keeps its state."""
        self._enter(GroupState.DRAINING)
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
