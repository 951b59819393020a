"""One incarnation's access to the log: fenced commits, delivery, recovery reads (`GroupSession` over SQL)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection, Engine

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.errors import EpochVoid, Fenced, LogInconsistent
from airflow_logio.protocol.commit import CommitAttempt
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.recovery import LoggedEvent, Recovered
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import STOPPED, GroupState, allowed_from
from airflow_logio.protocol.values import Event, Port, Status, storable
from airflow_logio.protocol.writes import PendingWrite, WriterKey
from airflow_logio.store.port.session_port import Fetched, GroupSession, Short
from airflow_logio.store.records.driver_records import FenceRow, GroupRef
from airflow_logio.store.records.run_records import Upstream
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.row_forms import STATE_CHANNEL, WRITES, decode_header, unseal
from airflow_logio.store.rules.run_rules import stopped
from airflow_logio.store.rules.session_rules import Patience, fitting, is_all, share
from airflow_logio.store.sql import schema, slots
from airflow_logio.store.sql.apply import EffectWriter, pass_fence
from airflow_logio.store.sql.bulk import among, rows_of
from airflow_logio.store.sql.engines import Statements, now, reading, writing
from airflow_logio.store.sql.wake import Waker
from airflow_logio.store.sql.write_rows import HeldRows, body_of, pending_writes

log = logging.getLogger(__name__)


class SqlGroupSession(GroupSession):
    """`patience` bounds how long a commit or a recovery waits for a database that is unavailable before it gives up."""

    def __init__(self, engine: Engine, ref: GroupRef, waker: Waker, patience: Patience) -> None:
        self.ref = ref
        self._engine = engine
        self._waker = waker
        self._statements = Statements(engine)
        self._patience = patience
        self._fence = FenceRow(ref.incarnation, 0, 0)
        self._first_commit_noted = False

    # --- fence --------------------------------------------------------------------------------------------------------

    def open(self, *, raise_epoch: bool = False) -> FenceRow:
        table = schema.fence
        with writing(self._engine) as connection:
            if raise_epoch:
                connection.execute(self._fence_update().values(epoch=table.c.epoch + 1))
            row = self._lock_fence(connection)
            self._refuse_replaced(row)
            self._refuse_stopped(connection)
        self._fence = row
        return row

    def _refuse_stopped(self, connection: Connection) -> None:
        """Runs under the fence row's lock: stopping a group voids its epoch, and a driver must not simply begin the
        next one."""
        table = schema.group
        state = connection.execute(
            sa.select(table.c.state).where(
                table.c.run_id == self.ref.run_id,
                table.c.group_name == self.ref.group,
            )
        ).scalar_one()
        if state in STOPPED:
            raise Fenced(stopped(self.ref, state))

    def _fence_update(self) -> sa.Update:
        table = schema.fence
        return sa.update(table).where(
            table.c.run_id == self.ref.run_id,
            table.c.group_name == self.ref.group,
            table.c.incarnation == self.ref.incarnation,
        )

    def _lock_fence(self, connection: Connection) -> FenceRow:
        """Read the fence under its row's lock: a commit that was under way has happened, or never will."""
        return self._read_fence(connection, locked=True)

    def _read_fence(self, connection: Connection, *, locked: bool = False) -> FenceRow:
        table = schema.fence
        query = sa.select(table.c.incarnation, table.c.epoch, table.c.commit_no).where(
            table.c.run_id == self.ref.run_id,
            table.c.group_name == self.ref.group,
        )
        row = connection.execute(query.with_for_update() if locked else query).one_or_none()
        if row is None:
            raise self._gone()
        return FenceRow(row.incarnation, row.epoch, row.commit_no)

    def _gone(self) -> Fenced:
        return Fenced(f"group {self.ref.group!r} of run {self.ref.run_id} is not in the log any more")

    def _refuse_replaced(self, row: FenceRow) -> None:
        if row.incarnation != self.ref.incarnation:
            raise Fenced(
                f"the driver of group {self.ref.group!r}, incarnation {self.ref.incarnation}, was replaced by incarnation "
                f"{row.incarnation}; it has committed nothing since, and exits"
            )

    def _refuse_void(self, row: FenceRow) -> None:
        self._refuse_replaced(row)
        if row.epoch != self._fence.epoch:
            raise EpochVoid(f"group {self.ref.group!r}: epoch {self._fence.epoch} is void, the log is at {row.epoch}")

    def slots(self) -> Mapping[int, int]:
        if replicated_group(self.ref.group) == self.ref.group:
            return {}

        def attempt() -> Mapping[int, int]:
            with reading(self._engine) as connection:
                return slots.owned(connection, self.ref)

        return self._patience.call(f"replica {self.ref.group!r}, its slots", attempt)

    # --- commit -------------------------------------------------------------------------------------------------------

    def commit(self, effects: Effects) -> tuple[Collected, ...]:
        number = self._fence.commit_no + 1
        transaction = CommitAttempt(self._fence.epoch, number)

        def attempt() -> tuple[Collected, ...]:
            if transaction.is_in_doubt and self.resolve(transaction):
                return ()
            transaction.send()
            return self._commit_once(number, effects)

        collected = self._patience.call(f"group {self.ref.group!r}, commit {number}", attempt)
        self._fence = FenceRow(self._fence.incarnation, self._fence.epoch, number)
        return collected

    def _at_commit(self, number: int) -> dict[str, Any]:
        return {
            "b_run": self.ref.run_id,
            "b_group": self.ref.group,
            "b_incarnation": self.ref.incarnation,
            "b_epoch": self._fence.epoch,
            "b_before": number - 1,
            "b_number": number,
        }

    def _commit_once(self, number: int, effects: Effects) -> tuple[Collected, ...]:
        with writing(self._engine) as connection:
            # A round trip of its own: whether it finds the row decides, before anything else is written (design D8).
            fence = pass_fence(connection.dialect.name)
            clock = connection.execute(fence, self._at_commit(number)).scalar_one_or_none()
            if clock is None:
                self._refuse(self._lock_fence(connection), number)
            collected = EffectWriter(connection, self.ref, effects, clock).apply()
            crash_here(CrashPoint.IN_LOG_TRANSACTION)
            self._note_first_commit(connection)
        self._first_commit_noted = True
        return collected

    def _refuse(self, row: FenceRow, number: int) -> NoReturn:
        self._refuse_void(row)
        raise LogInconsistent(
            f"group {self.ref.group!r}: commit {number} was refused, the log is at commit {row.commit_no}"
        )

    def check(self) -> None:
        with reading(self._engine) as connection:
            self._refuse_void(self._read_fence(connection))

    def check_patiently(self, still_wanted: Callable[[], bool]) -> None:
        what = f"group {self.ref.group!r}, whether its epoch is void"
        self._patience.call(what, self.check, still_wanted=still_wanted)

    def resolve(self, attempt: CommitAttempt) -> bool:
        with writing(self._engine) as connection:
            row = self._lock_fence(connection)
        self._refuse_replaced(row)
        committed = attempt.was_committed(row.epoch, row.commit_no)
        if committed:
            self._fence = row
        return committed

    def _note_first_commit(self, connection: Connection) -> None:
        if self._first_commit_noted:
            return
        connection.execute(
            self._driver_update()
            .where(schema.driver.c.first_commit_at.is_(None))
            .values(first_commit_at=now(connection.dialect.name))
        )

    def _driver_update(self) -> sa.Update:
        table = schema.driver
        return sa.update(table).where(
            table.c.run_id == self.ref.run_id,
            table.c.group_name == self.ref.group,
            table.c.incarnation == self.ref.incarnation,
        )

    # --- its end ------------------------------------------------------------------------------------------------------

    def why_short(self, upstream: Upstream) -> Short:
        def attempt() -> Short:
            with reading(self._engine) as connection:
                rows = connection.execute(_what_is_missing(connection, self.ref, upstream)).all()
            fence = next((FenceRow(row.first, row.second, 0) for row in rows if row.what == "fence"), None)
            if fence is None:
                raise self._gone()
            self._refuse_void(fence)
            aside = {row.name: row.first for row in rows if row.what == "aside"}
            drained = {row.name for row in rows if row.what == "drained"}
            return Short(
                {name: aside[name] for name in upstream.operators if name in aside},
                tuple(name for name in upstream.source_groups if name in drained),
            )

        return self._patience.call(f"group {self.ref.group!r}, whether all of its input is there", attempt)

    def park(self, error: str) -> None:
        with writing(self._engine) as connection:
            self._refuse_replaced(self._lock_fence(connection))
            self._park(connection, error)

    def park_short(self, cause: str) -> None:
        def attempt() -> None:
            with writing(self._engine) as connection:
                self._refuse_void(self._lock_fence(connection))
                self._park(connection, cause)

        self._patience.call(f"group {self.ref.group!r}, parking", attempt)

    def _park(self, connection: Connection, error: str) -> None:
        """Runs under the fence row's lock."""
        table, clock = schema.group, now(connection.dialect.name)
        connection.execute(
            sa.update(table)
            .where(
                table.c.run_id == self.ref.run_id,
                table.c.group_name == self.ref.group,
                table.c.state.in_([state.value for state in allowed_from(GroupState.PARKED)]),
            )
            .values(state=GroupState.PARKED.value, since=clock, error=storable(error))
        )
        connection.execute(self._driver_update().values(ended_at=clock, error=storable(error)))

    # --- delivery -----------------------------------------------------------------------------------------------------

    def fetch_all(self, cursors: Mapping[Port, int], *, max_events: int, max_bytes: int) -> Fetched:
        is_one = _is_one_statement(self._engine.dialect.name, cursors)
        with self._statements.connection() if is_one else reading(self._engine) as connection:
            return _waiting_events(connection, self.ref.run_id, cursors, max_events=max_events, max_bytes=max_bytes)

    def input_sets(
        self, operator: str, insets: Sequence[str], max_bytes: int, *, still_wanted: Callable[[], bool] = lambda: True
    ) -> Mapping[str, Sequence[LoggedEvent]]:
        def attempt() -> Mapping[str, Sequence[LoggedEvent]]:
            with reading(self._engine) as connection:
                return _used_in(connection, self.ref.run_id, operator, insets, max_bytes)

        what = f"group {self.ref.group!r}, replay of {operator!r}"
        return self._patience.call(what, attempt, still_wanted=still_wanted)

    def acknowledged(self, receivers: Sequence[Port]) -> Mapping[Port, tuple[int, int]]:
        table = schema.port_counter
        query = sa.select(table.c.op, table.c.port, table.c.events, table.c.bytes).where(
            table.c.run_id == self.ref.run_id,
            table.c.direction == "in",
            sa.tuple_(table.c.op, table.c.port).in_([tuple(port) for port in receivers]),
        )
        with reading(self._engine) as connection:
            return {Port(row.op, row.port): (row.events, row.bytes) for row in connection.execute(query)}

    # --- recovery -----------------------------------------------------------------------------------------------------

    def recover(self, operators: Sequence[str], held: Collection[WriterKey] = ()) -> Recovered:
        def attempt() -> Recovered:
            with reading(self._engine) as connection:
                rows = HeldRows(connection, self.ref.run_id)
                found = {writer: rows.divided(writer) for writer in held}
                return Recovered(
                    states=self._states(connection, operators),
                    snapshots=self._snapshots(connection, operators),
                    acknowledged=self._acknowledged_events(connection, operators),
                    writes=(
                        *self._pending_writes(connection, set(operators) - {operator for operator, _ in held}),
                        *chain.from_iterable(around for around, _ in found.values()),
                    ),
                    held={writer: group for writer, (_, group) in found.items() if group is not None},
                )

        return self._patience.call(f"group {self.ref.group!r}, recovery", attempt)

    def _states(self, connection: Connection, operators: Sequence[str]) -> dict[str, bytes]:
        table = schema.state
        query = sa.select(table.c.op, table.c.sealed).where(
            table.c.run_id == self.ref.run_id, table.c.op.in_(operators), table.c.state_id == 0
        )
        return {row.op: unseal(row.op, bytes(row.sealed)) for row in connection.execute(query)}

    def _snapshots(self, connection: Connection, operators: Sequence[str]) -> tuple[tuple[str, str, bytes], ...]:
        table, states = schema.event_log, schema.state
        query = (
            sa.select(table.c.send_op, table.c.event_id, table.c.inset_id, states.c.sealed)
            .outerjoin(
                states,
                sa.and_(
                    states.c.run_id == table.c.run_id,
                    states.c.op == table.c.send_op,
                    states.c.state_id == table.c.event_id,
                ),
            )
            .where(
                table.c.run_id == self.ref.run_id,
                table.c.send_op.in_(operators),
                table.c.channel == STATE_CHANNEL,
                table.c.status == Status.UNDONE.value,
            )
            .order_by(table.c.event_id)
        )
        rows = connection.execute(query).all()
        for row in rows:
            if row.sealed is None:
                raise LogInconsistent(f"the state of state event {row.event_id} of {row.send_op} is not in the log")
        return tuple((row.send_op, row.inset_id, unseal(row.send_op, bytes(row.sealed))) for row in rows)

    def _acknowledged_events(self, connection: Connection, operators: Sequence[str]) -> tuple[LoggedEvent, ...]:
        """Rows first, then each body once, however many Input Sets and receivers hold the event."""
        table, data = schema.event_log, schema.event_data
        held = (
            table.c.run_id == self.ref.run_id,
            table.c.rec_op.in_(operators),
            table.c.rec_port.is_not(None),
            table.c.send_port.is_not(None),
            table.c.status == Status.UNDONE.value,
            table.c.inset_id.is_not(None),
        )
        columns = (table.c.send_op, table.c.send_port, table.c.rec_op, table.c.rec_port, table.c.inset_id)
        key = (table.c.send_op, table.c.channel, table.c.event_id)
        rows = connection.execute(
            sa.select(*columns, *key[1:])
            .where(*held)
            .order_by(table.c.rec_op, table.c.rec_port, table.c.event_id, table.c.inset_id)
        ).all()
        keys = sa.select(*key).where(*held).distinct().subquery()
        joined = sa.and_(*(data.c[column.name] == keys.c[column.name] for column in key))
        bodies = rows_of(
            connection,
            sa.select(data.c.send_op, data.c.channel, data.c.event_id, data.c.header, data.c.body, data.c.ref)
            .select_from(keys.join(data, joined))
            .where(data.c.run_id == self.ref.run_id),
        )
        stored: dict[tuple[str, str, int], Any] = {(body.send_op, body.channel, body.event_id): body for body in bodies}
        events: dict[tuple[str, str, int], Event] = {}
        for row in rows:
            of_row = (row.send_op, row.channel, row.event_id)
            if of_row not in events:
                events[of_row] = _event_of(Port(row.send_op, row.send_port), row.event_id, stored.pop(of_row, None))
        return tuple(
            LoggedEvent(Port(row.rec_op, row.rec_port), events[row.send_op, row.channel, row.event_id], row.inset_id)
            for row in rows
        )

    def _pending_writes(self, connection: Connection, operators: Collection[str]) -> Sequence[PendingWrite]:
        """Algorithm 8 Step 1: null sender port, status undone, in order. A body that is missing is noticed, not skipped."""
        table = schema.event_log
        return pending_writes(
            connection,
            table.c.run_id == self.ref.run_id,
            table.c.send_op.in_(operators),
            table.c.channel.startswith(WRITES, autoescape=True),
        )

    def held_writes(self, writer: WriterKey, after: int, last: int, *, max_bytes: int) -> Sequence[PendingWrite]:
        with reading(self._engine) as connection:
            self._refuse_void(self._read_fence(connection))
            return HeldRows(connection, self.ref.run_id).page(writer, after, last, max_bytes)

    # --- waking -------------------------------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        self._waker.wait(timeout)

    def will_hear(self) -> bool:
        return self._waker.will_hear()

    def announce(self, groups: Sequence[str]) -> None:
        self._waker.announce(groups)

    def close(self) -> None:
        self._waker.close()
        self._statements.close()


