"""Every driver that a run has had, one record per incarnation: for displays, summaries, metrics and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import reading
from airflow_logio.store.sql.store import SqlLogStore


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """One incarnation of a group. Times are seconds since the epoch by the database's clock; None: not reached."""

    group: str
    incarnation: int
    reason: str
    """Why it was launched."""
    is_recovery: bool
    """It replaced a dead driver, at the cost of the recovery budget; a person's retry does not."""
    claimed_at: float
    submitted_at: float | None
    registered_at: float | None
    first_commit_at: float | None
    ended_at: float | None
    error: str | None
    """Why it ended, if not by itself."""
    log_path: str | None
    host: str | None
    pid: int | None
    last_beat_at: float | None = None
    """Its last sign of life: the time of its latest heartbeat."""


def driver_records(store: SqlLogStore, run_id: int) -> Sequence[DriverRecord]:
    """In the order in which they were claimed. Raises `LogUnavailable`."""
    table = schema.driver
    query = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.claimed_at, table.c.group_name)
    with reading(store.engine) as connection:
        rows = connection.execute(query).all()
        beats = _last_beats(connection, run_id) if store.beats is store.engine else None
    if beats is None:
        with reading(store.beats) as connection:
            beats = _last_beats(connection, run_id)
    return [_record(row, beats) for row in rows]


def _record(row: sa.Row[Any], beats: Mapping[tuple[str, int], float]) -> DriverRecord:
    return DriverRecord(
        group=row.group_name,
        incarnation=row.incarnation,
        reason=row.reason,
        is_recovery=row.spends_budget,
        claimed_at=row.claimed_at,
        submitted_at=row.submitted_at,
        registered_at=row.registered_at,
        first_commit_at=row.first_commit_at,
        ended_at=row.ended_at,
        error=row.error,
        log_path=row.log_path,
        host=row.host,
        pid=row.pid,
        last_beat_at=beats.get((row.group_name, row.incarnation)),
    )


def _last_beats(connection: Connection, run_id: int) -> dict[tuple[str, int], float]:
    table = schema.heartbeat
    query = sa.select(table.c.group_name, table.c.incarnation, table.c.at)
    rows = connection.execute(query.where(table.c.run_id == run_id))
    return {(row.group_name, row.incarnation): row.at for row in rows}
