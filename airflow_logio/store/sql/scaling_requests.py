"""Requests to scale a replicated group, as rows: who asked for what and why, and the outcome."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import OPEN_SCALING, RunState, ScalingState
from airflow_logio.protocol.values import storable
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.store.rules import scaling_rules
from airflow_logio.store.rules.scaling_rules import came_from, check_name, check_request, shape_of, superseded_by
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.runs import known

table = schema.scaling


def request(
    connection: Connection, run: Run, group: str, replicas: int, *, by: str, reason: str, key: str | None
) -> ScalingRequest:
    """The run's row is locked, so that of two simultaneous requests one comes first."""
    runs = schema.run
    state = connection.execute(
        sa.select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update()
    ).scalar_one_or_none()
    if state is None:
        raise UnknownRun(f"run {run.spec.key} is no longer in the log")
    shape_of(run, group)
    of_group = (table.c.run_id == run.run_id, table.c.group_name == group)
    if key is not None:
        check_name("the key of a request to scale", key)
        same = connection.execute(sa.select(table).where(*of_group, table.c.request_key == key)).one_or_none()
        if same is not None:
            return _to_request(same)
    check_request(run, known(RunState, state, f"the state of run {run.uid}"), group, replicas, by)
    clock = now(connection.dialect.name)
    insert = sa.insert(table).values(
        run_id=run.run_id,
        group_name=group,
        replicas=replicas,
        state=ScalingState.REQUESTED.value,
        asked_by=by,
        reason=storable(reason),
        note="",
        request_key=key,
        requested_at=clock,
    )
    made = _to_request(connection.execute(insert.returning(*table.c)).one())
    older = (*of_group, table.c.state.in_([one.value for one in OPEN_SCALING]), table.c.request_id != made.request_id)
    refused = {"state": ScalingState.REFUSED.value, "note": superseded_by(made.request_id), "ended_at": clock}
    connection.execute(sa.update(table).where(*older).values(**refused))
    return made


def requests(connection: Connection, run_id: int, group: str | None) -> Sequence[ScalingRequest]:
    """Requests, the newest first."""
    query = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.request_id.desc())
    if group is not None:
        query = query.where(table.c.group_name == group)
    return [_to_request(row) for row in connection.execute(query)]


def latest_requests(connection: Connection, run_ids: Collection[int]) -> dict[int, list[ScalingRequest]]:
    """Run id → the latest request of each of its groups, the oldest first; runs without one are left out."""
    latest = (
        sa.select(sa.func.max(table.c.request_id))
        .where(table.c.run_id.in_(run_ids))
        .group_by(table.c.run_id, table.c.group_name)
    )
    query = sa.select(table).where(table.c.request_id.in_(latest)).order_by(table.c.request_id)
    found: dict[int, list[ScalingRequest]] = {}
    for row in connection.execute(query):
        found.setdefault(row.run_id, []).append(_to_request(row))
    return found


def check_open(connection: Connection, request_id: int) -> None:
    """Holds until the end of the transaction: another one supersedes the request before this, or after all of it."""
    connection.execute(sa.select(table.c.state).where(table.c.request_id == request_id).with_for_update()).all()
    check_is_open(connection, request_id)


def check_is_open(connection: Connection, request_id: int) -> None:
    """Until the end of the transaction the request cannot be settled. A transaction that holds its row waits for no
    fence, so there is no deadlock."""
    query = sa.select(table.c.state).where(table.c.request_id == request_id).with_for_update(read=True)
    state = connection.execute(query).scalar_one_or_none()
    what = f"the state of request {request_id}"
    scaling_rules.check_open(request_id, None if state is None else known(ScalingState, state, what))


def settle(connection: Connection, request_id: int, state: ScalingState, note: str) -> bool:
    clock = now(connection.dialect.name)
    time = "accepted_at" if state is ScalingState.ACCEPTED else "ended_at"
    values: dict[str, Any] = {"state": state.value, "note": storable(note), time: clock}
    settled = sa.update(table).where(
        table.c.request_id == request_id, table.c.state.in_([one.value for one in came_from(state)])
    )
    if connection.execute(settled.values(**values)).rowcount:
        return True
    found = connection.execute(sa.select(table.c.state).where(table.c.request_id == request_id)).scalar_one_or_none()
    if found is None:
        raise ProtocolViolation(f"no request {request_id} to scale a group is in the log")
    return bool(found == state.value)


def _to_request(row: Any) -> ScalingRequest:
    return ScalingRequest(
        row.request_id,
        row.run_id,
        row.group_name,
        row.replicas,
        known(ScalingState, row.state, f"the state of request {row.request_id}"),
        row.asked_by,
        row.reason,
        row.note,
        row.request_key,
        row.requested_at,
        row.accepted_at,
        row.ended_at,
    )