def _what_is_missing(connection: Connection, ref: GroupRef, upstream: Upstream) -> sa.CompoundSelect[Any]:
    """`GroupSession.why_short`: the fence, what is set aside, and who was drained, in one statement whatever the
    isolation."""
    fence, aside, group = schema.fence, schema.quarantine, schema.group
    fenced = sa.select(
        sa.literal("fence").label("what"),
        fence.c.group_name.label("name"),
        fence.c.incarnation.label("first"),
        fence.c.epoch.label("second"),
    ).where(fence.c.run_id == ref.run_id, fence.c.group_name == ref.group)
    counted = (
        sa.select(sa.literal("aside"), aside.c.op, sa.func.count(), sa.literal(0))
        .where(aside.c.run_id == ref.run_id, among(connection, aside.c.op, upstream.operators))
        .group_by(aside.c.op)
    )
    drained = sa.select(sa.literal("drained"), group.c.group_name, sa.literal(0), sa.literal(0)).where(
        group.c.run_id == ref.run_id,
        among(connection, group.c.group_name, upstream.source_groups),
        group.c.drained_at.is_not(None),
    )
    return sa.union_all(fenced, counted, drained)


# --- delivery: what waits in the log for input ports, for all ports of a group at once (design D5) --------------------

# It takes two statements, however many ports there are: first what waits, with sizes, and then the events that fit.
# For a single port PostgreSQL does both in one. Each port is looked up in the index by itself, beyond its cursor and
# bounded, so that no statement depends on how much of the log is done, or lies far beyond the cursor. In PostgreSQL,
# LATERAL and LIMIT ensure that, whatever its statistics say. SQLite has no LATERAL; there an outer join ensures it,
# since an inner one would begin with all rows of the run.

