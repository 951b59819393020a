"""A group of the log in memory as an observer sees it."""

from __future__ import annotations

from airflow_logio.store.memory.tables import GroupKey, Tables
from airflow_logio.store.records import GroupStatus


def status_of(tables: Tables, key: GroupKey) -> GroupStatus:
    row, fence = tables.groups[key], tables.fences[key]
    incarnation = fence.incarnation
    driver = tables.drivers.get((key, incarnation))
    beat = tables.beats.get((key, incarnation))
    return GroupStatus(
        group=key.group,
        replica=key.replica,
        state=row.state,
        desired=row.desired,
        incarnation=incarnation,
        beat=beat.beat if beat else 0,
        beat_at=beat.at if beat else None,
        ready=bool(beat and beat.ready),
        recoveries=sum(other == key and number > 1 for other, number in tables.drivers),
        error=row.error,
        since=row.since,
        identity=driver.identity if driver else None,
        log_path=driver.log_path if driver else None,
        rss_bytes=beat.rss_bytes if beat else 0,
        commits=fence.commit_no,
        load=beat.load if beat else None,
    )
