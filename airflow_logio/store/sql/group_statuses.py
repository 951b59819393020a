"""Groups as their rows show them: state, driver, and the heartbeat of the fence's incarnation.

Thousands of rows in a look at a large run: the statement has its columns in the order in which a row is taken apart here,
and none is looked up by name.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import DriverIdentity, LaunchRecipe, Load
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.cluster_log import said_of, submission_of
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.runs import known

_COLUMNS = 25
"""Columns of a group, its fence and its driver, as `_status` takes them apart; those of its heartbeat follow."""
_BEAT_COLUMNS = 6
"""Columns of a heartbeat, as `_of_beat` has them; all None where there is none."""

_TELLING = ('"killed":{', '"own_place":true')
"""Words of a recipe that has something for a status."""

_NO_BEAT = (None,) * _BEAT_COLUMNS


def statuses(
    connection: Connection, beats: Engine, run_ids: Sequence[int], group: str | None = None
) -> dict[int, list[GroupStatus]]:
    """Run id → its groups, with the driver and the heartbeat of the fence's incarnation."""
    query = status_query(connection, beats).where(schema.group.c.run_id.in_(run_ids))
    if group is not None:
        query = query.where(schema.group.c.group_name == group)
    found: dict[int, list[GroupStatus]] = {run_id: [] for run_id in run_ids}
    for run_id, status in statuses_of(connection, beats, connection.execute(query).all()):
        found[run_id].append(status)
    return found


def status_query(connection: Connection, beats: Engine) -> sa.Select[Any]:
    """Groups with what `statuses_of` needs, in one statement; without heartbeats if these are in a file of their own."""
    groups, fence, driver = schema.group, schema.fence, schema.driver
    query = (
        sa.select(
            *(groups.c.run_id, groups.c.group_name, groups.c.state, groups.c.desired, groups.c.since, groups.c.error),
            *(_telling_recipe(), groups.c.code, fence.c.incarnation, fence.c.commit_no),
            *(driver.c.host, driver.c.boot_id, driver.c.pid, driver.c.start_time, driver.c.parent_pid),
            *(driver.c.parent_start_time, driver.c.backend_pid, driver.c.log_path),
            *(driver.c.submission, driver.c.reported, driver.c.manager_said),
            now(connection.dialect.name) - driver.c.said_at,
            *(_recoveries(), groups.c.drained_at, now(connection.dialect.name) - groups.c.since),
        )
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
        .add_columns(*_of_beat(connection))
    )


def statuses_of(connection: Connection, beats: Engine, rows: Sequence[Sequence[Any]]) -> list[tuple[int, GroupStatus]]:
    """(run id, status) of each row of `status_query`, in their order. What else a row has stands at its end."""
    if beats is connection.engine:
        return [_status(row, row[_COLUMNS : _COLUMNS + _BEAT_COLUMNS]) for row in rows]
    beating = _beats(beats, {row[0] for row in rows})
    return [_status(row, beating.get((row[0], row[1], row[8]), _NO_BEAT)) for row in rows]


def _same(one: sa.FromClause, other: sa.FromClause) -> list[sa.ColumnElement[bool]]:
    return [one.c[name] == other.c[name] for name in ("run_id", "group_name")]


def _recoveries() -> sa.ScalarSelect[int]:
    """How many drivers of the group have replaced a dead one."""
    driver = schema.driver.alias()
    mine = sa.select(sa.func.count()).where(*_same(driver, schema.group), driver.c.spends_budget)
    return mine.scalar_subquery()


def _of_beat(connection: Connection) -> Sequence[sa.ColumnElement[Any]]:
    """Its number, time, readiness, memory, figures of load, and age in seconds, by the database's clock."""
    beat = schema.heartbeat.c
    age = now(connection.dialect.name) - beat.at
    return beat.beat, beat.at, beat.ready, beat.rss_bytes, schema.load.c.figures, age


def _beats(beats: Engine, run_ids: Collection[int]) -> dict[tuple[int, str, int], Sequence[Any]]:
    """(run id, group, incarnation) → its last heartbeat, from a file of their own."""
    table, load = schema.heartbeat, schema.load
    mine = sa.and_(*_same(load, table), load.c.incarnation == table.c.incarnation)
    with beats.connect().execution_options(logio_writes=False) as other:
        query = sa.select(table.c.run_id, table.c.group_name, table.c.incarnation, *_of_beat(other))
        rows = other.execute(query.select_from(table).outerjoin(load, mine).where(table.c.run_id.in_(run_ids))).all()
    return {(run_id, group, incarnation): beat for run_id, group, incarnation, *beat in rows}


def _status(row: Sequence[Any], beat: Sequence[Any]) -> tuple[int, GroupStatus]:
    run_id, name, state, desired, since, error, launch, code, incarnation, commits, *of_driver = row[:_COLUMNS]
    host, boot_id, pid, start_time, parent_pid, parent_start_time, *of_driver = of_driver
    backend_pid, log_path, submission, reported, said, said_age, recoveries, drained_at, age = of_driver
    identity = None
    if pid is not None or parent_pid is not None:
        identity = DriverIdentity(
            host or "", boot_id or "", pid or 0, start_time or 0.0, parent_pid or 0, parent_start_time or 0.0
        )
    number, at, ready, rss_bytes, figures, beat_age = beat
    return run_id, GroupStatus(
        group=name,
        state=known(GroupState, state, f"the state of group {name!r}"),
        desired=known(GroupState, desired, f"the desired state of group {name!r}"),
        incarnation=incarnation,
        beat=number or 0,
        beat_at=at,
        ready=bool(ready),
        recoveries=recoveries,
        error=error,
        since=since,
        identity=identity,
        backend_pid=backend_pid,
        log_path=log_path,
        rss_bytes=rss_bytes or 0,
        commits=commits,
        load=_load(figures),
        code=code,
        **_of_recipe(launch),
        drained_at=drained_at,
        beat_age_seconds=None if beat_age is None else max(0.0, beat_age),
        submission=None if submission is None else submission_of(submission),
        reported=None if reported is None else submission_of(reported),
        manager_said=None if said is None else said_of(said),
        said_age_seconds=None if said_age is None else max(0.0, said_age),
        state_age_seconds=max(0.0, age),
    )


def _telling_recipe() -> sa.ColumnElement[str | None]:
    """The recipe of a launch, which may be long, where it says what a status has of it."""
    launch = schema.group.c.launch
    return sa.case((sa.or_(*(launch.contains(words, autoescape=True) for words in _TELLING)), launch))


def _of_recipe(launch: str | None) -> dict[str, Any]:
    """What a recipe says to a status: nothing if it cannot be read. It is refused where it is used."""
    if launch is None:
        return {}
    try:
        recipe = msgspec.json.decode(launch, type=LaunchRecipe)
    except (msgspec.MsgspecError, ValueError):
        return {}
    return {"killed": recipe.killed, "own_place": recipe.own_place}


def _load(figures: str | None) -> Load | None:
    """Figures that this version cannot read are ignored: the protocol does not use them."""
    if figures is None:
        return None
    try:
        return msgspec.json.decode(figures, type=Load)
    except (msgspec.MsgspecError, ValueError):
        return None
