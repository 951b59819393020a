"""Runs and their groups as rows: lookup, end, status, counters. How they begin is in `generations`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import CONCLUDED, GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.load_records import Load
from airflow_logio.store.records import DriverIdentity, GroupStatus, LaunchRecipe, PortProgress, Run, RunSpec, UnderWay
from airflow_logio.store.rules.endings import superseded
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.value_lists import among

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
    exact = [row for row in rows if row.uid == uid] or [row for row in rows if row.dag_run_id == uid]
    if not exact and len(rows) > 1:
        raise UnknownRun(f"{uid!r} is the beginning of {len(rows)} runs: {', '.join(row.uid for row in rows[:5])}")
    if not rows:
        raise UnknownRun(f"no run {uid!r} is in the log; `logio status` lists the runs")
    return to_run((exact or rows)[0])


def newest(connection: Connection, dag_ids: Collection[str] | None, limit: int, **given: str | None) -> Sequence[Run]:
    """Runs of these DAGs, or of all (None), the newest first; `given` are values of columns, None for any."""
    table = schema.run
    query = sa.select(table).order_by(table.c.run_id.desc()).limit(limit)
    query = query.where(*(table.c[name] == value for name, value in given.items() if value is not None))
    if dag_ids is not None:
        query = query.where(among(connection, table.c.dag_id, list(dag_ids)))
    return [to_run(row) for row in connection.execute(query)]


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
    query = status_query(connection, beats).where(schema.group.c.run_id.in_(run_ids))
    if group is not None:
        query = query.where(schema.group.c.group_name == group)
    found: dict[int, list[GroupStatus]] = {run_id: [] for run_id in run_ids}
    for run_id, status in statuses_of(connection, beats, connection.execute(query).mappings().all()):
        found[run_id].append(status)
    return found


def status_query(connection: Connection, beats: Engine) -> sa.Select[Any]:
    """Groups with what `statuses_of` needs, in one statement; without heartbeats if these are in a file of their own."""
    groups, fence, driver = schema.group, schema.fence, schema.driver
    query = (
        sa.select(groups, fence.c.incarnation, fence.c.commit_no, driver, _recoveries(), _state_age(connection))
        .join(fence, sa.and_(*_same(fence, groups)))
        .outerjoin(driver, sa.and_(*_same(driver, fence), driver.c.incarnation == fence.c.incarnation))
        .order_by(groups.c.run_id, groups.c.group_name)
    )
    if beats is not connection.engine:
        return query
    beat, load = schema.heartbeat, schema.load
    return (
        query.outerjoin(beat, sa.and_(*_same(beat, fence), beat.c.incarnation == fence.c.incarnation))
        .outerjoin(load, sa.and_(*_same(load, fence), load.c.incarnation == fence.c.incarnation))
        .add_columns(beat, load.c.figures, _age(connection))
    )


def statuses_of(connection: Connection, beats: Engine, rows: Sequence[sa.RowMapping]) -> list[tuple[int, GroupStatus]]:
    """(run id, status) of each row of `status_query`, in their order."""
    group, fence, beat = schema.group.c, schema.fence.c, schema.heartbeat.c
    if beats is connection.engine:
        return [(row[group.run_id], _status(row, row if row[beat.beat] is not None else None)) for row in rows]
    beating = _beats(beats, {row[group.run_id] for row in rows})
    keys = [(row[group.run_id], row[group.group_name], row[fence.incarnation]) for row in rows]
    return [(key[0], _status(row, beating.get(key))) for key, row in zip(keys, rows, strict=True)]


def _same(one: sa.FromClause, other: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    return [one.c[name] == other.c[name] for name in ("run_id", "group_name")]


def _age(connection: Connection) -> sa.Label[float]:
    """Seconds since the heartbeat, by the database's clock."""
    return (now(connection.dialect.name) - schema.heartbeat.c.at).label("beat_age")


def _state_age(connection: Connection) -> sa.Label[float]:
    return (now(connection.dialect.name) - schema.group.c.since).label("state_age")


def _recoveries() -> sa.Label[int]:
    """How many drivers of the group have replaced a dead one."""
    driver = schema.driver.alias()
    mine = sa.select(sa.func.count()).where(*_same(driver, schema.group), driver.c.spends_budget)
    return mine.scalar_subquery().label("recoveries")


