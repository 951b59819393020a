"""Retention of lineage (Section 3.6): removes, batch by batch, what no retained target event is made from.

Nothing is marked. An event is removed when it is old enough and has no row of EVENT_LOG left. Such a row is removed
when it is done and no event that its Input Set has made has a lineage relationship left. Both hold only after
everything downstream has been removed, whatever scope that belongs to. And an Input Set whose rows are done never gets
another event.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.source import READ_ACTION_ID, READ_CONNECTION
from airflow_logio.protocol.values import ReadStatus, Status
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.channels import STATE_CHANNEL, read_channel
from airflow_logio.store.rules.header import decode_about
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.retention import (
    Channel,
    drop_bodies,
    drop_read_actions,
    drop_states,
    of_channel,
    there_is_no,
)
from airflow_logio.store.sql.value_lists import among


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
