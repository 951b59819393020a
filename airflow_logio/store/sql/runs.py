"""Runs and their groups as rows: lookup, end, status, counters. How they begin is in `generations`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import CONCLUDED, RunState
from airflow_logio.protocol.values import Port, storable
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.records.status_records import PortProgress, UnderWay
from airflow_logio.store.rules.endings import superseded
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.value_lists import among

S = TypeVar("S", bound=StrEnum)

_ROWS_AT_ONCE = 500
_port = lru_cache(maxsize=20_000)(Port)
"""The same ports are read at each look."""


def known(states: type[S], stored: str, what: str) -> S:
    """A stored state as a value; raises `LogInconsistent` for one that this code does not know."""
    try:
        return states(stored)
    except ValueError:
        raise LogInconsistent(
            f"{what} is {stored!r} in the log, which this version of airflow_logio does not know"
        ) from None


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


def newest(
    connection: Connection, dag_ids: Collection[str] | None, limit: int, named: str | None, **given: str | None
) -> Sequence[Run]:
    """Runs of these DAGs, or of all (None), the newest first; `given` are values of columns, None for any; `named` is a part
    of the name of the pipeline, the DAG or the DAG run."""
    table = schema.run
    query = sa.select(table).order_by(table.c.run_id.desc()).limit(limit)
    query = query.where(*(table.c[name] == value for name, value in given.items() if value is not None))
    if dag_ids is not None:
        query = query.where(among(connection, table.c.dag_id, list(dag_ids)))
    if named is not None:
        names = (table.c.pipeline, table.c.dag_id, table.c.dag_run_id)
        part = storable(named) or ""
        query = query.where(sa.or_(*(name.icontains(part, autoescape=True) for name in names)))
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


def counters(connection: Connection, run_ids: Collection[int]) -> dict[int, tuple[Sequence[PortProgress], UnderWay]]:
    """Run id → the counters of its ports, and what is under way, from one statement.

    What is under way is never below zero: what a driver of an earlier version has logged was not counted when it was.
    """
    table = schema.port_counter
    query = sa.select(table).where(table.c.run_id.in_(run_ids)).order_by(table.c.op, table.c.port, table.c.direction)
    ports: dict[int, list[PortProgress]] = {run_id: [] for run_id in run_ids}
    under_way = {run_id: UnderWay({}, {}) for run_id in run_ids}
    # Thousands of rows in a run with many slots: taken apart at once, in the order of the table's columns. None are kept,
    # nor made again: what stays of them for a while costs the garbage collector more than all of this.
    rows = chain.from_iterable(connection.execute(query).partitions(_ROWS_AT_ONCE))
    for run_id, op, name, direction, events, *counts in rows:
        port = _port(op, name)
        if direction not in (schema.OPEN, schema.PENDING):
            ports[run_id].append(PortProgress(port, direction, events, *counts))
        elif events > 0:
            found = under_way[run_id]
            (found.open if direction == schema.OPEN else found.pending)[port] = events
    return {run_id: (ports[run_id], under_way[run_id]) for run_id in run_ids}
