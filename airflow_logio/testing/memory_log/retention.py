"""Garbage collection in memory, retention of lineage, removal of whole runs (a database: `store/sql/retention.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.effects import Kept
from airflow_logio.protocol.source import READ_ACTION_ID, READ_CONNECTION
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import ReadStatus, Status
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import BY_PERSON, Collected, RemovedRun
from airflow_logio.store.rules.row_forms import READS, STATE_CHANNEL, decode_about, read_channel
from airflow_logio.store.rules.run_rules import check_removable, is_removable, shared_ports
from airflow_logio.testing.memory_log import slots
from airflow_logio.testing.memory_log.runs import group_states
from airflow_logio.testing.memory_log.tables import BodyKey, LogRow, RunRow, Tables


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


# --- lineage ----------------------------------------------------------------------------------------------------------


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


# --- whole runs -------------------------------------------------------------------------------------------------------


def collect_run(tables: Tables, run_id: int, limit: int) -> Collected:
    """Collect one batch of what the finished groups of a run have left."""
    spec, operators = _found(tables, run_id).spec, _operators_of_finished_groups(tables, run_id)
    done = collect(tables, run_id, fx.Collect(operators, limit))
    if done.more:
        return done
    refs, rows = list(done.refs), done.rows
    for port in shared_ports(spec):
        dropped, found = drop_bodies(tables, channel_bodies(tables, run_id, port.operator, port.name, 0), kept=False)
        rows, refs = rows + len(dropped), refs + found
    return Collected(rows, rows, refs=tuple(refs))


def garbage(tables: Tables, run_id: int) -> int:
    return sum(len(tables.events.garbage(run_id, name)) for name in _operators_of_finished_groups(tables, run_id))


def _operators_of_finished_groups(tables: Tables, run_id: int) -> tuple[str, ...]:
    unfinished = {
        key.group for key, row in tables.groups.items() if key.run_id == run_id and row.state is not GroupState.FINISHED
    }
    return _found(tables, run_id).spec.operators_that_ended(unfinished, slots.done(tables, run_id))


def removable(tables: Tables, older_than_seconds: float, *, unfinished: bool) -> Sequence[Run]:
    """Runs that ended at least that long ago, the oldest first, and runs whose removal was interrupted."""
    found = []
    for row in tables.runs.values():
        groups = [group for key, group in tables.groups.items() if key.run_id == row.run_id]
        ended_at = row.ended_at or max((group.since for group in groups), default=row.created_at)
        ended = is_removable(row.as_run(), group_states(tables, row.run_id), unfinished=unfinished)
        if row.state is RunState.REMOVING or (ended and tables.now() - ended_at >= older_than_seconds):
            found.append(row.as_run())
    return found


def take_turns(tables: Tables, pause_seconds: float, pipeline: str | None) -> Mapping[str, float]:
    clock, taken = tables.now(), {}
    for name, seconds in sorted(tables.keeps.items()):
        swept = tables.swept.get(name)
        if seconds is not None and pipeline in (None, name) and (swept is None or clock - swept >= pause_seconds):
            tables.put(tables.swept, name, clock)
            taken[name] = seconds
    return taken


def expired(tables: Tables, pipeline: str, limit: int) -> Sequence[Run]:
    rows = [row for row in tables.runs.values() if row.spec.key.pipeline == pipeline]
    removing, seconds = [row for row in rows if row.state is RunState.REMOVING], tables.keeps.get(pipeline)
    old = [
        row
        for row in rows
        if row.state in (RunState.FINISHED, RunState.SUPERSEDED)
        and seconds is not None
        and row.ended_at is not None
        and tables.now() - row.ended_at >= seconds
        and not row.next_allowed
    ]
    return [row.as_run() for row in (*removing, *sorted(old, key=lambda row: row.ended_at or 0.0))][:limit]


def removed_up_to(tables: Tables, pipeline: str) -> int:
    rows = [row for row in tables.runs.values() if row.spec.key.pipeline == pipeline]
    left = [row.ordinal for row in rows if row.state is not RunState.REMOVING]
    return min(left) - 1 if left else tables.ordinals.get(pipeline, 0)


def removed_run(tables: Tables, name: str) -> RemovedRun | None:
    """As the adapter for SQL: by uid, by DAG run, by partition, by a unique beginning."""
    found = sorted(tables.removed.values(), key=lambda one: -one.ordinal)
    exact = [one for one in found if one.uid == name] or [one for one in found if one.key.dag_run_id == name]
    exact = exact or [one for one in found if name == f"{one.key.pipeline}@{one.partition}"]
    begun = [one for one in found if name and one.uid.startswith(name)]
    return next(iter(exact), begun[0] if len(begun) == 1 else None)


def give_up_removed(tables: Tables, uid: str) -> bool:
    one = tables.removed.get(uid)
    if one is None or one.state is RunState.SUPERSEDED:
        return False
    tables.put(tables.removed, uid, replace(one, state=RunState.SUPERSEDED))
    return True


def remove(
    tables: Tables, run_id: int, limit: int, *, unfinished: bool, keep_row: bool = False, reason: str = BY_PERSON
) -> Collected:
    """Remove one batch of a run, its own row last, or not at all. Raises `ProtocolViolation` if it has not ended."""
    row = _found(tables, run_id)
    if row.state is not RunState.REMOVING:
        return _begin_removal(tables, row, reason, unfinished=unfinished)
    of_run = [log_row for log_row in tables.events.rows.values() if log_row.body.run_id == run_id][:limit]
    for log_row in of_run:
        tables.unlog(log_row)
    if of_run:
        return Collected(len(of_run), len(of_run), more=True)
    for table in _keyed_by_run(tables):
        keys = [key for key in table if key[0] == run_id][:limit]
        refs = [table[key].ref for key in keys if table is tables.bodies and table[key].ref is not None]
        for key in keys:
            tables.drop(table, key)
        if keys:
            return Collected(len(keys), len(keys), more=True, refs=tuple(refs))
    _remove_beats(tables, run_id)
    if keep_row:
        return Collected()
    tables.drop(tables.runs, run_id)
    return Collected(1, 1)


def _remove_beats(tables: Tables, run_id: int) -> None:
    """And what stands beside them: output and addresses."""
    by_driver: tuple[dict[Any, Any], ...] = (tables.drivers, tables.beats, tables.output)
    for table in by_driver:
        for key in [key for key in table if key[0].run_id == run_id]:
            tables.drop(table, key)
    for group in [group for group in tables.addresses if group.run_id == run_id]:
        tables.drop(tables.addresses, group)


def _begin_removal(tables: Tables, row: RunRow, reason: str, *, unfinished: bool) -> Collected:
    check_removable(row.as_run(), group_states(tables, row.run_id), unfinished=unfinished)
    times = (row.created_at, row.ended_at, tables.now())
    kept = RemovedRun(row.uid, row.spec.key, row.spec.partition, row.ordinal, row.state, *times, reason)
    tables.put(tables.removed, row.uid, kept)
    groups = [key for key in tables.groups if key.run_id == row.run_id]
    for key in groups:
        tables.drop(tables.groups, key)
        tables.drop(tables.fences, key)
    tables.drop(tables.run_keys, row.spec.key)
    for start in [start for start, one in tables.starts.items() if one.run_uid == row.uid]:
        tables.drop(tables.starts, start)
    tables.put(tables.runs, row.run_id, replace(row, state=RunState.REMOVING))
    return Collected(2 * len(groups), 2 * len(groups), more=True)


def _keyed_by_run(tables: Tables) -> Sequence[dict[Any, Any]]:
    return (
        tables.bodies,
        tables.lineage,
        tables.states,
        tables.reads,
        tables.counters,
        tables.quarantine,
        tables.slots,
        tables.scalings,
        tables.code_changes,
        tables.code,
    )


def _found(tables: Tables, run_id: int) -> RunRow:
    if run_id not in tables.runs:
        raise UnknownRun(f"no run {run_id} is in the log")
    return tables.runs[run_id]
