"""Many runs at one look: what watchers, displays and metrics read, in as many statements as for one run."""

from __future__ import annotations

from collections.abc import Collection, MutableMapping
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.protocol.states import RunState
from airflow_logio.store.records import GroupStatus, Run, RunSight
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.runs import known, status_query, statuses_of, to_run
from airflow_logio.store.sql.scaling_requests import latest_requests


def sight(
    connection: Connection, beats: Engine, uids: Collection[str] | None, seen: MutableMapping[int, Run]
) -> list[RunSight]:
    """`LogStore.sight`; `seen` are the runs of earlier looks, whose descriptions never change."""
    run = schema.run
    query = status_query(connection, beats).join(run, run.c.run_id == schema.group.c.run_id)
    query = query.add_columns(run.c.state.label("run_state"), run.c.ended_at.label("run_ended_at"))
    query = query.where(run.c.state == RunState.RUNNING.value if uids is None else run.c.uid.in_(uids))
    rows = connection.execute(query).mappings().all()
    groups: dict[int, list[GroupStatus]] = {}
    for run_id, status in statuses_of(connection, beats, rows):
        groups.setdefault(run_id, []).append(status)
    _describe(connection, groups.keys() - seen.keys(), seen)
    runs = {}
    for row in rows:
        run_id = row[schema.group.c.run_id]
        if run_id not in runs:
            state = known(RunState, row["run_state"], f"the state of run {seen[run_id].uid}")
            runs[run_id] = replace(seen[run_id], state=state, ended_at=row["run_ended_at"])
    replicated = [run_id for run_id, one in runs.items() if one.spec.replicated]
    requests = latest_requests(connection, replicated) if replicated else {}
    return [RunSight(one, groups[run_id], requests.get(run_id, ())) for run_id, one in runs.items()]


def _describe(connection: Connection, run_ids: Collection[int], seen: MutableMapping[int, Run]) -> None:
    """Add these runs to `seen`."""
    if run_ids:
        query = sa.select(schema.run).where(schema.run.c.run_id.in_(run_ids))
        seen.update({row.run_id: to_run(row) for row in connection.execute(query)})
