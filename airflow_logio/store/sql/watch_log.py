"""What observers read, many runs at one look: who supervises, how runs and groups stand, their drivers and figures."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.database_errors import is_no_text
from airflow_logio.databases import cause_of
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.effects import LATE
from airflow_logio.protocol.states import CONCLUDED, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port.watch_port import Hearing, WatchLog
from airflow_logio.store.records.day_records import (
    DayRead,
    LateArrival,
    PartitionBounds,
    PartitionRun,
    Since,
    owns,
    standing_of,
)
from airflow_logio.store.records.driver_records import DriverRecord
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import (
    GroupStatus,
    PortProgress,
    RunFigures,
    RunSight,
    SupervisorNote,
    SupervisorRecord,
    UnderWay,
)
from airflow_logio.store.rules.described_runs import marked, run_state
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import among
from airflow_logio.store.sql.cluster_log import submission_of
from airflow_logio.store.sql.engines import inserting, now, reading, writing
from airflow_logio.store.sql.group_statuses import status_query, statuses_of
from airflow_logio.store.sql.hearings import hear
from airflow_logio.store.sql.runs import KeptRuns, SqlPart, counters, described_run, described_runs
from airflow_logio.store.sql.scaling_requests import latest_requests
from airflow_logio.store.sql.upkeep_log import quarantine_counts

FORGOTTEN_SECONDS = 7 * 86_400.0
"""A supervisor that has not looked for so long is removed from the log."""

_columns = schema.driver.c
_BEFORE = (
    *(_columns.group_name, _columns.incarnation, _columns.reason, _columns.spends_budget, _columns.claimed_at),
    *(_columns.submitted_at, _columns.registered_at, _columns.first_commit_at, _columns.ended_at, _columns.error),
    *(_columns.log_path, _columns.host, _columns.pid),
)
"""As `DriverRecord` has them, up to the last heartbeat; those after it follow."""
_AFTER = (
    _columns.code,
    _columns.failed_at,
    _columns.was_taken,
    sa.func.coalesce(_columns.reported, _columns.submission),
)


class SqlWatchLog(SqlPart, WatchLog):
    """Who supervises, how runs stand, their figures."""

    def note_supervisors(self, notes: Sequence[SupervisorNote]) -> None:
        if not notes:
            return
        table, dialect = schema.supervisor, self.beats.dialect.name
        clock, last = now(dialect), {one.name: one for one in notes}
        rows = [{"name": n, "pipeline": one.pipeline, "run_uid": one.run_uid, "at": clock} for n, one in last.items()]
        insert = inserting(dialect, table).values(rows)
        values = {name: insert.excluded[name] for name in ("pipeline", "run_uid", "at")}
        with writing(self.beats) as connection:
            connection.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values))
            connection.execute(sa.delete(table).where(table.c.at < clock - FORGOTTEN_SECONDS))

    def forget_supervisor(self, name: str) -> None:
        with writing(self.beats) as connection:
            connection.execute(sa.delete(schema.supervisor).where(schema.supervisor.c.name == name))

    def supervisors(self) -> Sequence[SupervisorRecord]:
        table, clock = schema.supervisor, now(self.beats.dialect.name)
        query = sa.select(table, (clock - table.c.at).label("age")).order_by(table.c.at.desc(), table.c.name)
        with reading(self.beats) as connection:
            return [SupervisorRecord(row.name, row.pipeline, row.run_uid, row.age) for row in connection.execute(query)]

    def sight(self, uids: Collection[str] | None) -> Sequence[RunSight]:
        if uids is not None and not uids:
            return []
        with reading(self.engine) as connection:
            return sight(connection, self.beats, uids, self._runs)

    def listen(self, ring: Callable[[], None]) -> Hearing | None:
        return hear(self.engine, ring)

    def drivers(self, run_id: int) -> Sequence[DriverRecord]:
        return driver_records(self.engine, self.beats, [run_id])[run_id]

    def progress(self, run_id: int) -> Sequence[PortProgress]:
        with reading(self.engine) as connection:
            return counters(connection, [run_id])[run_id][0]

    def under_way(self, run_id: int) -> UnderWay:
        with reading(self.engine) as connection:
            return counters(connection, [run_id])[run_id][1]

    def figures(self, run_ids: Collection[int]) -> Mapping[int, RunFigures]:
        if not run_ids:
            return {}
        # The drivers first: the counters include everything that they have done by then.
        records = driver_records(self.engine, self.beats, run_ids)
        with reading(self.engine) as connection:
            found = counters(connection, run_ids)
            aside = quarantine_counts(connection, run_ids)
        return {run_id: RunFigures(*found[run_id], records[run_id], aside.get(run_id, {})) for run_id in run_ids}

    def computed_from(self, uid: str) -> Sequence[Run]:
        runs, read = schema.run, schema.day_read
        left = [RunState.SUPERSEDED.value, RunState.REMOVING.value]
        readers = sa.select(read.c.run_id).where(read.c.live_run == uid)
        query = sa.select(runs).where(runs.c.run_id.in_(readers), runs.c.state.not_in(left), runs.c.uid != uid)
        with reading(self.engine) as connection:
            return described_runs(connection, query.order_by(runs.c.run_id))

    def days_read(self, run_ids: Collection[int]) -> Mapping[int, Sequence[DayRead]]:
        if not run_ids:
            return {}
        with reading(self.engine) as connection:
            return days_read(connection, run_ids)

    def partition_bounds(self, pipeline: str) -> PartitionBounds | None:
        of_end = _runs_of_partitions(pipeline).with_only_columns(schema.run.c.partition).limit(1)
        ends = (of_end.order_by(schema.run.c.partition), of_end.order_by(schema.run.c.partition.desc()))
        with reading(self.engine) as connection:
            found = connection.execute(sa.select(*(one.scalar_subquery() for one in ends))).one()
        return None if found[0] is None else PartitionBounds(*found)

    def partition_runs(self, pipeline: str, bounds: PartitionBounds, *, most: int) -> Sequence[PartitionRun]:
        table = schema.run
        query = _runs_of_partitions(pipeline, bounds).with_only_columns(
            *(table.c[name] for name in PartitionRun._fields)
        )
        query = query.order_by(table.c.partition.desc(), table.c.ordinal.desc()).limit(most)
        with reading(self.engine) as connection:
            try:
                found = [PartitionRun(*row) for row in connection.execute(query)]
            except (UnicodeDecodeError, sa.exc.OperationalError) as error:
                if not is_no_text(error):
                    raise
                return [PartitionRun.of(run) for run in described_runs(connection, query)]
        return [one._replace(state=run_state(one.state)[0]) for one in found]

    def partition_records(
        self, pipeline: str, bounds: PartitionBounds, operators: Collection[str]
    ) -> Mapping[int, Mapping[tuple[Port, str], int]]:
        if not operators:
            return {}
        table, found = schema.port_counter, dict[int, dict[tuple[Port, str], int]]()
        runs = _runs_of_partitions(pipeline, bounds).with_only_columns(schema.run.c.run_id)
        with reading(self.engine) as connection:
            query = sa.select(table.c.run_id, table.c.op, table.c.port, table.c.direction, table.c.records).where(
                table.c.run_id.in_(runs),
                among(connection, table.c.op, sorted(operators)),
                table.c.direction.in_([schema.SENT, schema.APPLIED]),
            )
            for run_id, op, name, direction, records in connection.execute(query):
                found.setdefault(run_id, {})[Port(op, name), direction] = records
        return found

    def late_arrivals(
        self, pipeline: str, partitions: PartitionBounds, brought_by: PartitionBounds, operators: Collection[str]
    ) -> Sequence[LateArrival]:
        if not operators:
            return []
        counted, run, later = schema.port_counter.c, schema.run, schema.run.alias()
        is_replaced = sa.exists().where(
            later.c.pipeline == run.c.pipeline,
            later.c.partition == run.c.partition,
            later.c.ordinal > run.c.ordinal,
            later.c.state != RunState.REMOVING.value,
        )
        of_run = [run.c[name] for name in ("partition", "dag_id", "ordinal", "ended_at")]
        query = _runs_of_partitions(pipeline, brought_by).with_only_columns(
            counted.port, sa.func.sum(counted.records), *of_run, ~is_replaced
        )
        query = query.join(schema.port_counter, counted.run_id == run.c.run_id)
        with reading(self.engine) as connection:
            query = query.where(
                among(connection, counted.op, sorted(operators)),
                counted.port.between(*partitions),
                counted.direction == LATE,
            )
            query = query.group_by(counted.port, run.c.run_id, *of_run).order_by(counted.port, run.c.ordinal)
            # SQLite says 1 for true.
            return [
                LateArrival._make(row)._replace(records=int(row[1]), stands=bool(row[6]))
                for row in connection.execute(query)
            ]


def days_read(connection: Connection, run_ids: Collection[int]) -> dict[int, list[DayRead]]:
    """`LogStore.days_read`. The runs since are those of the same pipeline and partition with a greater ordinal; where no run
    was known, all that own that day of a table of that name."""
    read, left, gone, later = schema.day_read, schema.run.alias(), schema.removed_run, schema.run.alias()
    groups = schema.group
    of_day = [sa.func.coalesce(left.c[name], gone.c[name]) for name in ("pipeline", "partition", "ordinal", "state")]
    pipeline, partition, ordinal, state = of_day
    is_open = sa.exists().where(
        groups.c.run_id == later.c.run_id, groups.c.state.not_in([state.value for state in CONCLUDED])
    )
    since = sa.and_(
        later.c.pipeline == pipeline,
        later.c.partition == partition,
        sa.or_(later.c.ordinal > ordinal, sa.and_(later.c.uid == read.c.live_run, ~read.c.is_whole)),
        later.c.state != RunState.REMOVING.value,
    )
    tables = read.outerjoin(left, left.c.uid == read.c.live_run).outerjoin(gone, gone.c.uid == read.c.live_run)
    query = (
        sa.select(read, state.label("left_as"), later.c.ordinal, later.c.uid, is_open.label("is_open"))
        .select_from(tables.outerjoin(later, since))
        .where(among(connection, read.c.run_id, sorted(run_ids)))
        .order_by(read.c.run_id, read.c.op, read.c.place, read.c.scope, read.c.live_run)
    )
    found: dict[int, list[DayRead]] = {}
    rows_read = connection.execute(query).all()
    owning = _owning(connection, {(row.place, row.scope) for row in rows_read if not row.live_run})
    names = itemgetter(0, 1, 2, 3, 4)  # the key of `logio_day_read`
    for key, rows in groupby(rows_read, key=names):
        run_id, operator, place, scope, live_run = key
        several = list(rows)
        if live_run:
            runs = [(row.ordinal, row.uid, not row.is_open) for row in several if row.uid is not None]
            left_as = several[0].left_as
            standing, by = standing_of(None if left_as is None else run_state(left_as)[0], runs)
        else:
            others = [one for one in owning[place, scope] if one[0] != run_id]
            standing, by = standing_of(RunState.RUNNING, others)
        is_whole = bool(several[0].is_whole)
        found.setdefault(run_id, []).append(DayRead(operator, place, scope, live_run, standing, by, is_whole))
    return found


def _owning(connection: Connection, days: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], list[Since]]:
    """(place, scope) → the runs that own that day of a table of that name, by their numbers. However many days there are, two
    statements; none for none."""
    if not days:
        return {}
    runs, groups = schema.run, schema.group
    keys = sorted({scope.partition("=")[2] for _, scope in days})
    query = sa.select(runs).where(
        runs.c.pipeline.in_(sa.select(schema.pipeline.c.name)),  # by which the index of partitions is used
        among(connection, runs.c.partition, keys),
        runs.c.state != RunState.REMOVING.value,
    )
    of_key: dict[str | None, list[Run]] = {}
    for run in described_runs(connection, query):
        of_key.setdefault(run.partition, []).append(run)
    numbers = [run.run_id for several in of_key.values() for run in several]
    is_open = groups.c.state.not_in([state.value for state in CONCLUDED])
    left = set(
        connection.execute(
            sa.select(groups.c.run_id).where(among(connection, groups.c.run_id, sorted(numbers)), is_open)
        ).scalars()
    )
    return {
        (place, scope): [
            (run.run_id, run.uid, run.run_id not in left)
            for run in of_key.get(scope.partition("=")[2], ())
            if owns(run.spec, place, scope)
        ]
        for place, scope in days
    }


def _runs_of_partitions(pipeline: str, bounds: PartitionBounds | None = None) -> sa.Select[Any]:
    """Rows of `logio_run`, by its index of partitions. Keys are texts that sort as time does."""
    table = schema.run
    query = sa.select(table).where(table.c.pipeline == pipeline, table.c.state != RunState.REMOVING.value)
    return query.where(table.c.partition.is_not(None) if bounds is None else table.c.partition.between(*bounds))


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
        columns[-2:] = bool(columns[-2]), submission_of(columns[-1])
        found[run_id].append(DriverRecord(*columns))
    return found


def _last_beats(connection: Connection, run_ids: Collection[int]) -> dict[tuple[int, str, int], float]:
    table = schema.heartbeat
    query = sa.select(table.c.run_id, table.c.group_name, table.c.incarnation, table.c.at)
    rows = connection.execute(query.where(table.c.run_id.in_(run_ids)))
    return {(run_id, group, incarnation): at for run_id, group, incarnation, at in rows}


def sight(connection: Connection, beats: Engine, uids: Collection[str] | None, kept: KeptRuns) -> list[RunSight]:
    """`LogStore.sight`; `kept` are the runs of earlier looks, whose descriptions never change."""
    run = schema.run
    query = status_query(connection, beats).join(run, run.c.run_id == schema.group.c.run_id)
    query = query.add_columns(run.c.state, run.c.ended_at, run.c.superseded_by, run.c.because)
    query = query.where(run.c.state == RunState.RUNNING.value if uids is None else run.c.uid.in_(uids))
    rows, unread = _rows(connection, query)
    groups, damaged = _statuses(connection, beats, rows)
    seen = _described(connection, {row[0] for row in rows}, kept)
    runs = {}
    for run_id, *_, state, ended_at, superseded_by, because in rows:
        if run_id not in runs:
            present, unknown = run_state(state)
            run_now = replace(
                seen[run_id], state=present, ended_at=ended_at, superseded_by=superseded_by, because=because
            )
            runs[run_id] = marked(run_now, unknown or damaged.get(run_id))
    replicated = [run_id for run_id, one in runs.items() if one.spec.replicated]
    requests = latest_requests(connection, replicated) if replicated else {}
    runs |= {run_id: marked(described_run(connection, run_id), why) for run_id, why in unread.items()}
    return [RunSight(one, groups.get(run_id, ()), requests.get(run_id, ())) for run_id, one in sorted(runs.items())]


def _rows(connection: Connection, query: sa.Select[Any]) -> tuple[list[Any], dict[int, str]]:
    """The rows of all groups; and why those of some runs cannot be read: one of their texts is none any more."""
    try:
        return list(connection.execute(query).all()), {}
    except (UnicodeDecodeError, sa.exc.OperationalError) as error:
        if not is_no_text(error):
            raise
    of_run, rows, unread = schema.group.c.run_id, list[Any](), dict[int, str]()
    for run_id in connection.scalars(query.with_only_columns(of_run).order_by(None).distinct()).all():
        try:
            rows += connection.execute(query.where(of_run == run_id)).all()
        except (UnicodeDecodeError, sa.exc.OperationalError) as error:
            if not is_no_text(error):
                raise
            unread[run_id] = f"a text of its groups or drivers is none: {cause_of(error)}"
    return rows, unread


def _statuses(
    connection: Connection, beats: Engine, rows: Sequence[Any]
) -> tuple[dict[int, list[GroupStatus]], dict[int, str]]:
    """The groups of each run; and why those of some cannot be read: one of them has a state that is none."""
    groups: dict[int, list[GroupStatus]] = {row[0]: [] for row in rows}
    try:
        for run_id, status in statuses_of(connection, beats, rows):
            groups[run_id].append(status)
    except LogInconsistent:
        return _statuses_of_each(connection, beats, rows)
    return groups, {}


def _statuses_of_each(
    connection: Connection, beats: Engine, rows: Sequence[Any]
) -> tuple[dict[int, list[GroupStatus]], dict[int, str]]:
    groups: dict[int, list[GroupStatus]] = {}
    damaged: dict[int, str] = {}
    for run_id, of_run in groupby(rows, key=itemgetter(0)):  # they come in the order of runs
        try:
            groups[run_id] = [status for _, status in statuses_of(connection, beats, list(of_run))]
        except LogInconsistent as error:
            groups[run_id], damaged[run_id] = [], str(error)
    return groups, damaged


def _described(connection: Connection, run_ids: AbstractSet[int], kept: KeptRuns) -> Mapping[int, Run]:
    seen = kept.of(run_ids)
    if unknown := run_ids - seen.keys():
        query = sa.select(schema.run).where(schema.run.c.run_id.in_(unknown))
        seen |= {run.run_id: run for run in described_runs(connection, query)}
        kept.keep(*(run for run in seen.values() if run.damage is None))
    return seen
