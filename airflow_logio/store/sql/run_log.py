"""Runs: how they begin, are found, end, and give way to a fresh one of the same key; and the code of their drivers."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import ProtocolViolation, RunRemoved, UnknownRun
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, GroupState, RunState
from airflow_logio.protocol.values import storable
from airflow_logio.store.port.run_port import CodeLog, RunLog
from airflow_logio.store.records.day_records import days_read_by
from airflow_logio.store.records.driver_records import CodeChange, KeptCode
from airflow_logio.store.records.run_records import Allowed, ConcurrentRuns, Run, RunKey, RunSpec
from airflow_logio.store.records.start_records import Attempt, Decided, Decision, Start
from airflow_logio.store.rules.allowed_rules import check_allowed_before, handed_on, next_allowed
from airflow_logio.store.rules.described_runs import check_whole, described, encode_spec, sealed_spec
from airflow_logio.store.rules.removed_rules import check_in_place, said_of, when_and_why
from airflow_logio.store.rules.row_forms import told_of, with_told
from airflow_logio.store.rules.run_rules import (
    LONGEST,
    GroupStates,
    check_above,
    check_alone,
    check_graph,
    check_partition,
    check_superseding,
    digest_of,
    earliest_start,
    members,
    next_generation,
    next_ordinal,
    number_for,
    superseded,
)
from airflow_logio.store.rules.start_rules import CLEARED, Found, decide, outdated, standing
from airflow_logio.store.sql import removed_runs, schema, slots
from airflow_logio.store.sql.bulk import among, bytes_of, text_of
from airflow_logio.store.sql.engines import LockTimeout, TransactionConflict, inserting, now, reading, writing
from airflow_logio.store.sql.group_statuses import statuses
from airflow_logio.store.sql.runs import SqlPart, described_run, described_runs, known, stored_run

log = logging.getLogger(__name__)


class SqlRunLog(SqlPart, RunLog):
    """Runs: each method is one transaction."""

    def start_run(
        self,
        spec: RunSpec,
        *,
        concurrent: ConcurrentRuns = ConcurrentRuns.ISOLATED,
        code: bytes | None = None,
        above: int = 0,
    ) -> Run:
        with writing(self.engine) as connection:
            return start(connection, spec, concurrent=concurrent, code=code, above=above)

    def start_attempt(
        self,
        spec: RunSpec,
        attempt: Attempt,
        *,
        concurrent: ConcurrentRuns = ConcurrentRuns.ISOLATED,
        code: bytes | None = None,
    ) -> Start:
        while True:
            with writing(self.engine) as connection:
                made = start_attempt(connection, spec, attempt, concurrent=concurrent, code=code)
            if isinstance(made, Start):
                return made
            old = made.run.run_id
            with suppress(UnknownRun):  # removed meanwhile
                self._giving_up(old, lambda connection, run: supersede_again(connection, run, spec, attempt))

    def supersede(
        self, run_id: int, *, because: str | None = None, above: int = 0, allowed: Collection[Allowed] = ()
    ) -> bool:
        check_above(above)
        return self._giving_up(
            run_id,
            lambda connection, run: supersede(connection, run, because=because, above=above, allowed=allowed),
        )

    def _giving_up(self, run_id: int, carried_out: Callable[[Connection, Run], bool]) -> bool:
        def once() -> bool:
            with writing(self.engine) as connection:
                return carried_out(connection, self._as_seen(connection, run_id))

        try:
            return once()
        except LockTimeout:  # a driver that was declared dead was stopped inside a transaction
            with reading(self.engine) as connection:
                found = statuses(connection, self.beats, [run_id])[run_id]
            for status in found:
                if status.state is GroupState.DEAD:
                    self.end_backends(run_id, status.group, status.incarnation)
        except TransactionConflict as error:
            log.info("retrying: %s", error)
        return once()

    def find_run(self, uid: str, *, damaged: bool = False) -> Run:
        with reading(self.engine) as connection:
            run = find(connection, uid)
        return run if damaged else check_whole(run)

    def list_runs(
        self,
        *,
        pipeline: str | None = None,
        dag_ids: Collection[str] | None = None,
        dag_run_id: str | None = None,
        partition: str | None = None,
        partitions: tuple[str, str] | None = None,
        state: RunState | None = None,
        named: str | None = None,
        limit: int = 50,
    ) -> Sequence[Run]:
        if dag_ids is not None and not dag_ids:
            return []
        table = schema.run
        query = sa.select(table).order_by(table.c.run_id.desc()).limit(limit)
        given = {"pipeline": pipeline, "dag_run_id": dag_run_id, "partition": partition, "state": state}
        query = query.where(*(table.c[name] == value for name, value in given.items() if value is not None))
        if partitions is not None:  # keys are texts that sort as time does
            query = query.where(table.c.partition.between(*partitions))
        if named is not None:
            names = (table.c.pipeline, table.c.dag_id, table.c.dag_run_id, table.c.partition)
            part = storable(named) or ""
            query = query.where(sa.or_(*(name.icontains(part, autoescape=True) for name in names)))
        with reading(self.engine) as connection:
            if dag_ids is not None:
                query = query.where(among(connection, table.c.dag_id, list(dag_ids)))
            return described_runs(connection, query)

    def finish_run(self, run_id: int) -> bool:
        with writing(self.engine) as connection:
            return finish(connection, run_id)

    def told_by(self, run_id: int, task: str) -> Any | None:
        with reading(self.engine) as connection:
            return told_of(_told(connection, run_id), task)

    def note_told(self, run_id: int, task: str, value: Any) -> None:
        runs = schema.run
        with writing(self.engine) as connection:
            told = with_told(_told(connection, run_id, locked=True), task, value)
            connection.execute(sa.update(runs).where(runs.c.run_id == run_id).values(told=told))


class SqlCodeLog(SqlPart, CodeLog):
    """The code that drivers of a run get."""

    def code(self, run_id: int, number: int) -> KeptCode:
        with reading(self.engine) as connection:
            return kept_code(connection, self._run(connection, run_id), number)

    def take_code(
        self, run_id: int, group: str, digest: str, fingerprint: str, *, archive: bytes | None = None, by: str
    ) -> int:
        with writing(self.engine) as connection:
            run = self._run(connection, run_id)
            return take(connection, run, group, digest, fingerprint, by, archive)

    def code_changes(self, run_id: int) -> Sequence[CodeChange]:
        with reading(self.engine) as connection:
            return changes_of_code(connection, run_id)


def take(
    connection: Connection, run: Run, group: str, digest: str, fingerprint: str, by: str, archive: bytes | None
) -> int:
    """Locks the groups, by which a claim comes before or sees the new number, then the run, by which numbers are unique."""
    table, runs, names = schema.group, schema.run, members(run, group)
    ours = (table.c.run_id == run.run_id, table.c.group_name.in_(names))
    locked = sa.select(table.c.code).where(*ours).order_by(table.c.group_name).with_for_update()
    codes = connection.execute(locked).scalars().all()
    state = connection.execute(
        sa.select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update()
    ).scalar_one_or_none()
    if state is None or not codes:
        raise UnknownRun(f"run {run.spec.key} is no longer in the log")
    found = changes_of_code(connection, run.run_id)
    number = number_for(run, known(RunState, state, f"the state of run {run.uid}"), found, max(codes), digest)
    if number == max(codes):
        return number
    connection.execute(
        sa.insert(schema.code_change).values(
            run_id=run.run_id,
            number=number,
            group_name=replicated_group(group),
            digest=digest,
            fingerprint=fingerprint,
            taken_by=storable(by[:LONGEST]),
            taken_at=now(connection.dialect.name),
        )
    )
    keep_code(connection, run.run_id, digest, archive)
    connection.execute(sa.update(table).where(*ours).values(code=number))
    return number


def keep_code(connection: Connection, run_id: int, digest: str | None, archive: bytes | None) -> None:
    """Store the code of that digest with the run, once. The run's row is locked, or not yet seen by others."""
    table = schema.code
    here = sa.select(table.c.digest).where(table.c.run_id == run_id, table.c.digest == digest)
    if digest is None or archive is None or connection.execute(here).one_or_none() is not None:
        return
    connection.execute(sa.insert(table).values(run_id=run_id, digest=digest, archive=archive))


