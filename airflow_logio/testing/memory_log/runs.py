"""Runs in memory: how they begin, give way to fresh ones and end, their code, and what they have quarantined.

All functions run in an open transaction."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from airflow_logio.errors import ProtocolViolation, UnknownRun
from airflow_logio.protocol.context import reopen
from airflow_logio.protocol.effects import LATE
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.scope_rules import DayAsRead
from airflow_logio.protocol.states import CONCLUDED, WAITING, GroupState, RunState
from airflow_logio.protocol.values import Kind, Port, Status
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.records.day_records import (
    DayRead,
    LateArrival,
    PartitionBounds,
    PartitionRun,
    Since,
    days_read_by,
    owns,
    standing_of,
)
from airflow_logio.store.records.driver_records import CodeChange, FenceRow, KeptCode
from airflow_logio.store.records.run_records import Allowed, ConcurrentRuns, Run, RunKey, RunSpec, senders_of
from airflow_logio.store.records.start_records import Attempt, Decided, Decision, Start
from airflow_logio.store.records.upkeep_records import QuarantineCount, QuarantinedInputSet, RemovedRun, Retried
from airflow_logio.store.rules.allowed_rules import check_allowed_before, handed_on, next_allowed
from airflow_logio.store.rules.described_runs import encode_spec
from airflow_logio.store.rules.removed_rules import check_in_place
from airflow_logio.store.rules.row_forms import check_unchanged, encode_header, told_of, with_told
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
from airflow_logio.testing.memory_log import slots
from airflow_logio.testing.memory_log.tables import BodyKey, GroupKey, GroupRow, RunRow, Tables


def start(tables: Tables, spec: RunSpec, *, concurrent: ConcurrentRuns, code: bytes | None, above: int) -> Run:
    """Runs in an open transaction, like the others."""
    check_above(above)
    newest = _newest(tables, spec.key)
    check_partition(None if newest is None else newest.as_run(), spec)
    if newest is None or newest.state is RunState.SUPERSEDED:
        newest = _begin(tables, spec, newest, concurrent=concurrent, code=code, above=above)
    else:
        check_allowed_before(newest.as_run(), spec)
    check_graph(newest.as_run(), spec.graph_fingerprint, spec.graph)
    return newest.as_run()


def _begin(
    tables: Tables,
    spec: RunSpec,
    before: RunRow | None,
    *,
    concurrent: ConcurrentRuns,
    code: bytes | None,
    above: int = 0,
) -> RunRow:
    """The generation after `before`, and after those that were removed."""
    run, removed = None if before is None else before.as_run(), _newest_removed(tables, spec.key)
    if before is None:
        check_in_place(spec, removed)
    check_alone(spec, _unfinished(tables, spec.key.pipeline), concurrent)
    generation, earliest = next_generation(run, removed), earliest_start(run, removed)
    ordinal = next_ordinal(tables.ordinals.get(spec.key.pipeline, 0), above)
    key, allowed = replace(spec.key, generation=generation), spec.allowed | _take_allowed(tables, spec)
    row = _create(tables, replace(spec, key=key, allowed=allowed), earliest, ordinal)
    keep_code(tables, row.run_id, spec.code_digest, code)
    if before is not None:
        before = tables.runs[before.run_id]
        tables.put(tables.runs, before.run_id, replace(before, superseded_by=row.uid))
    return row


def _take_allowed(tables: Tables, spec: RunSpec) -> frozenset[Allowed]:
    newest = _newest_of_partition(tables, spec)
    allowed = handed_on(newest)
    if newest is not None and allowed:
        tables.put(tables.runs, newest.run_id, replace(tables.runs[newest.run_id], next_allowed=frozenset()))
    return allowed


def start_attempt(
    tables: Tables, spec: RunSpec, attempt: Attempt, *, concurrent: ConcurrentRuns, code: bytes | None
) -> Start:
    kept = {number: one for (key, number), one in tables.starts.items() if key == _key(spec.key)}
    for one in outdated(attempt, kept.values()):
        del kept[one.attempt.number]
        tables.drop(tables.starts, (_key(spec.key), one.attempt.number))
    decided, row = standing(attempt, kept.values()), _newest(tables, spec.key)
    check_partition(None if row is None else row.as_run(), spec)
    if decided is not None and row is not None and row.state is not RunState.SUPERSEDED:
        check_graph(row.as_run(), spec.graph_fingerprint, spec.graph)
        return Start(row.as_run(), decided.decision, False, _replaced(tables, row))
    decision = decide(spec, None if row is None else _found(tables, row))
    if row is not None and decision is Decision.AGAIN:
        pipeline = spec.key.pipeline
        replaced = row.uid
        check_alone(spec, (one for one in _unfinished(tables, pipeline) if one[0].uid != replaced), concurrent)
        supersede(tables, row.run_id, because=CLEARED)
        row = tables.runs[row.run_id]
    if row is None or row.state is RunState.SUPERSEDED:
        row = _begin(tables, spec, row, concurrent=concurrent, code=code)
        decision = Decision.BEGUN if row.spec.key.generation == 1 else Decision.AGAIN
    check_graph(row.as_run(), spec.graph_fingerprint, spec.graph)
    tables.put(tables.starts, (_key(spec.key), attempt.number), Decided(attempt, row.uid, decision))
    return Start(row.as_run(), decision, True, _replaced(tables, row))


def _key(key: RunKey) -> RunKey:
    return RunKey(key.pipeline, key.dag_id, key.dag_run_id)


def _is_of_dag_run(one: RunKey, key: RunKey) -> bool:
    """Whatever their generations."""
    return (one.dag_run_id, one.dag_id, one.pipeline) == (key.dag_run_id, key.dag_id, key.pipeline)


def _replaced(tables: Tables, row: RunRow) -> str | None:
    found = next((other.uid for other in tables.runs.values() if other.superseded_by == row.uid), None)
    removed, generation = _newest_removed(tables, row.spec.key), row.spec.key.generation - 1
    return removed.uid if found is None and removed is not None and removed.key.generation == generation else found


def _found(tables: Tables, row: RunRow) -> Found:
    run, changes = row.as_run(), code_changes(tables, row.run_id)
    numbers = {group.code for key, group in tables.groups.items() if key.run_id == row.run_id}
    has_quarantine = bool(quarantined(tables, row.run_id))
    digests = [digest_of(run, changes, number) for number in sorted(numbers)]
    return Found(run, group_states(tables, row.run_id), has_quarantine, digests)


def supersede(
    tables: Tables, run_id: int, *, because: str | None = None, above: int = 0, allowed: Collection[Allowed] = ()
) -> bool:
    check_above(above)
    row = _row(tables, run_id)
    if above:
        name = row.spec.key.pipeline
        tables.put(tables.ordinals, name, max(tables.ordinals[name], above))
    is_new = check_superseding(row.as_run(), row.state, group_states(tables, run_id))
    if allowed:
        newest = _newest_of_partition(tables, row.spec)
        row = replace(row, next_allowed=next_allowed(row.as_run(), newest, allowed))
        tables.put(tables.runs, run_id, row)
    if not is_new:
        return False
    for key, group in list(tables.groups.items()):
        if key.run_id == run_id and group.state in (GroupState.NEW, GroupState.DEAD):
            halted = replace(group, state=GroupState.HALTED, desired=GroupState.HALTED, since=tables.now())
            tables.put(tables.groups, key, halted)
            tables.put(tables.fences, key, replace(tables.fences[key], epoch=tables.fences[key].epoch + 1))
    ended = row.ended_at if row.ended_at is not None else tables.now()
    tables.put(tables.runs, run_id, replace(row, state=RunState.SUPERSEDED, ended_at=ended, because=because))
    return True


def finish(tables: Tables, run_id: int) -> bool:
    row = tables.runs.get(run_id)
    if row is None or row.state is RunState.REMOVING:
        return False
    if row.state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(row.as_run()))
    if group_states(tables, run_id).left():
        return False
    ended = row.ended_at if row.ended_at is not None else tables.now()
    state = RunState.QUARANTINED if quarantined(tables, run_id) else RunState.FINISHED
    tables.put(tables.runs, run_id, replace(row, state=state, ended_at=ended))
    return True


def told_by(tables: Tables, run_id: int, task: str) -> Any | None:
    return told_of(_row_that_stays(tables, run_id).told, task)


def note_told(tables: Tables, run_id: int, task: str, value: Any) -> None:
    row = _row_that_stays(tables, run_id)
    tables.put(tables.runs, run_id, replace(row, told=with_told(row.told, task, value)))


def _row_that_stays(tables: Tables, run_id: int) -> RunRow:
    row = _row(tables, run_id)
    if row.state is RunState.REMOVING:
        raise UnknownRun(f"no run {run_id} is in the log")
    return row


def _row(tables: Tables, run_id: int) -> RunRow:
    if run_id not in tables.runs:
        raise UnknownRun(f"no run {run_id} is in the log")
    return tables.runs[run_id]


def _newest(tables: Tables, key: RunKey) -> RunRow | None:
    same = [other for other in tables.run_keys if _is_of_dag_run(other, key)]
    if not same:
        return None
    return tables.runs[tables.run_keys[max(same, key=lambda other: other.generation)]]


def _newest_removed(tables: Tables, key: RunKey) -> RemovedRun | None:
    same = [one for one in tables.removed.values() if _is_of_dag_run(one.key, key)]
    return max(same, key=lambda one: one.key.generation, default=None)


def _newest_of_partition(tables: Tables, spec: RunSpec) -> Run | None:
    """As the adapter for SQL."""
    found = [
        row
        for row in tables.runs.values()
        if row.spec.partition is not None
        and (row.spec.key.pipeline, row.spec.partition) == (spec.key.pipeline, spec.partition)
        and row.state is not RunState.REMOVING
    ]
    return max(found, key=lambda row: row.ordinal).as_run() if found else None


def _unfinished(tables: Tables, pipeline: str) -> Iterator[tuple[Run, GroupStates]]:
    """One by one: runs that may begin beside any other are not compared with thousands."""
    for row in tables.runs.values():
        if row.spec.key.pipeline == pipeline and row.state is RunState.RUNNING:
            yield row.as_run(), group_states(tables, row.run_id)


def group_states(tables: Tables, run_id: int) -> GroupStates:
    states = {
        key.group: tables.groups[key].state for key in sorted(key for key in tables.groups if key.run_id == run_id)
    }
    return GroupStates(states, slots.open_slots(tables, run_id))


def _create(tables: Tables, spec: RunSpec, earliest: float, ordinal: int) -> RunRow:
    run_id, clock = next(tables.run_ids), tables.now()
    # Goes through its stored form, as in a database: what cannot be stored is found here.
    stored = msgspec.json.decode(encode_spec(spec), type=RunSpec)
    tables.put(tables.ordinals, spec.key.pipeline, ordinal)
    tables.put(tables.keeps, spec.key.pipeline, spec.keep_seconds)
    tables.put(tables.due, spec.key.pipeline, stored.due)
    row = RunRow(run_id, uuid.uuid4().hex, stored, max(clock, earliest), ordinal)
    tables.put(tables.runs, run_id, row)
    tables.put(tables.run_keys, spec.key, run_id)
    unused = spec.unused_replicas()
    for name in spec.groups:
        key = GroupKey(run_id, name)
        state, desired = (
            (GroupState.RETIRED, GroupState.HALTED) if name in unused else (GroupState.NEW, GroupState.RUNNING)
        )
        tables.put(tables.groups, key, GroupRow(state, desired, clock))
        tables.put(tables.fences, key, FenceRow(0, 0, 0))
    slots.create(tables, run_id, spec)
    noted = [
        (source, day._replace(is_whole=day.is_whole or _has_ended_well(tables, day.live_run)))
        for source, day in days_read_by(stored)
    ]
    tables.put(tables.days_read, run_id, tuple(noted))
    return row


def _has_ended_well(tables: Tables, uid: str) -> bool:
    gone = tables.removed.get(uid)
    for row in tables.runs.values():
        if row.uid == uid and _has_finished(tables, row.run_id) and not quarantined(tables, row.run_id):
            return True
    return gone is not None and gone.state is RunState.FINISHED


# --- code that a person takes for a group -----------------------------------------------------------------------------


def take_code(
    tables: Tables, run_id: int, group: str, digest: str, fingerprint: str, by: str, archive: bytes | None
) -> int:
    row = _row(tables, run_id)
    keys = [GroupKey(run_id, name) for name in members(row.as_run(), group)]
    if not all(key in tables.groups for key in keys):
        raise UnknownRun(f"run {row.spec.key} is no longer in the log")
    current = max(tables.groups[key].code for key in keys)
    number = number_for(row.as_run(), row.state, code_changes(tables, run_id), current, digest)
    if number == current:
        return number
    change = CodeChange(number, replicated_group(group), digest, fingerprint, by[:LONGEST], tables.now())
    tables.add(tables.code_changes, (run_id, number), change)
    keep_code(tables, run_id, digest, archive)
    for key in keys:
        tables.put(tables.groups, key, replace(tables.groups[key], code=number))
    return number


def keep_code(tables: Tables, run_id: int, digest: str | None, archive: bytes | None) -> None:
    if digest is not None and archive is not None and (run_id, digest) not in tables.code:
        tables.add(tables.code, (run_id, digest), archive)


def kept_code(tables: Tables, run_id: int, number: int) -> KeptCode:
    digest = digest_of(_row(tables, run_id).as_run(), code_changes(tables, run_id), number)
    return KeptCode(number, digest, None if digest is None else tables.code.get((run_id, digest)))


def code_changes(tables: Tables, run_id: int) -> Sequence[CodeChange]:
    return [change for (run, _), change in sorted(tables.code_changes.items()) if run == run_id]


# --- quarantined Input Sets -------------------------------------------------------------------------------------------


def quarantined(tables: Tables, run_id: int, group: str | None = None) -> Sequence[QuarantinedInputSet]:
    """Quarantined Input Sets, the oldest first."""
    found = [
        QuarantinedInputSet(row.group, operator, inset_id, row.error, row.since)
        for (run, operator, inset_id), row in tables.quarantine.items()
        if run == run_id and (group is None or row.group == replicated_group(group))
    ]
    return sorted(found, key=lambda one: (one.since, one.operator, one.inset_id))


def quarantine_counts(found: Sequence[QuarantinedInputSet]) -> dict[str, QuarantineCount]:
    """By group."""
    return {
        group: QuarantineCount(
            sum(one.group == group for one in found), max(one.since for one in found if one.group == group)
        )
        for group in sorted({one.group for one in found})
    }


def retry_quarantined(tables: Tables, run_id: int, group: str | None) -> Retried:
    """Runs in an open transaction."""
    _check_there(tables, run_id, "retried")
    found = quarantined(tables, run_id, group)
    if not found:
        return Retried((), ())
    spec = tables.runs[run_id].spec
    by_operator: dict[str, list[str]] = {}
    for one in found:
        by_operator.setdefault(one.operator, []).append(one.inset_id)
        tables.drop(tables.quarantine, (run_id, one.operator, one.inset_id))
        rows = [
            row
            for row in tables.events.rows.values()
            if (row.body.run_id, row.receiver, row.inset_id, row.status)
            == (run_id, one.operator, one.inset_id, Status.ASIDE)
        ]
        tables.relog(rows, Status.UNDONE)
    states = {name: tables.states[run_id, name, 0] for name in spec.operators if (run_id, name, 0) in tables.states}
    reopened = reopen(states, senders_of(spec), by_operator)
    for operator, data in reopened.states.items():
        tables.put(tables.states, (run_id, operator, 0), data)
    for port, event_id in reopened.ends:
        key = BodyKey(run_id, port.operator, port.name, event_id)
        if key in tables.bodies:
            resumed = tables.bodies[key]._replace(header=encode_header(Kind.RESUMED, 0, b""))
            tables.put(tables.bodies, key, resumed)
    groups = {spec.operators[operator].group for operator in reopened.concerned}
    owners = slots.reopen(tables, run_id, spec.slots_of(reopened.concerned))
    touched = sorted(groups - set(spec.replicated) | owners)
    return Retried(tuple(found), tuple(name for name in touched if _reopen_group(tables, GroupKey(run_id, name))))


def _check_there(tables: Tables, run_id: int, what: str) -> None:
    if run_id not in tables.runs or tables.runs[run_id].state is RunState.REMOVING:
        raise UnknownRun(f"run {run_id} is being removed from the log; it cannot be {what}")
    if tables.runs[run_id].state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(tables.runs[run_id].as_run()))


def replace_body(
    tables: Tables, run_id: int, sender: Port, event_id: int, before: StoredBody, header: bytes, body: bytes
) -> None:
    """Runs in an open transaction."""
    _check_there(tables, run_id, "mended")
    key = BodyKey(run_id, *sender, event_id)
    found = tables.bodies.get(key)
    stored = None if found is None else StoredBody(found.header, found.body, found.ref)
    check_unchanged(f"event {event_id} of {sender}", stored, before)
    tables.put(tables.bodies, key, tables.bodies[key]._replace(header=header, body=body, ref=None))
    for group, fence in list(tables.fences.items()):
        if group.run_id == run_id:
            tables.put(tables.fences, group, replace(fence, epoch=fence.epoch + 1))


def _reopen_group(tables: Tables, key: GroupKey) -> bool:
    """Raise the epoch. Returns whether the group now waits for a launch."""
    fence, row = tables.fences[key], tables.groups[key]
    tables.put(tables.fences, key, replace(fence, epoch=fence.epoch + 1))
    if row.state in CONCLUDED:  # one that retired may have finished slots
        row = replace(row, state=GroupState.HALTED, since=tables.now())
        tables.put(tables.groups, key, row)
    run = tables.runs[key.run_id]
    tables.put(tables.runs, key.run_id, replace(run, state=RunState.RUNNING, ended_at=None))
    return row.state in WAITING


# --- days --------------------------------------------------------------------------------------------------------------

_TOTALS = ("out", "write")


def partition_bounds(tables: Tables, pipeline: str) -> PartitionBounds | None:
    keys = sorted(one.partition for one in _of_partitions(tables, pipeline))
    return PartitionBounds(keys[0], keys[-1]) if keys else None


def partition_runs(tables: Tables, pipeline: str, within: PartitionBounds, most: int) -> Sequence[PartitionRun]:
    found = (one for one in _of_partitions(tables, pipeline) if within.first <= one.partition <= within.last)
    return sorted(found, key=lambda one: (one.partition, one.ordinal), reverse=True)[:most]


def partition_records(
    tables: Tables, pipeline: str, within: PartitionBounds, operators: Collection[str]
) -> Mapping[int, Mapping[tuple[Port, str], int]]:
    ours = {one.run_id for one in _of_partitions(tables, pipeline) if within.first <= one.partition <= within.last}
    found: dict[int, dict[tuple[Port, str], int]] = {}
    for (run_id, port, direction), row in tables.counters.items():
        if run_id in ours and direction in _TOTALS and port.operator in operators:
            found.setdefault(run_id, {})[port, direction] = row.records
    return found


def late_arrivals(
    tables: Tables, pipeline: str, partitions: PartitionBounds, brought_by: PartitionBounds, operators: Collection[str]
) -> Sequence[LateArrival]:
    runs = {one.run_id: one for one in _of_partitions(tables, pipeline)}
    youngest = {one.partition: one.run_id for one in sorted(runs.values(), key=lambda one: one.ordinal)}
    found: Counter[tuple[str, int]] = Counter()
    for (run_id, port, direction), row in tables.counters.items():
        is_asked = partitions.first <= port.name <= partitions.last and port.operator in operators
        is_within = run_id in runs and brought_by.first <= runs[run_id].partition <= brought_by.last
        if is_within and direction == LATE and is_asked:
            found[port.name, run_id] += row.records
    arrivals = []
    for (key, run_id), records in found.items():
        run = runs[run_id]
        stands = youngest[run.partition] == run_id
        arrivals.append(LateArrival(key, records, run.partition, run.dag_id, run.ordinal, run.ended_at, stands))
    return sorted(arrivals, key=lambda one: (one.partition, one.ordinal))


def days_read(tables: Tables, run_ids: Collection[int]) -> Mapping[int, Sequence[DayRead]]:
    found: dict[int, list[DayRead]] = {}
    for run_id in run_ids:
        for source, day in tables.days_read[run_id] if run_id in tables.runs else ():
            left = next((row for row in tables.runs.values() if row.uid == day.live_run), None)
            gone = tables.removed.get(day.live_run)
            pipeline = left.spec.key.pipeline if left else gone.key.pipeline if gone else None
            partition = left.spec.partition if left else gone.partition if gone else None
            ordinal = left.ordinal if left else gone.ordinal if gone else 0
            later = [
                (one.ordinal, one.uid, _has_finished(tables, one.run_id))
                for one in (() if pipeline is None else _of_partitions(tables, pipeline))
                if one.partition == partition
                and (one.ordinal > ordinal or (one.uid == day.live_run and not day.is_whole))
            ]
            state = left.state if left else gone.state if gone else None
            if not day.live_run:
                state, later = RunState.RUNNING, _owning(tables, run_id, day)
            found.setdefault(run_id, []).append(DayRead(source, *day[:3], *standing_of(state, later), day.is_whole))
    return found


def computed_from(tables: Tables, uid: str) -> Sequence[Run]:
    left = (RunState.SUPERSEDED, RunState.REMOVING)
    return [
        row.as_run()
        for run_id, row in sorted(tables.runs.items())
        if row.state not in left and row.uid != uid and any(day.live_run == uid for _, day in tables.days_read[run_id])
    ]


def _owning(tables: Tables, reader: int, day: DayAsRead) -> list[Since]:
    return [
        (row.run_id, row.uid, _has_finished(tables, row.run_id))
        for row in tables.runs.values()
        if row.run_id != reader and row.state is not RunState.REMOVING and owns(row.spec, day.place, day.scope)
    ]


def _has_finished(tables: Tables, run_id: int) -> bool:
    return all(row.state in CONCLUDED for key, row in tables.groups.items() if key.run_id == run_id)


def _of_partitions(tables: Tables, pipeline: str) -> Iterator[PartitionRun]:
    for row in tables.runs.values():
        if row.spec.key.pipeline == pipeline and row.spec.partition is not None and row.state is not RunState.REMOVING:
            yield PartitionRun.of(row.as_run())