_NAMES = ("op", "port", "after", "last")
"""The parameters of each port: its two names, its cursor and, for the events themselves, the id of the last one."""
_LAST_ID = 2**63 - 1


def _waiting_events(
    connection: Connection, run_id: int, cursors: Mapping[Port, int], *, max_events: int, max_bytes: int
) -> Fetched:
    """`GroupSession.fetch_all`, within one snapshot."""
    bounds = {"run": run_id, "many": max_events}
    if _is_one_statement(connection.dialect.name, cursors):
        return _of_one_port(connection, bounds | {"bytes": max_bytes}, cursors)
    sizes = _sizes(connection, bounds, cursors)
    last = share(sizes, max_bytes)
    if not last:
        return Fetched({})
    statements = _DELIVERY[connection.dialect.name]()
    asked = statements.asked([(*port, cursors[port], event_id) for port, event_id in last.items()])
    found: dict[Port, list[LoggedEvent]] = {port: [] for port in last}
    for row in rows_of(connection, statements.events, bounds | asked):
        receiver = Port(row.op, row.port)
        event = _event_of(Port(row.send_op, row.send_port), row.event_id, row)
        found[receiver].append(LoggedEvent(receiver, event, None))
    for of_port in found.values():  # sorted here: the database would copy every body to sort
        of_port.sort(key=lambda one: one.event.event_id)
    return Fetched(found, is_all(sizes, last, max_events))


