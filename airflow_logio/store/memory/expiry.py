"""Retention of lineage in memory: as in `sql/expiry.py`."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.source import READ_ACTION_ID, READ_CONNECTION
from airflow_logio.protocol.values import ReadStatus, Status
from airflow_logio.store.memory.retention import channel_bodies, drop_bodies
from airflow_logio.store.memory.tables import BodyKey, LogRow, Tables
from airflow_logio.store.records import Collected
from airflow_logio.store.rules.channels import STATE_CHANNEL, read_channel
from airflow_logio.store.rules.header import decode_about


def expire(tables: Tables, run_id: int, effect: fx.ExpireLineage) -> Collected:
    """Expire one batch; `Collected.after` is where the next one begins."""
    match effect.kept:
        case Kept.EVENTS:
            return _bodies(tables, run_id, effect, effect.name)
        case Kept.READS:
            return _bodies(tables, run_id, effect, read_channel(effect.name))
        case Kept.STATES:
            return _states(tables, run_id, effect)
        case Kept.SOURCE_READS:
            return _source_reads(tables, run_id, effect)


def _bodies(tables: Tables, run_id: int, effect: fx.ExpireLineage, channel: str) -> Collected:
    old = _old_bodies(tables, run_id, effect, channel)
    more = len(old) == effect.limit
    rows = len(_drop_used_rows(tables, run_id, old))
    dropped, refs = drop_bodies(tables, old, kept=True)
    events = {key.event_id for key in dropped}
    for made in [key for key in tables.lineage if key[:2] == (run_id, (effect.operator, channel)) and key[2] in events]:
        tables.drop(tables.lineage, made)
        rows += 1
    if effect.kept is Kept.READS:
        for event_id in events:
            tables.drop(tables.reads, (run_id, effect.operator, effect.name, event_id))
        rows += len(events)
    return Collected(rows + len(dropped), len(old), more, old[-1].event_id if more else 0, tuple(refs))


def _old_bodies(tables: Tables, run_id: int, effect: fx.ExpireLineage, channel: str) -> list[BodyKey]:
    """The next kept bodies that are old enough, in the order of their ids."""
    old: list[BodyKey] = []
    for key in channel_bodies(tables, run_id, effect.operator, channel, effect.after):
        body = tables.bodies[key]
        if not body.kept:
            continue
        if len(old) == effect.limit or tables.now() - body.logged_at <= effect.retention_seconds:
            break
        old.append(key)
    return old


def _drop_used_rows(tables: Tables, run_id: int, bodies: Sequence[BodyKey]) -> list[LogRow]:
    """Delete rows in which these events were used, where nothing that was made with them is left."""
    with_lineage = {(port.operator, inset_id) for run, port, _, inset_id in tables.lineage if run == run_id}
    used = [
        row
        for body in bodies
        for row in tables.events.of_event(body)
        if row.kept and row.status is Status.DONE and (row.receiver, row.inset_id) not in with_lineage
    ]
    for row in used:
        tables.unlog(row)
    return used


def _states(tables: Tables, run_id: int, effect: fx.ExpireLineage) -> Collected:
    where = (run_id, effect.operator, STATE_CHANNEL)
    behind = {row.body for row in tables.events.rows.values() if row.body[:3] == where}
    bodies = sorted(body for body in behind if body.event_id > effect.after)[: effect.limit]
    dropped = _drop_used_rows(tables, run_id, bodies)
    for row in dropped:
        tables.drop(tables.states, (run_id, effect.operator, row.body.event_id))
    more = len(bodies) == effect.limit
    return Collected(2 * len(dropped), len(bodies), more, bodies[-1].event_id if more else 0)


def _source_reads(tables: Tables, run_id: int, effect: fx.ExpireLineage) -> Collected:
    """Remove read actions before those that the oldest kept events say they come from. Without events, all but the
    last."""
    mine = sorted(key for key in tables.reads if key[:3] == (run_id, effect.operator, READ_CONNECTION))
    needed = [key[3] for key in mine[-1:]]
    for port in effect.ports:
        kept = (key for key in channel_bodies(tables, run_id, effect.operator, port, 0) if tables.bodies[key].kept)
        if (oldest := next(kept, None)) is not None:
            about = decode_about(f"event {oldest.event_id} of {effect.operator}.{port}", tables.bodies[oldest].header)
            needed.append(int(about.get(READ_ACTION_ID, 0)))
    garbage = [key for key in mine if key[3] < min(needed) and tables.reads[key].status is ReadStatus.COMPLETE]
    for key in garbage[: effect.limit]:
        tables.drop(tables.reads, key)
    dropped = min(len(garbage), effect.limit)
    return Collected(dropped, dropped, dropped == effect.limit)
