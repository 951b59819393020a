"""How a run begins, gives way to a fresh one, and ends, in memory: as in `sql/generations.py`."""

from __future__ import annotations

import uuid
from dataclasses import replace

import msgspec

from airflow_logio.errors import ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.memory import code_changes, quarantine, slots
from airflow_logio.store.memory.tables import GroupKey, GroupRow, RunRow, Tables
from airflow_logio.store.records import FenceRow, Run, RunKey, RunSpec
from airflow_logio.store.rules.endings import GroupStates, check_alone, check_superseding, superseded
from airflow_logio.store.rules.graph_changes import check_graph
from airflow_logio.store.rules.stored_spec import encode_spec


def start(tables: Tables, spec: RunSpec, *, alone: bool, code: bytes | None) -> Run:
    """Runs in an open transaction, like the others."""
    newest = _newest(tables, spec.key)
    if newest is None or newest.state is RunState.SUPERSEDED:
        if alone:
            check_alone(spec, _unfinished(tables, spec.key.pipeline))
        generation = 1 if newest is None else newest.spec.key.generation + 1
        newest = _create(tables, replace(spec, key=replace(spec.key, generation=generation)))
        code_changes.keep(tables, newest.run_id, spec.code_digest, code)
    check_graph(newest.as_run(), spec.graph_fingerprint, spec.graph)
    return newest.as_run()


def supersede(tables: Tables, run_id: int) -> bool:
    if run_id not in tables.runs:
        raise UnknownRun(f"no run {run_id} is in the log")
    row = tables.runs[run_id]
    if not check_superseding(row.as_run(), row.state, group_states(tables, run_id)):
        return False
    for key, group in list(tables.groups.items()):
        if key.run_id == run_id and group.state in (GroupState.NEW, GroupState.DEAD):
            halted = replace(group, state=GroupState.HALTED, desired=GroupState.HALTED, since=tables.now())
            tables.put(tables.groups, key, halted)
            tables.put(tables.fences, key, replace(tables.fences[key], epoch=tables.fences[key].epoch + 1))
    ended = row.ended_at if row.ended_at is not None else tables.now()
    tables.put(tables.runs, run_id, replace(row, state=RunState.SUPERSEDED, ended_at=ended))
    return True


def finish(tables: Tables, run_id: int) -> bool:
    row = tables.runs.get(run_id)
    if row is None or row.state is RunState.REMOVING:
        return False
    if row.state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(row.as_run()))
    if group_states(tables, run_id).left():
        return False
    ended = row.ended_at if row.ended_at is not None else tables.now()
    state = RunState.QUARANTINED if quarantine.quarantined(tables, run_id) else RunState.FINISHED
    tables.put(tables.runs, run_id, replace(row, state=state, ended_at=ended))
    return True


def _newest(tables: Tables, key: RunKey) -> RunRow | None:
    same = [other for other in tables.run_keys if replace(other, generation=key.generation) == key]
    if not same:
        return None
    return tables.runs[tables.run_keys[max(same, key=lambda other: other.generation)]]


def _unfinished(tables: Tables, pipeline: str) -> list[tuple[Run, GroupStates]]:
    return [
        (row.as_run(), group_states(tables, row.run_id))
        for row in tables.runs.values()
        if row.spec.key.pipeline == pipeline and row.state is RunState.RUNNING
    ]


def group_states(tables: Tables, run_id: int) -> GroupStates:
    states = {key.group: group.state for key, group in sorted(tables.groups.items()) if key.run_id == run_id}
    return GroupStates(states, slots.open_slots(tables, run_id))


def _create(tables: Tables, spec: RunSpec) -> RunRow:
    run_id, clock = next(tables.run_ids), tables.now()
    # Goes through its stored form, as in a database: what cannot be stored is found here.
    stored = msgspec.json.decode(encode_spec(spec), type=RunSpec)
    row = RunRow(run_id, uuid.uuid4().hex, stored, clock)
    tables.put(tables.runs, run_id, row)
    tables.put(tables.run_keys, spec.key, run_id)
    unused = spec.unused_replicas()
    for name in spec.groups:
        key = GroupKey(run_id, name)
        state, desired = (
            (GroupState.RETIRED, GroupState.HALTED) if name in unused else (GroupState.NEW, GroupState.RUNNING)
        )
        tables.put(tables.groups, key, GroupRow(state, desired, clock))
        tables.put(tables.fences, key, FenceRow(0, 0, 0))
    slots.create(tables, run_id, spec)
    return row