def kept_code(connection: Connection, run: Run, number: int) -> KeptCode:
    table, digest = schema.code, digest_of(run, changes_of_code(connection, run.run_id), number)
    query = sa.select(table.c.archive).where(table.c.run_id == run.run_id, table.c.digest == digest)
    archive = None if digest is None else connection.execute(query).scalar_one_or_none()
    return KeptCode(number, digest, None if archive is None else bytes(archive))


def changes_of_code(connection: Connection, run_id: int) -> Sequence[CodeChange]:
    table = schema.code_change
    rows = connection.execute(sa.select(table).where(table.c.run_id == run_id).order_by(table.c.number))
    return [
        CodeChange(row.number, row.group_name, row.digest, row.fingerprint, row.taken_by, row.taken_at) for row in rows
    ]


def start(connection: Connection, spec: RunSpec, *, concurrent: ConcurrentRuns, code: bytes | None, above: int) -> Run:
    """The newest run of the key. If there is none, or it is superseded, one of the next generation is created.

    Processes that start runs of one pipeline take turns before they create a run, so that each sees the runs of the
    others. Finding a run that exists needs no lock.
    """
    encode_spec(spec)  # what cannot be stored is refused before the log is read
    check_above(above)
    run = _newest(connection, spec.key)
    if run is None or run.state is RunState.SUPERSEDED:
        last = lock_pipeline(connection, spec.key.pipeline)
        run = _newest(connection, spec.key)
    check_partition(run, spec)
    if run is not None and run.state is not RunState.SUPERSEDED:
        check_allowed_before(run, spec)
    else:
        run = _begin(connection, spec, run, next_ordinal(last, above), concurrent, code)
    check_graph(run, spec.graph_fingerprint, spec.graph)
    return run


