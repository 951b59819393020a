"""Every driver that a run has had, one record per incarnation (`LogStore.drivers`)."""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.store.records.driver_records import DriverRecord
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import reading

_columns = schema.driver.c
_BEFORE = (
    *(_columns.group_name, _columns.incarnation, _columns.reason, _columns.spends_budget, _columns.claimed_at),
    *(_columns.submitted_at, _columns.registered_at, _columns.first_commit_at, _columns.ended_at, _columns.error),
    *(_columns.log_path, _columns.host, _columns.pid),
)
"""As `DriverRecord` has them, up to the last heartbeat; those after it follow."""
_AFTER = (_columns.code, _columns.failed_at)


def driver_records(log: Engine, beats: Engine, run_ids: Collection[int]) -> dict[int, list[DriverRecord]]:
    """Run id → its drivers, in the order in which they were claimed.

    In one snapshot where the log and its heartbeats are one database.
    """
    query = sa.select(schema.driver.c.run_id, *_BEFORE, *_AFTER).where(schema.driver.c.run_id.in_(run_ids))
    query = query.order_by(schema.driver.c.claimed_at, schema.driver.c.group_name)
    with reading(log) as connection:
        rows = connection.execute(query).all()
        seen = _last_beats(connection, run_ids) if beats is log else None
    if seen is None:
        with reading(beats) as connection:
            seen = _last_beats(connection, run_ids)
    found: dict[int, list[DriverRecord]] = {run_id: [] for run_id in run_ids}
    for run_id, *columns in map(list, rows):
        group, incarnation = columns[:2]
        columns.insert(len(_BEFORE), seen.get((run_id, group, incarnation)))
        found[run_id].append(DriverRecord(*columns))
    return found


def _last_beats(connection: Connection, run_ids: Collection[int]) -> dict[tuple[int, str, int], float]:
    table = schema.heartbeat
    query = sa.select(table.c.run_id, table.c.group_name, table.c.incarnation, table.c.at)
    rows = connection.execute(query.where(table.c.run_id.in_(run_ids)))
    return {(run_id, group, incarnation): at for run_id, group, incarnation, at in rows}
