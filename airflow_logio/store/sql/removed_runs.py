"""Which runs are old enough to be removed, and rows of those that were.

Such a row is made when the removal begins, so that the order of runs, and who was given up, stay known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import storable
from airflow_logio.store.port.retention_port import RetentionLog
from airflow_logio.store.records.run_records import Run, RunKey
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.engines import inserting, now, reading, writing
from airflow_logio.store.sql.runs import SqlPart, described_runs

BY_ITSELF = (RunState.FINISHED.value, RunState.SUPERSEDED.value)
"""States of runs that are removed by themselves. What waits for a person stays: also one with quarantined Input Sets."""


class SqlRetentionLog(SqlPart, RetentionLog):
    """Which runs are old enough to be removed, and which were."""

    def take_turns(self, pause_seconds: float, *, pipeline: str | None = None) -> Mapping[str, float]:
        with reading(self.engine) as connection:
            due = _due(connection, pause_seconds, pipeline)
        if not due:  # the row is that of starts: it is locked only if there is something to do
            return {}
        with writing(self.engine) as connection:
            return _take(connection, pause_seconds, due)

    def expired(self, pipeline: str, limit: int) -> Sequence[Run]:
        with reading(self.engine) as connection:
            return expired(connection, pipeline, limit)

    def removed_up_to(self, pipeline: str) -> int:
        with reading(self.engine) as connection:
            return removed_up_to(connection, pipeline)

    def removed_run(self, name: str) -> RemovedRun | None:
        with reading(self.engine) as connection:
            return found(connection, name)

    def removed_runs(
        self,
        *,
        pipeline: str | None = None,
        dag_run_id: str | None = None,
        partitions: tuple[str, str] | None = None,
        ordinals: tuple[int, int] | None = None,
        limit: int = 50,
        oldest_first: bool = False,
    ) -> Sequence[RemovedRun]:
        columns = schema.removed_run.c
        where = [] if pipeline is None else [columns.pipeline == pipeline]
        where += [] if dag_run_id is None else [columns.dag_run_id == dag_run_id]
        where += [] if partitions is None else [columns.partition.between(*partitions)]
        where += [] if ordinals is None else [columns.ordinal.between(*ordinals)]
        with reading(self.engine) as connection:
            return listed(connection, where, limit, oldest_first=oldest_first)

    def give_up_removed(self, uid: str) -> bool:
        with writing(self.engine) as connection:
            return give_up(connection, uid)

    def pipelines_due(self) -> Mapping[str, Mapping[str, str]]:
        table = schema.pipeline
        query = sa.select(table.c.name, table.c.due).where(table.c.due.is_not(None)).order_by(table.c.name)
        with reading(self.engine) as connection:
            return {row.name: _promise(row.name, row.due) for row in connection.execute(query)}

    def first_partition(self, pipeline: str) -> str | None:
        found = list[str]()
        with reading(self.engine) as connection:
            for table in (schema.run, schema.removed_run):
                mine = (table.c.pipeline == pipeline, table.c.partition.is_not(None))
                query = sa.select(table.c.partition).where(*mine).order_by(table.c.partition).limit(1)
                found += connection.execute(query).scalars().all()
        return min(found, default=None)


def _promise(pipeline: str, stored: str) -> Mapping[str, str]:
    try:
        return msgspec.json.decode(stored, type=dict[str, str])
    except (msgspec.MsgspecError, ValueError) as error:
        raise LogInconsistent(f"when partitions of pipeline {pipeline} are due cannot be read: {error}") from error


def _due(connection: Connection, pause_seconds: float, pipeline: str | None) -> dict[str, float]:
    table = schema.pipeline
    query = sa.select(table.c.name, table.c.keep_seconds).where(
        table.c.keep_seconds.is_not(None), _turn_is_over(connection, pause_seconds)
    )
    if pipeline is not None:
        query = query.where(table.c.name == pipeline)
    return {row.name: row.keep_seconds for row in connection.execute(query.order_by(table.c.name))}


def _take(connection: Connection, pause_seconds: float, due: Mapping[str, float]) -> Mapping[str, float]:
    """Those of them that no other process has taken since: a compare-and-set each."""
    table, taken = schema.pipeline, {}
    for name, seconds in due.items():
        change = sa.update(table).where(table.c.name == name, _turn_is_over(connection, pause_seconds))
        if connection.execute(change.values(swept_at=now(connection.dialect.name))).rowcount:
            taken[name] = seconds
    return taken


def _turn_is_over(connection: Connection, pause_seconds: float) -> sa.ColumnElement[bool]:
    swept_at = schema.pipeline.c.swept_at
    return sa.or_(swept_at.is_(None), now(connection.dialect.name) - swept_at >= pause_seconds)


def expired(connection: Connection, pipeline: str, limit: int) -> Sequence[Run]:
    """Two statements, each by an index of its own."""
    runs, pipelines = schema.run, schema.pipeline
    removing = sa.select(runs).where(runs.c.state == RunState.REMOVING.value, runs.c.pipeline == pipeline)
    found = described_runs(connection, removing.order_by(runs.c.run_id).limit(limit))
    keep = sa.select(pipelines.c.keep_seconds).where(pipelines.c.name == pipeline).scalar_subquery()
    clock = connection.execute(sa.select(now(connection.dialect.name) - keep)).scalar_one_or_none()
    if clock is None or len(found) == limit:
        return found
    old = (
        sa.select(runs)
        .where(runs.c.pipeline == pipeline, runs.c.ended_at <= clock, runs.c.state.in_(BY_ITSELF))
        .where(sa.func.coalesce(runs.c.next_allowed, "[]") == "[]")
        .order_by(runs.c.ended_at)
        .limit(limit - len(found))
    )
    return found + described_runs(connection, old)


def removed_up_to(connection: Connection, pipeline: str) -> int:
    """In one statement. A run that begins meanwhile gets a greater ordinal than the last one given."""
    runs, pipelines = schema.run, schema.pipeline
    here = (runs.c.pipeline == pipeline, runs.c.state != RunState.REMOVING.value)
    first = sa.select(runs.c.ordinal).where(*here).order_by(runs.c.ordinal).limit(1)
    query = sa.select(first.scalar_subquery(), pipelines.c.ordinal).where(pipelines.c.name == pipeline)
    row = connection.execute(query).one_or_none()
    if row is None:
        return 0
    first_left, last_given = row
    return int(last_given) if first_left is None else int(first_left) - 1


def keep(connection: Connection, run: Run, reason: str) -> None:
    """Say that a run is removed, in the transaction that begins it; the first reason stays."""
    table, key = schema.removed_run, run.spec.key
    insert = inserting(connection.dialect.name, table).values(
        uid=run.uid,
        pipeline=key.pipeline,
        dag_id=key.dag_id,
        dag_run_id=key.dag_run_id,
        generation=key.generation,
        partition=run.partition,
        ordinal=run.ordinal,
        state=run.state.value,
        created_at=run.created_at,
        ended_at=run.ended_at,
        removed_at=now(connection.dialect.name),
        reason=reason,
    )
    connection.execute(insert.on_conflict_do_nothing(index_elements=["uid"]))


def newest_of_key(connection: Connection, key: RunKey) -> RemovedRun | None:
    """The last generation of the key that was removed."""
    table = schema.removed_run
    same = {"pipeline": key.pipeline, "dag_id": key.dag_id, "dag_run_id": key.dag_run_id}
    query = select().where(*(table.c[name] == value for name, value in same.items()))
    return _one(connection, query.order_by(table.c.generation.desc()).limit(1))


def found(connection: Connection, name: str) -> RemovedRun | None:
    """The one that has this uid, or alone a uid that begins so, or the last one whose DAG run had this name, or of this
    ``pipeline@partition``."""
    table = schema.removed_run
    pipeline, _, partition = name.rpartition("@")
    named = [table.c.uid == name, table.c.dag_run_id == name]
    named.append(sa.and_(table.c.pipeline == pipeline, table.c.partition == partition))
    for where in named:
        if (one := _one(connection, select().where(where).order_by(table.c.ordinal.desc()).limit(1))) is not None:
            return one
    several = connection.execute(select().where(table.c.uid.startswith(name, autoescape=True)).limit(2)).all()
    return _removed(several[0]) if len(several) == 1 and name else None


def give_up(connection: Connection, uid: str) -> bool:
    """Let the next run of its key begin, although it had finished. False if it was given up before."""
    table = schema.removed_run
    change = sa.update(table).where(table.c.uid == uid, table.c.state != RunState.SUPERSEDED.value)
    return connection.execute(change.values(state=RunState.SUPERSEDED.value)).rowcount == 1


def listed(
    connection: Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, *, oldest_first: bool
) -> Sequence[RemovedRun]:
    """Those that fit, the youngest of their pipelines first, or the oldest."""
    ordinal = schema.removed_run.c.ordinal
    query = select().where(*where).order_by(ordinal if oldest_first else ordinal.desc()).limit(limit)
    return [_removed(row) for row in connection.execute(query)]


def select() -> sa.Select[Any]:
    return sa.select(schema.removed_run)


def _one(connection: Connection, query: sa.Select[Any]) -> RemovedRun | None:
    row = connection.execute(query).one_or_none()
    return None if row is None else _removed(row)


def _removed(row: Any) -> RemovedRun:
    """A state that this version does not know counts as finished: nothing is written twice unasked."""
    key = RunKey(row.pipeline, row.dag_id, row.dag_run_id, row.generation)
    state = RunState(row.state) if row.state in set(RunState) else RunState.FINISHED
    times = (row.created_at, row.ended_at, row.removed_at)
    return RemovedRun(row.uid, key, row.partition, row.ordinal, state, *times, storable(row.reason) or "")