def _begin(
    connection: Connection,
    spec: RunSpec,
    before: Run | None,
    ordinal: int,
    concurrent: ConcurrentRuns,
    code: bytes | None,
) -> Run:
    """The generation after `before`, and after those that were removed. Under the lock of the pipeline."""
    removed = removed_runs.newest_of_key(connection, spec.key)
    if before is None:
        check_in_place(spec, removed)
    check_alone(spec, _unfinished(connection, spec.key.pipeline), concurrent)
    key = replace(spec.key, generation=next_generation(before, removed))
    allowed = spec.allowed | _take_allowed(connection, spec)
    run = _create(connection, replace(spec, key=key, allowed=allowed), earliest_start(before, removed), ordinal)
    keep_code(connection, run.run_id, spec.code_digest, code)
    if before is not None:
        runs = schema.run
        connection.execute(sa.update(runs).where(runs.c.run_id == before.run_id).values(superseded_by=run.uid))
    return run


def _take_allowed(connection: Connection, spec: RunSpec) -> frozenset[Allowed]:
    """What a person has let the run do that begins now in its partition. Under the lock of the pipeline; no later run has
    it."""
    newest = _newest_of_partition(connection, spec)
    allowed = handed_on(newest)
    if newest is not None and allowed:
        runs = schema.run
        connection.execute(sa.update(runs).where(runs.c.run_id == newest.run_id).values(next_allowed=None))
    return allowed


