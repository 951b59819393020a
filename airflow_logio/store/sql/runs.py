"""Runs and their groups as rows: lookup, end, status, counters. How they begin is in `generations`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import CONCLUDED, GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records import DriverIdentity, GroupStatus, Load, PortProgress, Run, RunSpec, UnderWay
from airflow_logio.store.rules.endings import superseded
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now

S = TypeVar("S", bound=StrEnum)


def known(states: type[S], stored: str, what: str) -> S:
    """A stored state as a value; raises `LogInconsistent` for one that this code does not know."""
    try:
        return states(stored)
    except ValueError:
        raise LogInconsistent(
            f"{what} is {stored!r} in the log, which this version of airflow_logio does not know"
        ) from None


def upserting(connection: Connection, table: sa.Table) -> Any:
    """INSERT with ON CONFLICT, which both dialects have under the same name."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def to_run(row: sa.Row[Any]) -> Run:
    try:
        spec = msgspec.json.decode(row.spec, type=RunSpec)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LogInconsistent(f"the description of run {row.uid} cannot be read: {error}") from error
    return Run(
        row.run_id,
        row.uid,
        spec,
        known(RunState, row.state, f"the state of run {row.uid}"),
        row.created_at,
        row.ended_at,
    )


def find(connection: Connection, uid: str) -> Run:
    """A run by its uid, a unique beginning of it, or its DAG run id (the newest of that name)."""
    table = schema.run
    matching = sa.or_(table.c.uid.startswith(uid, autoescape=True), table.c.dag_run_id == uid)
    rows = connection.execute(sa.select(table).where(matching).order_by(table.c.run_id.desc())).all()
    exact = [row for row in rows if uid in (row.uid, row.dag_run_id)]
    if not exact and len(rows) > 1:
        raise UnknownRun(f"{uid!r} is the beginning of {len(rows)} runs: {', '.join(row.uid for row in rows[:5])}")
    if not rows:
        raise UnknownRun(f"no run {uid!r} is in the log; `logio status` lists the runs")
    return to_run((exact or rows)[0])


def finish(connection: Connection, run_id: int) -> bool:
    groups, runs = schema.group, schema.run
    # Locked by a statement of its own: the next one sees the state in which the run can no longer be reopened.
    row = connection.execute(sa.select(runs).where(runs.c.run_id == run_id).with_for_update()).one_or_none()
    if row is None or row.state == RunState.REMOVING.value:
        return False
    if row.state == RunState.SUPERSEDED.value:
        raise ProtocolViolation(superseded(to_run(row)))
    concluded = [state.value for state in CONCLUDED]
    unfinished = sa.exists().where(groups.c.run_id == run_id, groups.c.state.not_in(concluded))
    open_slots = sa.exists().where(schema.slot.c.run_id == run_id, ~schema.slot.c.done)
    aside = sa.exists().where(schema.quarantine.c.run_id == run_id)
    state = sa.case((aside, RunState.QUARANTINED.value), else_=RunState.FINISHED.value)
    done = connection.execute(
        sa.update(runs)
        .where(runs.c.run_id == run_id, ~unfinished, ~open_slots)
        .values(state=state, ended_at=sa.func.coalesce(runs.c.ended_at, now(connection.dialect.name)))
    )
    return done.rowcount == 1


def statuses(
    connection: Connection, beats: Engine, run_ids: Sequence[int], group: str | None = None
) -> dict[int, list[GroupStatus]]:
    """Run id → its groups, with the driver and the heartbeat of the fence's incarnation."""
    groups, fence, driver = schema.group, schema.fence, schema.driver
    same = [fence.c[name] == groups.c[name] for name in ("run_id", "group_name")]
    mine = [driver.c[name] == fence.c[name] for name in ("run_id", "group_name", "incarnation")]
    query = (
        sa.select(groups, fence.c.incarnation, fence.c.commit_no, driver)
        .join(fence, sa.and_(*same))
        .outerjoin(driver, sa.and_(*mine))
        .where(groups.c.run_id.in_(run_ids))
        .order_by(groups.c.run_id, groups.c.group_name)
    )
    if group is not None:
        query = query.where(groups.c.group_name == group)
    rows = connection.execute(query).mappings().all()
    recoveries = _recoveries(connection, run_ids)
    beating = _beats(connection, beats, run_ids)
    found: dict[int, list[GroupStatus]] = {run_id: [] for run_id in run_ids}
    for row in rows:
        found[row[groups.c.run_id]].append(_status(row, recoveries, beating))
    return found