def _is_one_statement(dialect: str, cursors: Mapping[Port, int]) -> bool:
    """Whether a look is one statement, which is a snapshot by itself."""
    return dialect == "postgresql" and len(cursors) == 1


def _of_one_port(connection: Connection, bounds: dict[str, Any], cursors: Mapping[Port, int]) -> Fetched:
    ((receiver, after),) = cursors.items()
    rows = rows_of(connection, _events_of_one(), bounds | dict(zip(_NAMES, (*receiver, after), strict=False)))
    if not rows:
        return Fetched({})
    events = [_event_of(Port(row.send_op, row.send_port), row.event_id, row) for row in rows]
    events.sort(key=lambda event: event.event_id)
    is_last = len(rows) == rows[0].waiting < bounds["many"]
    return Fetched({receiver: [LoggedEvent(receiver, event, None) for event in events]}, is_last)


def _sizes(
    connection: Connection, bounds: dict[str, Any], cursors: Mapping[Port, int]
) -> Mapping[Port, Sequence[tuple[int, int]]]:
    """Receiver port → (event id, size) of the first events that wait, in order. A single port has a simpler
    statement."""
    if len(cursors) == 1:
        ((port, after),) = cursors.items()
        asked = dict(zip(_NAMES, (*port, after), strict=False))
        return {port: [(event_id, size) for event_id, size in connection.execute(_sizes_of_one(), bounds | asked)]}
    statements = _DELIVERY[connection.dialect.name]()
    asked = statements.asked([(*port, after) for port, after in cursors.items()])
    found: dict[Port, list[tuple[int, int]]] = {port: [] for port in cursors}
    for operator, name, event_id, size in connection.execute(statements.sizes, bounds | asked):
        if event_id is not None:
            found[Port(operator, name)].append((event_id, size))
    return {port: sorted(of_port) for port, of_port in found.items()}