def start_attempt(
    connection: Connection, spec: RunSpec, attempt: Attempt, *, concurrent: ConcurrentRuns, code: bytes | None
) -> Start | Found:
    """What the attempt has started; or, with nothing changed, the run that is to be given up before.

    All attempts of a pipeline take turns, so that they see each other's decisions and runs.
    """
    encode_spec(spec)
    last = lock_pipeline(connection, spec.key.pipeline)
    kept = _decisions(connection, spec.key)
    gone = outdated(attempt, kept)
    decided = standing(attempt, [one for one in kept if one not in gone])
    run = _newest(connection, spec.key)
    check_partition(run, spec)
    if decided is not None and run is not None and run.state is not RunState.SUPERSEDED:
        check_graph(run, spec.graph_fingerprint, spec.graph)
        _forget(connection, spec.key, gone)
        return Start(run, decided.decision, False, _replaced(connection, run))
    found = None if run is None else _found(connection, run)
    decision = decide(spec, found)
    if found is not None and decision is Decision.AGAIN:
        others = (one for one in _unfinished(connection, spec.key.pipeline) if one[0].run_id != found.run.run_id)
        check_alone(spec, others, concurrent)  # what could not begin replaces nothing
        return found
    if run is None or decision is Decision.BEGUN:
        run = _begin(connection, spec, run, next_ordinal(last, 0), concurrent, code)
        decision = Decision.BEGUN if run.spec.key.generation == 1 else Decision.AGAIN
    check_graph(run, spec.graph_fingerprint, spec.graph)
    _forget(connection, spec.key, gone)
    _keep_decision(connection, spec.key, Decided(attempt, run.uid, decision))
    return Start(run, decision, True, _replaced(connection, run))


def _replaced(connection: Connection, run: Run) -> str | None:
    runs, key = schema.run, run.spec.key
    earlier = sa.select(runs.c.uid).where(
        runs.c.pipeline == key.pipeline,
        runs.c.dag_id == key.dag_id,
        runs.c.dag_run_id == key.dag_run_id,
        runs.c.generation == key.generation - 1,
    )
    found: str | None = connection.execute(earlier).scalar_one_or_none()
    if found is None and (removed := removed_runs.newest_of_key(connection, key)) is not None:
        return removed.uid if removed.key.generation == key.generation - 1 else None
    return found


def supersede_again(connection: Connection, run: Run, spec: RunSpec, attempt: Attempt) -> bool:
    """Give the run up for a clear, if under all locks of `supersede` that is still what the attempt decides: a person may
    have resumed it meanwhile, or another attempt decided."""
    _lock_run(connection, run)
    kept = _decisions(connection, spec.key)
    gone = outdated(attempt, kept)
    if standing(attempt, [one for one in kept if one not in gone]) is not None:
        return False
    if decide(spec, _found(connection, stored_run(connection, run.run_id))) is not Decision.AGAIN:
        return False
    return supersede(connection, run, because=CLEARED)


def _found(connection: Connection, run: Run) -> Found:
    groups, aside = schema.group, schema.quarantine
    numbers = sa.select(groups.c.code).where(groups.c.run_id == run.run_id).distinct()
    changes = changes_of_code(connection, run.run_id)
    digests = [digest_of(run, changes, number) for number in connection.execute(numbers).scalars()]
    is_aside = sa.select(aside.c.op).where(aside.c.run_id == run.run_id).limit(1)
    has_quarantine = connection.execute(is_aside).one_or_none() is not None
    return Found(run, group_states(connection, run), has_quarantine, digests)


def _decisions(connection: Connection, key: RunKey) -> list[Decided]:
    table = schema.start
    rows = connection.execute(sa.select(table).where(*_starts_of(key)).order_by(table.c.try_number))
    return [
        Decided(
            Attempt(row.try_number, row.try_number, row.clear_number, row.start_date),
            row.run_uid,
            known(Decision, row.decision, f"what attempt {row.try_number} of {key} has decided"),
        )
        for row in rows
        if row.run_uid is not None
    ]


def _starts_of(key: RunKey) -> tuple[sa.ColumnElement[bool], ...]:
    table = schema.start
    return (table.c.pipeline == key.pipeline, table.c.dag_id == key.dag_id, table.c.dag_run_id == key.dag_run_id)


def _forget(connection: Connection, key: RunKey, gone: Sequence[Decided]) -> None:
    table, numbers = schema.start, [one.attempt.number for one in gone]
    if numbers:
        connection.execute(sa.delete(table).where(*_starts_of(key), table.c.try_number.in_(numbers)))


def _keep_decision(connection: Connection, key: RunKey, decided: Decided) -> None:
    """An attempt that a second worker carries out decides anew if a person has given its run up in between."""
    table, attempt = schema.start, decided.attempt
    connection.execute(sa.delete(table).where(*_starts_of(key), table.c.try_number == attempt.number))
    connection.execute(
        sa.insert(table).values(
            pipeline=key.pipeline,
            dag_id=key.dag_id,
            dag_run_id=key.dag_run_id,
            try_number=attempt.number,
            clear_number=attempt.clear,
            start_date=attempt.began,
            run_uid=decided.run_uid,
            decision=decided.decision.value,
        )
    )