_Key = tuple[int, str]
"""(run id, group)"""


def _recoveries(connection: Connection, run_ids: Sequence[int]) -> dict[_Key, int]:
    driver = schema.driver
    query = (
        sa.select(driver.c.run_id, driver.c.group_name, sa.func.count())
        .where(driver.c.run_id.in_(run_ids), driver.c.spends_budget)
        .group_by(driver.c.run_id, driver.c.group_name)
    )
    return {(run_id, name): count for run_id, name, count in connection.execute(query)}


def _beats(connection: Connection, beats: Engine, run_ids: Sequence[int]) -> dict[tuple[_Key, int], sa.Row[Any]]:
    table, load = schema.heartbeat, schema.load
    same = [load.c[name] == table.c[name] for name in ("run_id", "group_name", "incarnation")]
    query = sa.select(table, load.c.figures).outerjoin(load, sa.and_(*same)).where(table.c.run_id.in_(run_ids))
    if beats is connection.engine:
        rows = connection.execute(query).all()
    else:
        with beats.connect().execution_options(logio_writes=False) as other:
            rows = other.execute(query).all()
    return {((row.run_id, row.group_name), row.incarnation): row for row in rows}


def _status(row: sa.RowMapping, recoveries: dict[_Key, int], beats: dict[tuple[_Key, int], sa.Row[Any]]) -> GroupStatus:
    groups, driver, fence = schema.group.c, schema.driver.c, schema.fence.c
    name, incarnation = row[groups.group_name], row[fence.incarnation]
    key = (row[groups.run_id], name)
    beat = beats.get((key, incarnation))
    identity = None
    if row[driver.pid] is not None or row[driver.parent_pid] is not None:
        identity = DriverIdentity(
            row[driver.host] or "",
            row[driver.boot_id] or "",
            row[driver.pid] or 0,
            row[driver.start_time] or 0.0,
            row[driver.parent_pid] or 0,
            row[driver.parent_start_time] or 0.0,
        )
    return GroupStatus(
        group=name,
        state=known(GroupState, row[groups.state], f"the state of group {name!r}"),
        desired=known(GroupState, row[groups.desired], f"the desired state of group {name!r}"),
        incarnation=incarnation,
        beat=beat.beat if beat else 0,
        beat_at=beat.at if beat else None,
        ready=bool(beat and beat.ready),
        recoveries=recoveries.get(key, 0),
        error=row[groups.error],
        since=row[groups.since],
        identity=identity,
        backend_pid=row[driver.backend_pid],
        log_path=row[driver.log_path],
        rss_bytes=beat.rss_bytes if beat else 0,
        commits=row[fence.commit_no],
        load=_load(beat),
    )


def _load(beat: sa.Row[Any] | None) -> Load | None:
    """Figures that this version cannot read are ignored: the protocol does not use them."""
    if beat is None or beat.figures is None:
        return None
    try:
        return msgspec.json.decode(beat.figures, type=Load)
    except (msgspec.MsgspecError, ValueError):
        return None


def progress(connection: Connection, run_id: int) -> Sequence[PortProgress]:
    table = schema.port_counter
    query = (
        sa.select(table)
        .where(table.c.run_id == run_id, table.c.direction.not_in([schema.OPEN, schema.PENDING]))
        .order_by(table.c.op, table.c.port, table.c.direction)
    )
    return [
        PortProgress(
            Port(row.op, row.port), row.direction, row.events, row.records, row.bytes, row.first_at, row.last_at
        )
        for row in connection.execute(query)
    ]


def under_way(connection: Connection, run_id: int) -> UnderWay:
    """Never below zero: rows that a driver of an earlier version logged were not counted at the time."""
    table = schema.port_counter
    query = sa.select(table.c.op, table.c.port, table.c.direction, table.c.events).where(
        table.c.run_id == run_id, table.c.direction.in_([schema.OPEN, schema.PENDING])
    )
    found = UnderWay({}, {})
    for op, port, direction, count in connection.execute(query):
        if count > 0:
            (found.open if direction == schema.OPEN else found.pending)[Port(op, port)] = count
    return found