def _event_of(sender: Port, event_id: int, stored: Any) -> Event:
    """The event in a row of EVENT_DATA. Raises `LogInconsistent` if there is none (`stored` is None), or it is
    damaged."""
    header_bytes, body, ref = (stored.header, stored.body, stored.ref) if stored is not None else (None, None, None)
    body = bytes(body or b"")
    header = decode_header(f"event {event_id} of {sender}", bytes(header_bytes or b""), body, ref)
    return Event(sender, event_id, header.kind, header.records, None, body, header.about, ref, header.made_of)


def _used_in(
    connection: Connection, run_id: int, operator: str, inset_ids: Sequence[str], max_bytes: int
) -> Mapping[str, Sequence[LoggedEvent]]:
    """`GroupSession.input_sets`, within one snapshot. Raises `LogInconsistent` also if a body is missing or damaged."""
    table, data = schema.event_log, schema.event_data
    with_bodies = table.outerjoin(data, sa.and_(*body_of(table)))

    def of(*inset_ids: str) -> tuple[sa.ColumnElement[bool], ...]:
        used = (table.c.run_id == run_id, table.c.rec_op == operator, among(connection, table.c.inset_id, inset_ids))
        return (*used, table.c.send_port.is_not(None), table.c.rec_port.is_not(None))

    size = sa.func.coalesce(sa.func.sum(sa.func.length(data.c.body)), 0)
    sizes = sa.select(table.c.inset_id, size).select_from(with_bodies).where(*of(*inset_ids)).group_by(table.c.inset_id)
    found = {inset_id: int(count) for inset_id, count in connection.execute(sizes)}
    chosen = fitting(operator, inset_ids, found, max_bytes)
    query = (
        sa.select(table.c.send_op, table.c.send_port, table.c.rec_port, table.c.event_id, table.c.inset_id)
        .add_columns(data.c.header, data.c.body, data.c.ref)
        .select_from(with_bodies)
        .where(*of(*chosen))
        .order_by(table.c.rec_port, table.c.event_id)
    )
    sets: dict[str, list[LoggedEvent]] = {inset_id: [] for inset_id in chosen}
    for row in rows_of(connection, query):
        event = _event_of(Port(row.send_op, row.send_port), row.event_id, row)
        sets[row.inset_id].append(LoggedEvent(Port(operator, row.rec_port), event, row.inset_id))
    return sets


