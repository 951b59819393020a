"""How a run begins, and how it gives way to a fresh one of the same key: generations."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.store.records.run_records import Run, RunKey, RunSpec
from airflow_logio.store.rules.endings import GroupStates, check_alone, check_superseding
from airflow_logio.store.rules.graph_changes import check_graph
from airflow_logio.store.rules.stored_spec import encode_spec
from airflow_logio.store.sql import code_changes, schema, slots
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.runs import known, to_run


def start(connection: Connection, spec: RunSpec, *, alone: bool, code: bytes | None) -> Run:
    """The newest run of the key. If there is none, or it is superseded, one of the next generation is created.

    Processes that start runs of one pipeline take turns before they create a run, so that each sees the runs of the
    others. Finding a run that exists needs no lock.
    """
    encode_spec(spec)  # what cannot be stored is refused before the log is read
    run = _newest(connection, spec.key)
    if run is None or run.state is RunState.SUPERSEDED:
        _lock_starts(connection, spec.key.pipeline)
        run = _newest(connection, spec.key)
    if run is None or run.state is RunState.SUPERSEDED:
        if alone:
            check_alone(spec, list(_unfinished(connection, spec.key.pipeline)))
        generation = 1 if run is None else run.spec.key.generation + 1
        run = _create(connection, replace(spec, key=replace(spec.key, generation=generation)))
        code_changes.keep(connection, run.run_id, spec.code_digest, code)
    check_graph(run, spec.graph_fingerprint, spec.graph)
    return run


def supersede(connection: Connection, run: Run) -> bool:
    """Mark the run superseded; False if it already is. Groups without a driver are halted, under raised epochs.

    Locks all fences in key order, then the groups, then the run, as everywhere. If a claim comes first, its group is
    alive, and superseding is refused. A claim that comes later finds the run superseded. If the driver of a dead group
    turns out to be alive, it commits nothing more.
    """
    fences, groups, runs = schema.fence, schema.group, schema.run
    for table in (fences, groups):
        ours = sa.select(table.c.group_name).where(table.c.run_id == run.run_id)
        connection.execute(ours.order_by(table.c.group_name).with_for_update()).all()
    state = connection.execute(
        sa.select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update()
    ).scalar_one_or_none()
    if state is None:
        raise UnknownRun(f"run {run.spec.key} is no longer in the log")
    if not check_superseding(run, known(RunState, state, f"the state of run {run.uid}"), group_states(connection, run)):
        return False
    clock, idle = now(connection.dialect.name), [GroupState.NEW.value, GroupState.DEAD.value]
    without_driver = sa.select(groups.c.group_name).where(groups.c.run_id == run.run_id, groups.c.state.in_(idle))
    connection.execute(
        sa.update(fences)
        .where(fences.c.run_id == run.run_id, fences.c.group_name.in_(without_driver))
        .values(epoch=fences.c.epoch + 1)
    )
    halted = {"state": GroupState.HALTED.value, "desired": GroupState.HALTED.value, "since": clock}
    connection.execute(
        sa.update(groups).where(groups.c.run_id == run.run_id, groups.c.state.in_(idle)).values(**halted)
    )
    ended = {"state": RunState.SUPERSEDED.value, "ended_at": sa.func.coalesce(runs.c.ended_at, clock)}
    connection.execute(sa.update(runs).where(runs.c.run_id == run.run_id).values(**ended))
    return True


def group_states(connection: Connection, run: Run) -> GroupStates:
    table = schema.group
    rows = connection.execute(
        sa.select(table.c.group_name, table.c.state).where(table.c.run_id == run.run_id).order_by(table.c.group_name)
    )
    states = {name: known(GroupState, state, f"the state of group {name!r}") for name, state in rows}
    return GroupStates(states, slots.open_slots(connection, [run.run_id]).get(run.run_id, {}))


def _lock_starts(connection: Connection, pipeline: str) -> None:
    """Lock until the end of the transaction. On SQLite a transaction that writes is alone anyway."""
    if connection.dialect.name == "postgresql":
        lock = sa.text("SELECT pg_advisory_xact_lock(hashtext('logio start'), hashtext(:pipeline))")
        connection.execute(lock, {"pipeline": pipeline})


def _newest(connection: Connection, key: RunKey) -> Run | None:
    table = schema.run
    query = (
        sa.select(table)
        .where(table.c.pipeline == key.pipeline, table.c.dag_id == key.dag_id, table.c.dag_run_id == key.dag_run_id)
        .order_by(table.c.generation.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else to_run(row)


def _unfinished(connection: Connection, pipeline: str) -> Iterator[tuple[Run, GroupStates]]:
    table = schema.run
    query = sa.select(table).where(table.c.pipeline == pipeline, table.c.state == RunState.RUNNING.value)
    for row in connection.execute(query.order_by(table.c.run_id)).all():
        run = to_run(row)
        yield run, group_states(connection, run)


def _create(connection: Connection, spec: RunSpec) -> Run:
    key, table, clock = spec.key, schema.run, now(connection.dialect.name)
    insert = sa.insert(table).values(
        uid=uuid.uuid4().hex,
        pipeline=key.pipeline,
        dag_id=key.dag_id,
        dag_run_id=key.dag_run_id,
        generation=key.generation,
        spec=encode_spec(spec),
        state=RunState.RUNNING.value,
        created_at=clock,
    )
    run = to_run(connection.execute(insert.returning(*table.c)).one())
    unused = spec.unused_replicas()
    for name in spec.groups:
        identity = {"run_id": run.run_id, "group_name": name}
        state, desired = (
            (GroupState.RETIRED, GroupState.HALTED) if name in unused else (GroupState.NEW, GroupState.RUNNING)
        )
        group = {"state": state.value, "desired": desired.value, "since": clock}
        connection.execute(sa.insert(schema.group).values(**identity, **group))
        connection.execute(sa.insert(schema.fence).values(**identity, incarnation=0, epoch=0, commit_no=0))
    slots.create(connection, run.run_id, spec)
    return run
