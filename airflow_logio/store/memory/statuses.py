"""A group of the log in memory as an observer sees it, and the work of a run that is under way."""

from __future__ import annotations

from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.memory.tables import GroupKey, Tables
from airflow_logio.store.records import GroupStatus, UnderWay


def status_of(tables: Tables, key: GroupKey) -> GroupStatus:
    row, fence = tables.groups[key], tables.fences[key]
    incarnation = fence.incarnation
    driver = tables.drivers.get((key, incarnation))
    beat = tables.beats.get((key, incarnation))
    return GroupStatus(
        group=key.group,
        state=row.state,
        desired=row.desired,
        incarnation=incarnation,
        beat=beat.beat if beat else 0,
        beat_at=beat.at if beat else None,
        ready=bool(beat and beat.ready),
        recoveries=sum(row.spends_budget for (other, _), row in tables.drivers.items() if other == key),
        error=row.error,
        since=row.since,
        identity=driver.identity if driver else None,
        log_path=driver.log_path if driver else None,
        rss_bytes=beat.rss_bytes if beat else 0,
        commits=fence.commit_no,
        load=beat.load if beat else None,
        code=row.code,
        killed=row.launch.killed if row.launch else None,
        own_place=row.launch.own_place if row.launch else False,
        beat_age_seconds=tables.now() - beat.at if beat else None,
        state_age_seconds=tables.now() - row.since,
    )


def under_way(tables: Tables, run_id: int) -> UnderWay:
    """Counts the rows: the other adapters' counters are compared with this."""
    found = UnderWay({}, {})
    for row in tables.events.rows.values():
        if row.body.run_id != run_id or row.status is not Status.UNDONE or row.rec_port is None:
            continue
        is_write = row.send_port is None
        if is_write or row.inset_id is not None:
            counts = found.pending if is_write else found.open
            port = Port(row.receiver, row.rec_port)
            counts[port] = counts.get(port, 0) + 1
    return found
