"""Requests to scale a replicated group, in memory: as in `sql/scaling_requests.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.replicas import Placement
from airflow_logio.protocol.states import OPEN_SCALING, ScalingState
from airflow_logio.protocol.values import storable
from airflow_logio.store.memory import slots
from airflow_logio.store.memory.slots import found_run
from airflow_logio.store.memory.tables import Tables
from airflow_logio.store.records import ScalingRequest
from airflow_logio.store.rules.scaling_rules import (
    came_from,
    check_name,
    check_open,
    check_request,
    shape_of,
    superseded_by,
)


def request(
    tables: Tables, run_id: int, group: str, replicas: int, *, by: str, reason: str, key: str | None
) -> ScalingRequest:
    """Runs in an open transaction, like the others."""
    run = found_run(tables, run_id)
    shape_of(run, group)
    of_group = requests(tables, run_id, group)
    if key is not None:
        check_name("the key of a request to scale", key)
        if same := [one for one in of_group if one.key == key]:
            return same[0]
    check_request(run, run.state, group, replicas, by)
    number, clock = next(tables.request_ids), tables.now()
    for older in of_group:
        if older.state in OPEN_SCALING:
            note = superseded_by(number)
            refused = replace(older, state=ScalingState.REFUSED, note=note, ended_at=clock)
            tables.put(tables.scalings, (run_id, older.request_id), refused)
    made = ScalingRequest(
        number, run_id, group, replicas, ScalingState.REQUESTED, by, storable(reason) or "", "", key, clock
    )
    tables.add(tables.scalings, (run_id, number), made)
    return made


def requests(tables: Tables, run_id: int, group: str | None) -> Sequence[ScalingRequest]:
    """Requests, the newest first."""
    found = [one for one in tables.scalings.values() if one.run_id == run_id and group in (None, one.group)]
    return sorted(found, key=lambda one: -one.request_id)


def latest_requests(tables: Tables, run_id: int) -> list[ScalingRequest]:
    """The latest request of each group, the oldest first."""
    latest: dict[str, ScalingRequest] = {}
    for one in reversed(requests(tables, run_id, None)):
        latest.pop(one.group, None)
        latest[one.group] = one
    return list(latest.values())


def rescale(
    tables: Tables,
    run_id: int,
    group: str,
    placement: Placement,
    retire: Collection[str],
    request_id: int | None,
) -> int:
    """As `slots.rescale`, for a request that is still open."""
    if request_id is not None:
        check_is_open(tables, request_id)
    return slots.rescale(tables, run_id, group, placement, retire)


def check_is_open(tables: Tables, request_id: int) -> None:
    check_open(request_id, next((one.state for one in tables.scalings.values() if one.request_id == request_id), None))


def settle(tables: Tables, request_id: int, state: ScalingState, note: str) -> bool:
    sources = came_from(state)
    found = next((one for one in tables.scalings.values() if one.request_id == request_id), None)
    if found is None:
        raise ProtocolViolation(f"no request {request_id} to scale a group is in the log")
    if found.state not in sources:
        return found.state is state
    settled = replace(found, state=state, note=storable(note) or "")
    if state is ScalingState.ACCEPTED:
        settled = replace(settled, accepted_at=tables.now())
    else:
        settled = replace(settled, ended_at=tables.now())
    tables.put(tables.scalings, (found.run_id, request_id), settled)
    return True