@dataclass(frozen=True)
class _Delivery:
    """Built once. `asked` turns rows, one per port, into parameters."""

    sizes: sa.Select[Any]
    events: sa.Select[Any]
    asked: Callable[[Sequence[Sequence[str | int]]], dict[str, Any]]


@cache
def _sizes_of_one() -> sa.Select[Any]:
    table = schema.event_log
    waiting = _waits(table, *(sa.bindparam(name) for name in _NAMES[:3]))
    first = sa.select(table.c.event_id, table.c.size).where(*waiting).order_by(table.c.event_id)
    return first.limit(sa.bindparam("many"))


@cache
def _events_of_one() -> sa.Select[Any]:
    """As `share` chooses them; `waiting` is how many it chooses from. `bytes` bounds them together."""
    table, data = schema.event_log, schema.event_data
    columns = (table.c.run_id, table.c.send_op, table.c.send_port, table.c.channel, table.c.event_id)
    waiting = sa.select(*columns, table.c.size).where(*_waits(table, *(sa.bindparam(name) for name in _NAMES[:3])))
    first = waiting.order_by(table.c.event_id).limit(sa.bindparam("many")).subquery("first")
    sized = sa.select(
        *(first.c[column.name] for column in columns),
        sa.func.row_number().over(order_by=first.c.event_id).label("place"),
        sa.func.sum(first.c.size).over(order_by=first.c.event_id).label("together"),
        sa.cast(sa.func.count().over(), sa.BigInteger).label("waiting"),
    ).subquery("sized")
    fits = sa.or_(sized.c.place == 1, sized.c.together <= sa.bindparam("bytes"))
    body = sa.select(data.c.header, data.c.body, data.c.ref).where(*body_of(sized)).limit(1).lateral("stored")
    told = (sized.c.send_op, sized.c.send_port, sized.c.event_id, sized.c.waiting)
    return sa.select(*told, body).select_from(sized.outerjoin(body, sa.true())).where(fits)


