"""Effects as SQL statements: one batch of effects, a handful of statements.

Effects of many steps are applied by part, not one by one, in the order of `protocol/commit.py` (`TRANSACTION`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sqlalchemy.engine import Connection

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import BEHIND_FENCE, LogPart
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.values import Port, Status, storable
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk_rows import insert_rows
from airflow_logio.store.sql.commit_statements import assign, conclude, listed, store_state
from airflow_logio.store.sql.concluding import ConcludingWriter, expect
from airflow_logio.store.sql.counting import add_to_counters
from airflow_logio.store.sql.effect_rows import EffectRows, Row


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
