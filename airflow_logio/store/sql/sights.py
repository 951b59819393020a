"""Many runs at one look: what watchers, displays and metrics read, in as many statements as for one run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunSight
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.group_statuses import status_query, statuses_of
from airflow_logio.store.sql.kept_runs import KeptRuns
from airflow_logio.store.sql.runs import known, to_run
from airflow_logio.store.sql.scaling_requests import latest_requests


def sight(connection: Connection, beats: Engine, uids: Collection[str] | None, kept: KeptRuns) -> list[RunSight]:
    """`LogStore.sight`; `kept` are the runs of earlier looks, whose descriptions never change."""
    run = schema.run
    query = status_query(connection, beats).join(run, run.c.run_id == schema.group.c.run_id)
    query = query.add_columns(run.c.state, run.c.ended_at)
    query = query.where(run.c.state == RunState.RUNNING.value if uids is None else run.c.uid.in_(uids))
    rows = connection.execute(query).all()
    groups: dict[int, list[GroupStatus]] = {}
    for run_id, status in statuses_of(connection, beats, rows):
        groups.setdefault(run_id, []).append(status)
    seen = _described(connection, groups.keys(), kept)
    runs = {}
    for run_id, *_, state, ended_at in rows:
        if run_id not in runs:
            present = known(RunState, state, f"the state of run {seen[run_id].uid}")
            runs[run_id] = replace(seen[run_id], state=present, ended_at=ended_at)
    replicated = [run_id for run_id, one in runs.items() if one.spec.replicated]
    requests = latest_requests(connection, replicated) if replicated else {}
    return [RunSight(one, groups[run_id], requests.get(run_id, ())) for run_id, one in runs.items()]


def _described(connection: Connection, run_ids: AbstractSet[int], kept: KeptRuns) -> Mapping[int, Run]:
    seen = kept.of(run_ids)
    if unknown := run_ids - seen.keys():
        query = sa.select(schema.run).where(schema.run.c.run_id.in_(unknown))
        seen |= {row.run_id: to_run(row) for row in connection.execute(query)}
        kept.keep(*seen.values())
    return seen
