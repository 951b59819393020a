"""Effects as SQL statements: one batch of effects, a handful of statements.

Effects of many steps are applied by kind, not one by one: rows first, then assignments, then Input Sets that are done
or set aside, then states. That order is safe for any concatenation of steps: nothing more can be assigned to an Input
Set that is done or set aside, and the last of several states of one operator is the one that counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.values import Port, Status, storable
from airflow_logio.store.records import Collected, GroupRef
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk_rows import insert_rows
from airflow_logio.store.sql.concluding import ConcludingWriter, expect
from airflow_logio.store.sql.counting import add_to_counters
from airflow_logio.store.sql.effect_rows import EffectRows, Row
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.value_lists import among


class EffectWriter:
    """Applies effects of one group on an open transaction."""

    def __init__(self, connection: Connection, ref: GroupRef, effects: Iterable[fx.Effect]) -> None:
        self._connection = connection
        self._ref = ref
        self._run = ref.run_id
        self._postgres = connection.dialect.name == "postgresql"
        self._rows = EffectRows(ref, effects)

    def apply(self) -> tuple[Collected, ...]:
        rows = self._rows
        insert_rows(self._connection, schema.event_log, rows.event_log)
        insert_rows(self._connection, schema.event_data, self._stamped(rows.event_data))
        insert_rows(self._connection, schema.state, rows.snapshots)
        insert_rows(self._connection, schema.read_action, rows.reads)
        insert_rows(self._connection, schema.event_lineage, rows.lineage)
        self._assign()
        self._conclude(rows.done, Status.DONE)
        self._conclude(rows.aside, Status.ASIDE)
        self._quarantine()
        concluding = ConcludingWriter(self._connection, self._ref)
        for late in rows.late:
            concluding.apply(late)
        self._store_states()
        add_to_counters(self._connection, self._run, rows.counts)
        return tuple(concluding.collected)

    # --- statements ---------------------------------------------------------------------------------------------------

    def _stamped(self, rows: list[Row]) -> list[Row]:
        """Note the database's time in rows that lineage keeps: retention goes by their age."""
        if any(row["kept"] for row in rows):
            clock = self._connection.execute(sa.select(now(self._connection.dialect.name))).scalar_one()
            for row in rows:
                row["logged_at"] = clock if row["kept"] else None
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
        table = schema.event_log
        where = [
            table.c.run_id == self._run,
            table.c.rec_op == receiver.operator,
            table.c.rec_port == receiver.name,
            table.c.inset_id.is_(None),
            table.c.status == Status.UNDONE.value,
            # A pending write action looks the same, if its connection has the name of this port.
            table.c.send_port.is_not(None),
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
        table = schema.event_log
        update = (
            sa.update(table)
            .where(
                table.c.run_id == self._run,
                table.c.rec_op == operator,
                table.c.status == Status.UNDONE.value,
                among(self._connection, table.c.inset_id, insets),
            )
            .values(status=status.value)
            .returning(table.c.inset_id, table.c.rec_port)
        )
        if not self._postgres:
            counted = Counter((inset_id, port) for inset_id, port in self._connection.execute(update))
            return [(inset_id, port, count) for (inset_id, port), count in counted.items()]
        moved = update.cte("moved")
        query = sa.select(moved.c.inset_id, moved.c.rec_port, sa.func.count())
        return [tuple(row) for row in self._connection.execute(query.group_by(moved.c.inset_id, moved.c.rec_port))]

    def _quarantine(self) -> None:
        if not self._rows.aside:
            return
        clock = self._connection.execute(sa.select(now(self._connection.dialect.name))).scalar_one()
        rows: list[Row] = [
            {
                "run_id": self._run,
                "op": effect.operator,
                "inset_id": effect.inset_id,
                "group_name": replicated_group(self._ref.group),  # its slots may move
                "error": storable(effect.error),
                "since": clock,
            }
            for effect in self._rows.aside
        ]
        insert_rows(self._connection, schema.quarantine, rows)

    def _store_states(self) -> None:
        if not self._rows.states:
            return
        insert = self._upserting(schema.state)
        statement = insert.on_conflict_do_update(
            index_elements=["run_id", "op", "state_id"], set_={"sealed": insert.excluded.sealed}
        )
        self._connection.execute(statement, list(self._rows.states.values()))

    def _upserting(self, table: sa.Table) -> Any:
        return postgresql.insert(table) if self._postgres else sqlite.insert(table)


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