@cache
def _delivery_on_postgresql() -> _Delivery:
    table, data = schema.event_log, schema.event_data
    ports = _arrays(_NAMES[:3])
    waiting = sa.select(table.c.event_id, table.c.size).where(*_waits(table, *ports.c[:3]))
    first = waiting.order_by(table.c.event_id).limit(sa.bindparam("many")).lateral("waiting")
    sizes = sa.select(ports.c.op, ports.c.port, first).join_from(ports, first, sa.true())

    ports = _arrays(_NAMES)
    chosen = sa.select(table.c.run_id, table.c.send_op, table.c.send_port, table.c.channel, table.c.event_id)
    chosen = chosen.where(*_waits(table, *ports.c[:3]), table.c.event_id <= ports.c.last).order_by(table.c.event_id)
    row = chosen.limit(sa.bindparam("many")).lateral("chosen")
    body = sa.select(data.c.header, data.c.body, data.c.ref).where(*body_of(row)).limit(1).lateral("stored")
    columns = (ports.c.op, ports.c.port, row.c.send_op, row.c.send_port, row.c.event_id)
    events = sa.select(*columns, body).select_from(ports.join(row, sa.true()).outerjoin(body, sa.true()))
    return _Delivery(sizes, events, lambda rows: dict(zip(_NAMES, map(list, zip(*rows, strict=True)), strict=False)))


def _arrays(names: Sequence[str]) -> Any:
    types = {"op": sa.Text, "port": sa.Text}
    columns = [sa.column(name, types.get(name, sa.BigInteger)) for name in names]
    arrays = [sa.bindparam(column.name, type_=postgresql.ARRAY(column.type)) for column in columns]
    return sa.func.unnest(*arrays).table_valued(*columns).render_derived(name="asked")


@cache
def _delivery_on_sqlite() -> _Delivery:
    table, data = schema.event_log, schema.event_data
    ports, other = _json(_NAMES[:3]), table.alias("other")
    within = sa.select(other.c.event_id).where(*_waits(other, *ports.c[:3])).order_by(other.c.event_id)
    greatest = within.limit(1).offset(sa.bindparam("many") - 1).scalar_subquery()
    first = (*_waits(table, *ports.c[:3]), table.c.event_id <= sa.func.coalesce(greatest, _LAST_ID))
    sizes = sa.select(ports.c.op, ports.c.port, table.c.event_id, table.c.size).select_from(
        ports.outerjoin(table, sa.and_(*first))
    )

    ports = _json(_NAMES)
    chosen = (*_waits(table, *ports.c[:3]), table.c.event_id <= ports.c.last)
    columns = (ports.c.op, ports.c.port, table.c.send_op, table.c.send_port, table.c.event_id)
    events = sa.select(*columns, data.c.header, data.c.body, data.c.ref).select_from(
        ports.outerjoin(table, sa.and_(*chosen)).outerjoin(data, sa.and_(*body_of(table)))
    )
    return _Delivery(sizes, events, lambda rows: {"asked": json.dumps(rows)})


def _json(names: Sequence[str]) -> Any:
    each = sa.func.json_each(sa.bindparam("asked")).table_valued("value", name="each")
    columns = [sa.func.json_extract(each.c.value, f"$[{place}]").label(name) for place, name in enumerate(names)]
    return sa.select(*columns).subquery("asked")


_DELIVERY = {"postgresql": _delivery_on_postgresql, "sqlite": _delivery_on_sqlite}


def _waits(table: Any, operator: Any, port: Any, after: Any) -> Sequence[sa.ColumnElement[bool]]:
    """The row is undone, in no Input Set, and no write action.

    The condition that it is in no Input Set is worded so that the index of Input Sets is of no use. That index has
    everything that waits for an operator, in no order, and seems cheaper to PostgreSQL while its statistics are older
    than what waits.
    """
    return (
        table.c.run_id == sa.bindparam("run"),
        table.c.rec_op == operator,
        table.c.rec_port == port,
        table.c.event_id > after,
        table.c.status == Status.UNDONE.value,
        (table.c.inset_id + "").is_(None),
        table.c.send_port.is_not(None),
    )
