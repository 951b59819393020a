"""Every driver that a run in memory has had, one record per incarnation (`LogStore.drivers`)."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_logio.store.memory.tables import DriverRow, GroupKey, Tables
from airflow_logio.store.records import DriverRecord


def driver_records(tables: Tables, run_id: int) -> Sequence[DriverRecord]:
    """All drivers of the run, in the order in which they were claimed."""
    found = [_record(tables, key, row) for key, row in tables.drivers.items() if key[0].run_id == run_id]
    return sorted(found, key=lambda record: (record.claimed_at, record.group))


def _record(tables: Tables, key: tuple[GroupKey, int], row: DriverRow) -> DriverRecord:
    (_, group), incarnation = key
    identity, beat = row.identity, tables.beats.get(key)
    return DriverRecord(
        group=group,
        incarnation=incarnation,
        reason=row.reason,
        is_recovery=row.spends_budget,
        claimed_at=row.claimed_at,
        submitted_at=row.submitted_at,
        registered_at=row.registered_at,
        first_commit_at=row.first_commit_at,
        ended_at=row.ended_at,
        error=row.error,
        log_path=row.log_path,
        host=identity.host if identity else None,
        pid=identity.pid or None if identity else None,
        last_beat_at=beat.at if beat else None,
        code=row.code,
        failed_at=row.failed_at,
    )