def _beats(beats: Engine, run_ids: Collection[int]) -> dict[tuple[int, str, int], sa.RowMapping]:
    """(run id, group, incarnation) → its last heartbeat, from a file of their own."""
    table, load = schema.heartbeat, schema.load
    mine = sa.and_(*_same(load, table), load.c.incarnation == table.c.incarnation)
    with beats.connect().execution_options(logio_writes=False) as other:
        query = sa.select(table, load.c.figures, _age(other)).outerjoin(load, mine)
        rows = other.execute(query.where(table.c.run_id.in_(run_ids))).mappings().all()
    return {(row[table.c.run_id], row[table.c.group_name], row[table.c.incarnation]): row for row in rows}


def _columns(table: sa.Table) -> SimpleNamespace:
    """A table's columns as plain attributes: one look-up instead of SQLAlchemy's, thirty times per row."""
    return SimpleNamespace(**{column.key: column for column in table.c})


_GROUP, _DRIVER, _FENCE, _HEARTBEAT = map(_columns, (schema.group, schema.driver, schema.fence, schema.heartbeat))


def _status(row: sa.RowMapping, beat: sa.RowMapping | None) -> GroupStatus:
    groups, driver, fence, beats = _GROUP, _DRIVER, _FENCE, _HEARTBEAT
    name = row[groups.group_name]
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
        incarnation=row[fence.incarnation],
        beat=beat[beats.beat] if beat else 0,
        beat_at=beat[beats.at] if beat else None,
        ready=bool(beat and beat[beats.ready]),
        recoveries=row["recoveries"],
        error=row[groups.error],
        since=row[groups.since],
        identity=identity,
        backend_pid=row[driver.backend_pid],
        log_path=row[driver.log_path],
        rss_bytes=beat[beats.rss_bytes] if beat else 0,
        commits=row[fence.commit_no],
        load=_load(beat),
        code=row[groups.code],
        **_of_recipe(row[groups.launch]),
        beat_age_seconds=max(0.0, beat["beat_age"]) if beat else None,
        state_age_seconds=max(0.0, row["state_age"]),
    )


def _of_recipe(launch: str | None) -> dict[str, Any]:
    """Of a recipe that cannot be read nothing is known here; it is refused where it is used."""
    if launch is None or ('"killed":{' not in launch and '"own_place":true' not in launch):
        return {}
    try:
        recipe = msgspec.json.decode(launch, type=LaunchRecipe)
    except (msgspec.MsgspecError, ValueError):
        return {}
    return {"killed": recipe.killed, "own_place": recipe.own_place}


def _load(beat: sa.RowMapping | None) -> Load | None:
    """Figures that this version cannot read are ignored: the protocol does not use them."""
    figures = None if beat is None else beat[schema.load.c.figures]
    if figures is None:
        return None
    try:
        return msgspec.json.decode(figures, type=Load)
    except (msgspec.MsgspecError, ValueError):
        return None


def counters(connection: Connection, run_ids: Collection[int]) -> dict[int, tuple[Sequence[PortProgress], UnderWay]]:
    """Run id → the counters of its ports, and what is under way, from one statement.

    What is under way is never below zero: what a driver of an earlier version has logged was not counted when it was.
    """
    table = schema.port_counter
    query = sa.select(table).where(table.c.run_id.in_(run_ids)).order_by(table.c.op, table.c.port, table.c.direction)
    ports: dict[int, list[PortProgress]] = {run_id: [] for run_id in run_ids}
    under_way = {run_id: UnderWay({}, {}) for run_id in run_ids}
    # Thousands of rows in a run with many slots: taken apart at once, in the order of the table's columns.
    for run_id, op, name, direction, events, *counts in connection.execute(query).all():
        port = Port(op, name)
        if direction not in (schema.OPEN, schema.PENDING):
            ports[run_id].append(PortProgress(port, direction, events, *counts))
        elif events > 0:
            found = under_way[run_id]
            (found.open if direction == schema.OPEN else found.pending)[port] = events
    return {run_id: (ports[run_id], under_way[run_id]) for run_id in run_ids}
