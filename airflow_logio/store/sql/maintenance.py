"""Collects what groups leave behind, and removes whole runs that have ended: in batches, outside any driver."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import UnknownRun
from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import Collected
from airflow_logio.store.rules.endings import GroupStates, check_ended, has_ended, shared_ports
from airflow_logio.store.sql import retention, schema, slots
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.generations import group_states
from airflow_logio.store.sql.retention import of_channel, there_is_no
from airflow_logio.store.sql.runs import known, to_run

ROWS = (
    schema.event_log,
    schema.event_data,
    schema.event_lineage,
    schema.state,
    schema.read_action,
    schema.port_counter,
    schema.quarantine,
    schema.slot,
    schema.scaling,
    schema.code_change,
    schema.code,
    schema.driver,
)
"""Tables with rows of a run, the large ones first. The run's groups go before them, and its own row last."""


def collect(connection: Connection, run_id: int, limit: int) -> Collected:
    """Collect one batch of what the finished groups of a run have left."""
    run = find(connection, run_id)
    operators = _operators_of_finished_groups(connection, run)
    done = Collected()
    if operators:
        done = retention.collect(connection, run_id, fx.Collect(operators, limit))
    if done.more:
        return done
    refs, rows, more = list(done.refs), done.rows, False
    for port in shared_ports(run.spec):
        orphans = _orphans(connection, run_id, port, limit)
        dropped, found = retention.drop_bodies(connection, run_id, port, orphans, kept=False)
        rows, more = rows + len(dropped), more or len(orphans) == limit
        refs += found
    return Collected(rows, rows, more, refs=tuple(refs))


def garbage(connection: Connection, run_id: int) -> int:
    """Rows of EVENT_LOG that `collect` would remove."""
    table, operators = schema.event_log, _operators_of_finished_groups(connection, find(connection, run_id))
    query = sa.select(sa.func.count()).select_from(table)
    where = (table.c.run_id == run_id, table.c.rec_op.in_(operators), sa.text(schema.GARBAGE))
    return connection.execute(query.where(*where)).scalar_one()


def _operators_of_finished_groups(connection: Connection, run: Run) -> tuple[str, ...]:
    table = schema.group
    unfinished = set(
        connection.execute(
            sa.select(table.c.group_name).where(
                table.c.run_id == run.run_id, table.c.state != GroupState.FINISHED.value
            )
        ).scalars()
    )
    return run.spec.operators_that_ended(unfinished, slots.done(connection, run.run_id))


def _orphans(connection: Connection, run_id: int, port: Port, limit: int) -> Sequence[int]:
    data, rows = schema.event_data, schema.event_log
    not_needed = there_is_no(*of_channel(rows, run_id, port), rows.c.event_id == data.c.event_id)
    query = (
        sa.select(data.c.event_id)
        .where(*of_channel(data, run_id, port), sa.text(f"NOT {schema.KEPT}"), not_needed)
        .order_by(data.c.event_id)
        .limit(limit)
    )
    return connection.execute(query).scalars().all()


# --- whole runs -------------------------------------------------------------------------------------------------------


def removable(connection: Connection, older_than_seconds: float, *, unfinished: bool) -> Sequence[Run]:
    """Runs that ended at least that long ago, the oldest first, and runs whose removal was interrupted."""
    runs, groups = schema.run, schema.group
    clock = connection.execute(sa.select(now(connection.dialect.name))).scalar_one()
    states: dict[int, dict[str, tuple[GroupState, float]]] = {}
    for row in connection.execute(sa.select(groups.c.run_id, groups.c.group_name, groups.c.state, groups.c.since)):
        state = known(GroupState, row.state, f"the state of group {row.group_name!r}")
        states.setdefault(row.run_id, {})[row.group_name] = (state, row.since)
    open_slots = slots.open_slots(connection)
    found = []
    for run in map(to_run, connection.execute(sa.select(runs).order_by(runs.c.run_id))):
        groups_of_run = states.get(run.run_id, {})
        ended_at = run.ended_at or max((since for _, since in groups_of_run.values()), default=run.created_at)
        left = GroupStates({name: state for name, (state, _) in groups_of_run.items()}, open_slots.get(run.run_id, {}))
        ended = has_ended(run, left, unfinished=unfinished)
        if run.state is RunState.REMOVING or (ended and clock - ended_at >= older_than_seconds):
            found.append(run)
    return found


def remove(connection: Connection, run_id: int, limit: int, *, unfinished: bool, keep_row: bool = False) -> Collected:
    """Remove one batch of a run, its own row last, or not at all. Raises `ProtocolViolation` if it has not ended.

    The first batch removes its groups and its key: a run that is half removed cannot be claimed, retried or resumed.
    """
    run = find(connection, run_id)
    if run.state is not RunState.REMOVING:
        return _begin_removal(connection, run, unfinished=unfinished)
    for table in ROWS:
        refs, rows = _remove_rows(connection, table, run_id, limit)
        if rows:
            return Collected(rows, rows, more=True, refs=refs)
    if keep_row:
        return Collected()
    runs = schema.run
    delete = sa.delete(runs).where(runs.c.run_id == run_id)
    if connection.dialect.name == "sqlite":
        # The greatest id would be given to the next run, and a driver of this one may still be alive.
        newest = sa.select(sa.func.max(runs.alias().c.run_id)).scalar_subquery()
        delete = delete.where(runs.c.run_id < newest)
    return Collected(connection.execute(delete).rowcount)


def _begin_removal(connection: Connection, run: Run, *, unfinished: bool) -> Collected:
    fences, groups, table = schema.fence, schema.group, schema.run
    locked = sa.select(fences).where(fences.c.run_id == run.run_id).order_by(fences.c.group_name)
    connection.execute(locked.with_for_update()).all()
    check_ended(run, group_states(connection, run), unfinished=unfinished)
    rows = sum(
        connection.execute(sa.delete(one).where(one.c.run_id == run.run_id)).rowcount for one in (groups, fences)
    )
    connection.execute(
        sa.update(table).where(table.c.run_id == run.run_id).values(state=RunState.REMOVING.value, dag_run_id=run.uid)
    )
    return Collected(rows, rows, more=True)


def _remove_rows(connection: Connection, table: sa.Table, run_id: int, limit: int) -> tuple[tuple[str, ...], int]:
    keys = list(table.primary_key.columns)
    chosen = sa.select(*keys).where(table.c.run_id == run_id).limit(limit)
    key = keys[0] if len(keys) == 1 else sa.tuple_(*keys)
    delete = sa.delete(table).where(key.in_(chosen))
    if table is not schema.event_data:
        return (), connection.execute(delete).rowcount
    refs = connection.execute(delete.returning(table.c.ref)).scalars().all()
    return tuple(ref for ref in refs if ref is not None), len(refs)


def remove_beats(connection: Connection, run_id: int) -> None:
    """Remove heartbeats, output and addresses of a run whose removal has begun: on SQLite they are in another file."""
    for table in (schema.heartbeat, schema.load, schema.waiting, schema.output, schema.address):
        connection.execute(sa.delete(table).where(table.c.run_id == run_id))


def find(connection: Connection, run_id: int) -> Run:
    row = connection.execute(sa.select(schema.run).where(schema.run.c.run_id == run_id)).one_or_none()
    if row is None:
        raise UnknownRun(f"no run {run_id} is in the log")
    return to_run(row)
