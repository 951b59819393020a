"""Garbage collection in memory: as in `sql/retention.py`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.values import ReadStatus
from airflow_logio.store.memory.tables import BodyKey, LogRow, Tables
from airflow_logio.store.records import Collected
from airflow_logio.store.rules.channels import READS, STATE_CHANNEL, read_channel


def collect(tables: Tables, run_id: int, effect: fx.Collect) -> Collected:
    """Collect one batch of what `effect.operators` have received or logged for themselves."""
    found = (row for name in effect.operators for row in tables.events.garbage(run_id, name) if not _is_event_r(row))
    rows = list(islice(found, effect.limit))
    for row in rows:
        tables.unlog(row)
    refs: list[str] = []
    for body in dict.fromkeys(row.body for row in rows):
        if body.channel == STATE_CHANNEL:
            tables.drop(tables.states, (run_id, body.operator, body.event_id))
        else:
            refs += drop_bodies(tables, [body], kept=False)[1]
    reads = _drop_reads(tables, run_id, effect)
    done = len(rows) + reads
    return Collected(done, done, max(len(rows), reads) >= effect.limit, refs=tuple(refs))


def sweep_shared(tables: Tables, run_id: int, effect: fx.SweepShared) -> Collected:
    """Delete bodies that no row of EVENT_LOG needs, among the next `effect.limit` of the port."""
    sender = effect.sender
    bodies = channel_bodies(tables, run_id, sender.operator, sender.name, effect.after)[: effect.limit]
    dropped, refs = drop_bodies(tables, bodies, kept=False)
    more = len(bodies) == effect.limit
    return Collected(len(dropped), len(bodies), more, bodies[-1].event_id if more else 0, tuple(refs))


def channel_bodies(tables: Tables, run_id: int, operator: str, channel: str, after: int) -> list[BodyKey]:
    """Keys of EVENT_DATA behind `after`, in the order of their event ids."""
    where = (run_id, operator, channel)
    return sorted(key for key in tables.bodies if key[:3] == where and key.event_id > after)


def drop_bodies(tables: Tables, bodies: Iterable[BodyKey], *, kept: bool) -> tuple[list[BodyKey], list[str]]:
    """Delete those bodies that no row of EVENT_LOG needs. Returns their keys, and the references that were in them."""
    dropped, refs = [], []
    for key in bodies:
        body = tables.bodies.get(key)
        if body is None or body.kept is not kept or tables.events.of_event(key):
            continue
        tables.drop(tables.bodies, key)
        dropped.append(key)
        if body.ref is not None:
            refs.append(body.ref)
    return dropped, refs


def _is_event_r(row: LogRow) -> bool:
    """Event r of Algorithm 1 stays until its stored effect is discarded (Step 2.d): that deletes it, and counts it."""
    return row.rec_port is None and row.body.channel.startswith(READS)


def _drop_reads(tables: Tables, run_id: int, effect: fx.Collect) -> int:
    """Delete complete read actions, except the current one of an operator and those whose event r is in the log."""
    mine = [key for key in tables.reads if key[0] == run_id and key[1] in effect.operators]
    current = {key[:3]: key[3] for key in sorted(mine)}
    garbage = [
        key
        for key in mine
        if not tables.reads[key].kept
        and tables.reads[key].status is ReadStatus.COMPLETE
        and key[3] < current[key[:3]]
        and not tables.events.of_event(BodyKey(run_id, key[1], read_channel(key[2]), key[3]))
    ]
    for key in garbage[: effect.limit]:
        tables.drop(tables.reads, key)
    return min(len(garbage), effect.limit)