def supersede(
    connection: Connection,
    run: Run,
    *,
    because: str | None = None,
    above: int = 0,
    allowed: Collection[Allowed] = (),
) -> bool:
    """Mark the run superseded; False if it already is. Groups without a driver are halted, under raised epochs.

    If a claim comes first, its group is alive, and superseding is refused. A claim that comes later finds the run
    superseded. If the driver of a dead group turns out to be alive, it commits nothing more.
    """
    fences, groups, runs = schema.fence, schema.group, schema.run
    if above or allowed:
        pipelines, last = schema.pipeline, lock_pipeline(connection, run.spec.key.pipeline)
        raised = sa.update(pipelines).where(pipelines.c.name == run.spec.key.pipeline)
        connection.execute(raised.values(ordinal=max(last, above)))
    state = _lock_run(connection, run)
    is_new = check_superseding(run, state, group_states(connection, run))
    if allowed:
        _allow_next(connection, run, allowed)
    if not is_new:
        return False
    clock, idle = now(connection.dialect.name), [GroupState.NEW.value, GroupState.DEAD.value]
    without_driver = sa.select(groups.c.group_name).where(groups.c.run_id == run.run_id, groups.c.state.in_(idle))
    connection.execute(
        sa.update(fences)
        .where(fences.c.run_id == run.run_id, fences.c.group_name.in_(without_driver))
        .values(epoch=fences.c.epoch + 1)
    )
    halted = {"state": GroupState.HALTED.value, "desired": GroupState.HALTED.value, "since": clock}
    connection.execute(
        sa.update(groups).where(groups.c.run_id == run.run_id, groups.c.state.in_(idle)).values(**halted)
    )
    ended = {"state": RunState.SUPERSEDED.value, "ended_at": sa.func.coalesce(runs.c.ended_at, clock)}
    connection.execute(sa.update(runs).where(runs.c.run_id == run.run_id).values(**ended, because=storable(because)))
    return True


def _allow_next(connection: Connection, run: Run, allowed: Collection[Allowed]) -> None:
    """Under the locks of the pipeline and of the run: the next one of the partition has not begun, and will see it."""
    runs, said = schema.run, next_allowed(run, _newest_of_partition(connection, run.spec), allowed)
    stored = msgspec.json.encode(said, order="deterministic").decode()
    connection.execute(sa.update(runs).where(runs.c.run_id == run.run_id).values(next_allowed=stored))


def _lock_run(connection: Connection, run: Run) -> RunState:
    """All fences in key order, then the groups, then the run, as everywhere; returns the run's state. Raises `UnknownRun`."""
    runs = schema.run
    for table in (schema.fence, schema.group):
        ours = sa.select(table.c.group_name).where(table.c.run_id == run.run_id)
        connection.execute(ours.order_by(table.c.group_name).with_for_update()).all()
    state = connection.execute(
        sa.select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update()
    ).scalar_one_or_none()
    if state is None:
        raise UnknownRun(f"run {run.spec.key} is no longer in the log")
    return known(RunState, state, f"the state of run {run.uid}")


def group_states(connection: Connection, run: Run) -> GroupStates:
    table = schema.group
    rows = connection.execute(
        sa.select(table.c.group_name, table.c.state).where(table.c.run_id == run.run_id).order_by(table.c.group_name)
    )
    states = {name: known(GroupState, state, f"the state of group {name!r}") for name, state in rows}
    return GroupStates(states, slots.open_slots(connection, [run.run_id]).get(run.run_id, {}))


