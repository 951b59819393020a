"""Garbage collection (Section 3.6): removes what is done, and needed neither by recovery nor by a lineage scope.

Everything that recovery reads is in rows that are not done, in the bodies of such rows, and in the current states (the
stored contexts hold marks, ids and closed Input Sets). Nothing here touches any of that. No statement looks at more
rows than it may delete, however many have passed and however many are kept: `EXPLAIN` is part of the tests.

What lineage keeps is removed after its retention period, batch by batch, if no retained target event is made from it
(`expire`). Nothing is marked. An event is removed when it is old enough and has no row of EVENT_LOG left. Such a row is
removed when it is done and no event that its Input Set has made has a lineage relationship left. Both hold only after
everything downstream has been removed, whatever scope that belongs to. And an Input Set whose rows are done never gets
another event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.source import READ_ACTION_ID, READ_CONNECTION
from airflow_logio.protocol.values import ReadStatus, Status
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.row_forms import READS, STATE_CHANNEL, decode_about, read_channel
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import among
from airflow_logio.store.sql.engines import now

Channel = tuple[str, str]
"""(operator, channel): event ids are unique within it."""


def collect(connection: Connection, run_id: int, effect: fx.Collect) -> Collected:
    """Collect one batch of what `effect.operators` have received or logged for themselves."""
    events = _drop_done_rows(connection, run_id, effect)
    rows = sum(map(len, events.values()))
    refs: list[str] = []
    for (operator, channel), event_ids in events.items():
        if channel == STATE_CHANNEL:
            drop_states(connection, run_id, operator, event_ids)
        else:
            refs += drop_bodies(connection, run_id, (operator, channel), sorted(set(event_ids)), kept=False)[1]
    reads = _drop_reads(connection, run_id, effect)
    return Collected(rows + reads, rows + reads, max(rows, reads) >= effect.limit, refs=tuple(refs))


def sweep_shared(connection: Connection, run_id: int, effect: fx.SweepShared) -> Collected:
    """Delete bodies that no row of EVENT_LOG needs, among the next `effect.limit` of the port."""
    data, sender = schema.event_data, effect.sender
    query = (
        sa.select(data.c.event_id)
        .where(*of_channel(data, run_id, sender), data.c.event_id > effect.after)
        .order_by(data.c.event_id)
        .limit(effect.limit)
    )
    event_ids = connection.execute(query).scalars().all()
    dropped, refs = drop_bodies(connection, run_id, sender, event_ids, kept=False)
    more = len(event_ids) == effect.limit
    return Collected(len(dropped), len(event_ids), more, event_ids[-1] if more else 0, tuple(refs))


def drop_bodies(
    connection: Connection, run_id: int, channel: Channel, event_ids: Sequence[int], *, kept: bool
) -> tuple[Sequence[int], list[str]]:
    """Delete those bodies that no row of EVENT_LOG needs. Returns their event ids, and the references that were in
    them."""
    if not event_ids:
        return (), []
    data, rows = schema.event_data, schema.event_log
    not_needed = there_is_no(*of_channel(rows, run_id, channel), rows.c.event_id == data.c.event_id)
    statement = (
        sa.delete(data)
        .where(*of_channel(data, run_id, channel), among(connection, data.c.event_id, event_ids))
        .where(sa.text(schema.KEPT if kept else f"NOT {schema.KEPT}"), not_needed)
        .returning(data.c.event_id, data.c.ref)
    )
    dropped = connection.execute(statement).all()
    return [row.event_id for row in dropped], [row.ref for row in dropped if row.ref is not None]


def drop_states(connection: Connection, run_id: int, operator: str, state_ids: Sequence[int]) -> None:
    """Delete states as they were at a trigger; never the current one."""
    if not state_ids:
        return
    table = schema.state
    connection.execute(
        sa.delete(table).where(
            table.c.run_id == run_id,
            table.c.op == operator,
            table.c.state_id > 0,
            among(connection, table.c.state_id, state_ids),
        )
    )


def _drop_done_rows(connection: Connection, run_id: int, effect: fx.Collect) -> Mapping[Channel, list[int]]:
    """Delete done rows. Returns (operator, channel) → their event ids."""
    table = schema.event_log
    chosen = (
        sa.select(table.c.row_id)
        .where(table.c.run_id == run_id, table.c.rec_op.in_(effect.operators), sa.text(schema.GARBAGE))
        # Event r of Algorithm 1 stays until its stored effect is discarded (Step 2.d): that deletes it, and counts it.
        .where(sa.or_(table.c.rec_port.is_not(None), ~table.c.channel.startswith(READS, autoescape=True)))
        .limit(effect.limit)
    )
    delete = sa.delete(table).where(table.c.row_id.in_(chosen.scalar_subquery()))
    events: dict[Channel, list[int]] = {}
    for row in connection.execute(delete.returning(table.c.send_op, table.c.channel, table.c.event_id)):
        events.setdefault((row.send_op, row.channel), []).append(row.event_id)
    return events


def _drop_reads(connection: Connection, run_id: int, effect: fx.Collect) -> int:
    """Delete complete read actions, except the current one of an operator and those whose event r is in the log."""
    table, rows = schema.read_action, schema.event_log
    same = table.alias("same")
    current = sa.select(sa.func.max(same.c.action_id)).where(
        same.c.run_id == table.c.run_id, same.c.op == table.c.op, same.c.conn_id == table.c.conn_id
    )
    garbage = (
        sa.select(table.c.op, table.c.conn_id, table.c.action_id)
        .where(table.c.run_id == run_id, table.c.op.in_(effect.operators), sa.text(schema.READ_GARBAGE))
        .where(
            table.c.action_id < current.scalar_subquery(),
            there_is_no(
                rows.c.run_id == table.c.run_id,
                rows.c.send_op == table.c.op,
                rows.c.channel == sa.literal(READS) + table.c.conn_id,
                rows.c.event_id == table.c.action_id,
            ),
        )
        .limit(effect.limit)
    )
    found = connection.execute(garbage).all()
    for operator, conn_id in {(row.op, row.conn_id) for row in found}:
        action_ids = [row.action_id for row in found if (row.op, row.conn_id) == (operator, conn_id)]
        drop_read_actions(connection, run_id, operator, conn_id, action_ids)
    return len(found)


def drop_read_actions(
    connection: Connection, run_id: int, operator: str, conn_id: str, action_ids: Sequence[int]
) -> None:
    if not action_ids:
        return
    table = schema.read_action
    connection.execute(
        sa.delete(table).where(
            table.c.run_id == run_id,
            table.c.op == operator,
            table.c.conn_id == conn_id,
            among(connection, table.c.action_id, action_ids),
        )
    )


def there_is_no(*where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """NOT EXISTS as one look into an index per row, on both databases: few rows are counted, and mostly none.

    PostgreSQL makes NOT EXISTS a join that reads the table, or, for every row, all rows that this transaction has just
    deleted. With LIMIT 1 it reads the table if it expects to find a row soon. For `SELECT *`, SQLite takes the index
    with all columns, and not the one that fits.
    """
    return sa.select(sa.func.count()).where(*where).scalar_subquery() == 0


def of_channel(table: sa.Table, run_id: int, channel: Channel) -> tuple[sa.ColumnElement[Any], ...]:
    return (table.c.run_id == run_id, table.c.send_op == channel[0], table.c.channel == channel[1])


def expire(connection: Connection, run_id: int, effect: fx.ExpireLineage) -> Collected:
    """Expire one batch; `Collected.after` is where the next one begins."""
    match effect.kept:
        case Kept.EVENTS:
            return _events(connection, run_id, effect)
        case Kept.READS:
            return _reads(connection, run_id, effect)
        case Kept.STATES:
            return _states(connection, run_id, effect)
        case Kept.SOURCE_READS:
            return _source_reads(connection, run_id, effect)


def _events(connection: Connection, run_id: int, effect: fx.ExpireLineage) -> Collected:
    channel = (effect.operator, effect.name)
    old, more = _old_bodies(connection, run_id, channel, effect)
    rows = len(_drop_used_rows(connection, run_id, channel, old))
    dropped, refs = drop_bodies(connection, run_id, channel, old, kept=True)
    table = schema.event_lineage
    if dropped:
        delete = sa.delete(table).where(
            table.c.run_id == run_id,
            table.c.send_op == effect.operator,
            table.c.send_port == effect.name,
            among(connection, table.c.event_id, dropped),
        )
        rows += connection.execute(delete).rowcount
    return Collected(rows + len(dropped), len(old), more, old[-1] if more else 0, tuple(refs))


def _reads(connection: Connection, run_id: int, effect: fx.ExpireLineage) -> Collected:
    channel = (effect.operator, read_channel(effect.name))
    old, more = _old_bodies(connection, run_id, channel, effect)
    rows = len(_drop_used_rows(connection, run_id, channel, old))
    dropped, refs = drop_bodies(connection, run_id, channel, old, kept=True)
    drop_read_actions(connection, run_id, effect.operator, effect.name, dropped)
    return Collected(rows + 2 * len(dropped), len(old), more, old[-1] if more else 0, tuple(refs))


def _old_bodies(
    connection: Connection, run_id: int, channel: Channel, effect: fx.ExpireLineage
) -> tuple[Sequence[int], bool]:
    """The next kept bodies that are old enough, in the order of their ids, and whether there may be more of them."""
    data = schema.event_data
    age = now(connection.dialect.name) - sa.func.coalesce(data.c.logged_at, 0.0)
    query = (
        sa.select(data.c.event_id, (age > effect.retention_seconds).label("old"))
        .where(*of_channel(data, run_id, channel), sa.text(schema.KEPT), data.c.event_id > effect.after)
        .order_by(data.c.event_id)
        .limit(effect.limit)
    )
    old: list[int] = []
    for row in connection.execute(query):
        if not row.old:  # nor is any later one: they were logged in this order
            return old, False
        old.append(row.event_id)
    return old, len(old) == effect.limit


def _drop_used_rows(connection: Connection, run_id: int, channel: Channel, event_ids: Sequence[int]) -> Sequence[int]:
    """Delete rows in which these events were used, where nothing that was made with them is left. Returns their event
    ids."""
    if not event_ids:
        return ()
    table = schema.event_log
    delete = sa.delete(table).where(
        *of_channel(table, run_id, channel),
        table.c.event_id.between(event_ids[0], event_ids[-1]),
        among(connection, table.c.event_id, event_ids),
        table.c.status == Status.DONE.value,
        table.c.kept,
        _has_no_lineage(table),
    )
    return connection.execute(delete.returning(table.c.event_id)).scalars().all()


def _has_no_lineage(rows: sa.Table) -> sa.ColumnElement[bool]:
    """Whether the Input Set of a row has no lineage relationship; a row without an Input Set has none."""
    lineage = schema.event_lineage
    return there_is_no(
        lineage.c.run_id == rows.c.run_id,
        lineage.c.send_op == rows.c.rec_op,
        lineage.c.inset_id == rows.c.inset_id,
    )


def _states(connection: Connection, run_id: int, effect: fx.ExpireLineage) -> Collected:
    table, channel = schema.event_log, (effect.operator, STATE_CHANNEL)
    query = (
        sa.select(table.c.event_id)
        .where(*of_channel(table, run_id, channel), table.c.event_id > effect.after)
        .order_by(table.c.event_id)
        .limit(effect.limit)
    )
    state_ids = connection.execute(query).scalars().all()
    dropped = _drop_used_rows(connection, run_id, channel, state_ids)
    drop_states(connection, run_id, effect.operator, dropped)
    more = len(state_ids) == effect.limit
    return Collected(2 * len(dropped), len(state_ids), more, state_ids[-1] if more else 0)


def _source_reads(connection: Connection, run_id: int, effect: fx.ExpireLineage) -> Collected:
    """Remove read actions before those that the oldest kept events say they come from. Without events, all but the
    last."""
    table = schema.read_action
    of_source = (table.c.run_id == run_id, table.c.op == effect.operator, table.c.conn_id == READ_CONNECTION)
    needed = _read_actions_of_oldest_events(connection, run_id, effect)
    needed.append(connection.execute(sa.select(sa.func.max(table.c.action_id)).where(*of_source)).scalar_one() or 0)
    garbage = sa.select(table.c.action_id).where(
        *of_source, table.c.action_id < min(needed), table.c.status == ReadStatus.COMPLETE.value
    )
    chosen = connection.execute(garbage.order_by(table.c.action_id).limit(effect.limit)).scalars().all()
    drop_read_actions(connection, run_id, effect.operator, READ_CONNECTION, chosen)
    return Collected(len(chosen), len(chosen), len(chosen) == effect.limit)


def _read_actions_of_oldest_events(connection: Connection, run_id: int, effect: fx.ExpireLineage) -> list[int]:
    """The read actions of the oldest kept events, one for every output port of a source that has kept events."""
    data, found = schema.event_data, []
    for port in effect.ports:
        oldest = (
            sa.select(data.c.event_id, data.c.header)
            .where(*of_channel(data, run_id, (effect.operator, port)), sa.text(schema.KEPT))
            .order_by(data.c.event_id)
            .limit(1)
        )
        for row in connection.execute(oldest):
            about = decode_about(f"event {row.event_id} of {effect.operator}.{port}", bytes(row.header))
            found.append(int(about.get(READ_ACTION_ID, 0)))
    return found
