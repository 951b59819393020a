"""Collects what groups leave behind, and removes whole runs, in memory: as in `sql/maintenance.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.memory import retention, slots
from airflow_logio.store.memory.generations import group_states
from airflow_logio.store.memory.retention import channel_bodies, drop_bodies
from airflow_logio.store.memory.tables import RunRow, Tables
from airflow_logio.store.records import Collected, Run
from airflow_logio.store.rules.endings import check_ended, has_ended, shared_ports


def collect(tables: Tables, run_id: int, limit: int) -> Collected:
    """Collect one batch of what the finished groups of a run have left."""
    spec, operators = _found(tables, run_id).spec, _operators_of_finished_groups(tables, run_id)
    done = retention.collect(tables, run_id, fx.Collect(operators, limit))
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
        ended = has_ended(row.as_run(), group_states(tables, row.run_id), unfinished=unfinished)
        if row.state is RunState.REMOVING or (ended and tables.now() - ended_at >= older_than_seconds):
            found.append(row.as_run())
    return found


def remove(tables: Tables, run_id: int, limit: int, *, unfinished: bool, keep_row: bool = False) -> Collected:
    """Remove one batch of a run, its own row last, or not at all. Raises `ProtocolViolation` if it has not ended."""
    row = _found(tables, run_id)
    if row.state is not RunState.REMOVING:
        return _begin_removal(tables, row, unfinished=unfinished)
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


def _begin_removal(tables: Tables, row: RunRow, *, unfinished: bool) -> Collected:
    check_ended(row.as_run(), group_states(tables, row.run_id), unfinished=unfinished)
    groups = [key for key in tables.groups if key.run_id == row.run_id]
    for key in groups:
        tables.drop(tables.groups, key)
        tables.drop(tables.fences, key)
    tables.drop(tables.run_keys, row.spec.key)
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