def lock_pipeline(connection: Connection, name: str) -> int:
    """The last ordinal given to a run of the pipeline, under a lock that lasts until the end of the transaction.

    Two that begin its first runs at once make the row once: one of them waits for the other to commit, then reads it. It
    comes before any lock of groups.
    """
    table = schema.pipeline
    insert = inserting(connection.dialect.name, table).values(name=name, ordinal=0)
    connection.execute(insert.on_conflict_do_nothing(index_elements=["name"]))
    locked = sa.select(table.c.ordinal).where(table.c.name == name).with_for_update()
    last: int = connection.execute(locked).scalar_one()
    return last


def _newest(connection: Connection, key: RunKey) -> Run | None:
    table = schema.run
    query = (
        sa.select(table)
        .where(table.c.pipeline == key.pipeline, table.c.dag_id == key.dag_id, table.c.dag_run_id == key.dag_run_id)
        .order_by(table.c.generation.desc())
        .limit(1)
    )
    for run in described_runs(connection, query):
        return run if run.state is RunState.SUPERSEDED else check_whole(run)
    return None


def _newest_of_partition(connection: Connection, spec: RunSpec) -> Run | None:
    """The youngest run of the partition, whatever began it; None without a partition."""
    table = schema.run
    if spec.partition is None:
        return None
    query = (
        sa.select(table)
        .where(
            table.c.pipeline == spec.key.pipeline,
            table.c.partition == spec.partition,
            table.c.state != RunState.REMOVING.value,
        )
        .order_by(table.c.ordinal.desc())
        .limit(1)
    )
    return next(iter(described_runs(connection, query)), None)


def _unfinished(connection: Connection, pipeline: str) -> Iterator[tuple[Run, GroupStates]]:
    """A state that is none counts as unfinished."""
    table, ended = schema.run, [state.value for state in RunState if state is not RunState.RUNNING]
    query = sa.select(table).where(table.c.pipeline == pipeline, table.c.state.not_in(ended))
    for run in described_runs(connection, query.order_by(table.c.run_id)):
        yield run, group_states(connection, run)


def _create(connection: Connection, spec: RunSpec, earliest: float, ordinal: int) -> Run:
    """Under the lock of the pipeline, which lasts until the run is visible: an ordinal is never given twice, and no
    reader sees a greater one before."""
    key, table, clock = spec.key, schema.run, now(connection.dialect.name)
    pipelines = schema.pipeline
    due = None if spec.due is None else msgspec.json.encode(spec.due, order="deterministic").decode()
    said = {"ordinal": ordinal, "keep_seconds": spec.keep_seconds, "due": due}
    connection.execute(sa.update(pipelines).where(pipelines.c.name == key.pipeline).values(**said))
    uid = uuid.uuid4().hex
    insert = sa.insert(table).values(
        uid=uid,
        pipeline=key.pipeline,
        dag_id=key.dag_id,
        dag_run_id=key.dag_run_id,
        generation=key.generation,
        spec=sealed_spec(encode_spec(spec), uid, ordinal),
        state=RunState.RUNNING.value,
        created_at=sa.case((clock > earliest, clock), else_=earliest),
        partition=spec.partition,
        ordinal=ordinal,
    )
    run = check_whole(described(connection.execute(insert.returning(*table.c)).one()))
    unused = spec.unused_replicas()
    for name in spec.groups:
        identity = {"run_id": run.run_id, "group_name": name}
        state, desired = (
            (GroupState.RETIRED, GroupState.HALTED) if name in unused else (GroupState.NEW, GroupState.RUNNING)
        )
        group = {"state": state.value, "desired": desired.value, "since": clock}
        connection.execute(sa.insert(schema.group).values(**identity, **group))
        connection.execute(sa.insert(schema.fence).values(**identity, incarnation=0, epoch=0, commit_no=0))
    slots.create(connection, run.run_id, spec)
    for source, day in days_read_by(spec):
        is_whole = day.is_whole or _has_ended_well(connection, day.live_run)
        noted = {"run_id": run.run_id, "op": source, "read_at": clock, **day._replace(is_whole=is_whole)._asdict()}
        connection.execute(sa.insert(schema.day_read).values(**noted))
    return run


