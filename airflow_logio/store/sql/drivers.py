"""Every driver that a run has had, one record per incarnation (`LogStore.drivers`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.store.records import DriverRecord
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import reading


def driver_records(log: Engine, beats: Engine, run_ids: Collection[int]) -> dict[int, list[DriverRecord]]:
    """Run id → its drivers, in the order in which they were claimed.

    In one snapshot where the log and its heartbeats are one database.
    """
    table = schema.driver
    query = sa.select(table).where(table.c.run_id.in_(run_ids)).order_by(table.c.claimed_at, table.c.group_name)
    with reading(log) as connection:
        rows = connection.execute(query).all()
        seen = _last_beats(connection, run_ids) if beats is log else None
    if seen is None:
        with reading(beats) as connection:
            seen = _last_beats(connection, run_ids)
    found: dict[int, list[DriverRecord]] = {run_id: [] for run_id in run_ids}
    for row in rows:
        found[row.run_id].append(_record(row, seen))
    return found


def _record(row: sa.Row[Any], beats: Mapping[tuple[int, str, int], float]) -> DriverRecord:
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
        last_beat_at=beats.get((row.run_id, row.group_name, row.incarnation)),
        code=row.code,
        failed_at=row.failed_at,
    )


def _last_beats(connection: Connection, run_ids: Collection[int]) -> dict[tuple[int, str, int], float]:
    table = schema.heartbeat
    query = sa.select(table.c.run_id, table.c.group_name, table.c.incarnation, table.c.at)
    rows = connection.execute(query.where(table.c.run_id.in_(run_ids)))
    return {(row.run_id, row.group_name, row.incarnation): row.at for row in rows}
