"""Effects that change rows of earlier steps: write and read actions done, events released, garbage collected."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, allowed_from
from airflow_logio.protocol.values import ReadStatus, Status
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.channels import read_channel, write_channel
from airflow_logio.store.sql import expiry, retention, schema, slots
from airflow_logio.store.sql.commit_statements import end_writes
from airflow_logio.store.sql.engines import now


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
                return expiry.expire(self._connection, self._run, effect)

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