def _has_ended_well(connection: Connection, uid: str) -> bool:
    """Whether a run of this log has finished with nothing set aside: what reads later sees all that it has written."""
    runs, groups, aside = schema.run, schema.group, schema.quarantine
    of_run = [groups.c.run_id == runs.c.run_id, groups.c.state.not_in([state.value for state in CONCLUDED])]
    is_short = sa.or_(sa.exists().where(*of_run), sa.exists().where(aside.c.run_id == runs.c.run_id))
    if connection.execute(sa.select(runs.c.run_id).where(runs.c.uid == uid, ~is_short)).first() is not None:
        return True
    gone = schema.removed_run
    ended = (gone.c.uid == uid, gone.c.state == RunState.FINISHED.value)
    return connection.execute(sa.select(gone.c.uid).where(*ended)).first() is not None


def find(connection: Connection, uid: str) -> Run:
    """A run by its uid, a unique beginning of it, or its DAG run id or ``pipeline@partition`` (the newest of that name)."""
    table = schema.run
    matching = sa.or_(table.c.uid.startswith(uid, autoescape=True), table.c.dag_run_id == uid)
    runs = described_runs(connection, sa.select(table).where(matching).order_by(table.c.run_id.desc()))
    exact = [run for run in runs if run.uid == uid] or _of_dag_run(runs, uid)
    if not exact and len(runs) > 1:
        raise UnknownRun(f"{uid!r} is the beginning of {len(runs)} runs: {', '.join(run.uid for run in runs[:5])}")
    runs = runs or _of_partition(connection, uid)
    if not runs:
        if (removed := removed_runs.found(connection, uid)) is not None:
            raise RunRemoved(said_of(removed), when_and_why(removed))
        raise UnknownRun(f"no run {uid!r} is in the log; `logio status` lists the runs")
    return (exact or runs)[0]


def _of_partition(connection: Connection, name: str) -> list[Run]:
    pipeline, separator, partition = name.rpartition("@")
    if not separator:
        return []
    columns = schema.run.c
    named = (columns.pipeline == pipeline, columns.partition == partition, columns.state != RunState.REMOVING.value)
    return described_runs(connection, sa.select(schema.run).where(*named).order_by(columns.ordinal.desc()).limit(1))


def _of_dag_run(runs: Sequence[Run], name: str) -> list[Run]:
    """One that is being removed has given its name back."""
    return [run for run in runs if run.spec.key.dag_run_id == name and run.state is not RunState.REMOVING]


def _told(connection: Connection, run_id: int, *, locked: bool = False) -> str | None:
    """What tasks have told of the run, as it is stored; bytes that are no text are lone surrogates."""
    runs = schema.run
    of_run = (runs.c.run_id == run_id, runs.c.state != RunState.REMOVING.value)
    query = sa.select(bytes_of(connection, runs.c.told)).where(*of_run)
    found = connection.execute(query.with_for_update() if locked else query).one_or_none()
    if found is None:
        raise UnknownRun(f"no run {run_id} is in the log")
    return None if found[0] is None else text_of(connection, found[0])


def finish(connection: Connection, run_id: int) -> bool:
    groups, runs = schema.group, schema.run
    # Locked by a statement of its own: the next one sees the state in which the run can no longer be reopened.
    locked = sa.select(runs.c.state).where(runs.c.run_id == run_id).with_for_update()
    found = connection.execute(locked).scalar_one_or_none()
    if found in (None, RunState.REMOVING.value):
        return False
    if found == RunState.SUPERSEDED.value:
        raise ProtocolViolation(superseded(described_run(connection, run_id)))
    concluded = [state.value for state in CONCLUDED]
    unfinished = sa.exists().where(groups.c.run_id == run_id, groups.c.state.not_in(concluded))
    open_slots = sa.exists().where(schema.slot.c.run_id == run_id, ~schema.slot.c.done)
    aside = sa.exists().where(schema.quarantine.c.run_id == run_id)
    state = sa.case((aside, RunState.QUARANTINED.value), else_=RunState.FINISHED.value)
    done = connection.execute(
        sa.update(runs)
        .where(runs.c.run_id == run_id, ~unfinished, ~open_slots)
        .values(state=state, ended_at=sa.func.coalesce(runs.c.ended_at, now(connection.dialect.name)))
    )
    return done.rowcount == 1
