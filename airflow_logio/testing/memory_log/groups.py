"""Groups in memory: claimed, launched, registered, ended, and as observers see them (in SQL: `store/sql/group_log.py`).

All functions run in an open transaction."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from airflow_logio.errors import BudgetSpent, FailurePoint, Fenced, ProtocolViolation, UnknownRun
from airflow_logio.protocol.liveness import TAKEN_BUDGET
from airflow_logio.protocol.states import (
    ENDED,
    STOPPED,
    GroupState,
    RunState,
    allowed_from,
    check_claim,
    check_wish,
    wish_after_claim,
)
from airflow_logio.protocol.values import Port, Status
from airflow_logio.store.records.driver_records import (
    Claim,
    DriverIdentity,
    DriverRecord,
    FenceRow,
    GroupRef,
    LeftDriver,
    ManagerSaid,
    Refused,
    Submission,
    known_as,
)
from airflow_logio.store.records.run_records import has_sources
from airflow_logio.store.records.status_records import GroupStatus, UnderWay
from airflow_logio.store.rules.place_rules import GroupCounts, asks_for_place, check_place, runs_ahead
from airflow_logio.store.rules.run_rules import superseded, taken_too_often
from airflow_logio.store.rules.scaling_rules import check_going_on
from airflow_logio.testing.memory_log import slots
from airflow_logio.testing.memory_log.tables import DriverRow, GroupKey, RunRow, Tables


def claim(
    tables: Tables, key: GroupKey, expected: int, reason: str, *, by_user: bool, request_id: int | None = None
) -> Claim | Refused:
    """Raise the incarnation, or move the group to the state where it belongs instead."""
    group = key.group
    if key.run_id not in tables.runs:
        raise UnknownRun(f"no run {key.run_id} is in the log")
    if key not in tables.groups:
        raise ProtocolViolation(f"run {key.run_id} has no group {group!r}")
    row, fence = tables.groups[key], tables.fences[key]
    if fence.incarnation != expected:
        raise Fenced(
            f"group {group!r} was claimed by another process: incarnation {fence.incarnation}, expected {expected}"
        )
    if (run := tables.runs[key.run_id]).state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(run.as_run()))
    if row.state is GroupState.RETIRED:
        check_going_on(run.as_run(), run.state)
    if request_id is not None:
        slots.check_is_open(tables, request_id)
    check_claim(group, row.state, by_user=by_user)
    asks = expected == 0 and asks_for_place(run.as_run(), by_user=by_user, request_id=request_id)
    if asks and row.desired is not GroupState.HALTED:
        check_place(run.as_run(), _counts(tables, run), was_claimed=_was_claimed(tables, key.run_id))
    spends = expected > 0 and not by_user
    ref = GroupRef(key.run_id, group, expected)
    if spends and (causes := budget_spent(tables, key)):
        text = f"{causes}\nlast cause: {reason}"
        _move(tables, ref, GroupState.PARKED, text)
        _end_driver(tables, ref, reason)
        return Refused(BudgetSpent(text))
    _end_driver(tables, ref, reason)
    if not by_user and row.desired is GroupState.HALTED:
        _move(tables, ref, GroupState.HALTED, None)
        return Refused(ProtocolViolation(f"group {group!r} was asked to halt, and is not recovered"))
    return _raise_incarnation(tables, key, fence, reason, spends=spends)


def ahead(tables: Tables, run_ids: Collection[int]) -> dict[int, int | None]:
    asked = {run_id: tables.runs[run_id] for run_id in run_ids if run_id in tables.runs}
    return {
        run_id: runs_ahead(run.as_run(), _counts(tables, run), was_claimed=_was_claimed(tables, run_id))
        for run_id, run in asked.items()
    }


def _was_claimed(tables: Tables, run_id: int) -> bool:
    return any(fence.incarnation for key, fence in tables.fences.items() if key.run_id == run_id)


def _counts(tables: Tables, run: RunRow) -> dict[int, GroupCounts]:
    found: dict[int, Counter[GroupState]] = {}
    for key, group in tables.groups.items():
        other = tables.runs[key.run_id]
        if other.spec.key.pipeline == run.spec.key.pipeline and other.state is RunState.RUNNING:
            found.setdefault(key.run_id, Counter())[group.state] += 1
    return dict(found)


def _raise_incarnation(tables: Tables, key: GroupKey, fence: FenceRow, reason: str, *, spends: bool) -> Claim:
    incarnation, clock = fence.incarnation + 1, tables.now()
    uid = tables.runs[key.run_id].uid
    row = tables.groups[key]
    made = Claim(key.run_id, uid, key.group, incarnation, uuid.uuid4().hex, recovery=incarnation > 1, code=row.code)
    tables.put(tables.fences, key, replace(fence, incarnation=incarnation))
    tables.add(tables.drivers, (key, incarnation), DriverRow(made.nonce, reason, spends, clock, code=row.code))
    desired = wish_after_claim(row.desired)
    claimed = replace(row, state=GroupState.CLAIMED, desired=desired, since=clock, error=None)
    tables.put(tables.groups, key, claimed)
    return made


def submitted(tables: Tables, claim: Claim, log_path: str | None, launcher: DriverIdentity | None) -> bool:
    key = GroupKey(claim.run_id, claim.group)
    driver = tables.drivers[key, claim.incarnation]
    identity = driver.identity
    if launcher is not None and identity is None:
        identity = DriverIdentity(
            launcher.host,
            launcher.boot_id,
            0,
            0.0,
            parent_pid=launcher.pid,
            parent_start_time=launcher.start_time,
        )
    noted = replace(driver, submitted_at=tables.now(), log_path=log_path, identity=identity)
    tables.put(tables.drivers, (key, claim.incarnation), noted)
    if tables.groups[key].state is not GroupState.CLAIMED:
        return False
    target = GroupState.RESTARTED if claim.recovery else GroupState.SUBMITTED
    return _move(tables, claim, target, None)


def register(tables: Tables, claim: Claim, identity: DriverIdentity, reported: Submission | None = None) -> GroupRef:
    key = GroupKey(claim.run_id, claim.group)
    driver = tables.drivers.get((key, claim.incarnation))
    if driver is not None and driver.registered_at is not None and _is_same(tables, driver, claim, identity):
        return GroupRef(claim.run_id, claim.group, claim.incarnation, claim.code)
    free = driver is not None and driver.nonce == claim.nonce and driver.registered_at is None
    if driver is None or not free or not _move(tables, claim, GroupState.RUNNING, None):
        raise Fenced(
            f"incarnation {claim.incarnation} of group {claim.group!r} cannot be registered: it was replaced, "
            "ended, or another process holds it; this driver exits before its first read"
        )
    registered = replace(driver, registered_at=tables.now(), identity=identity, reported=reported)
    tables.put(tables.drivers, (key, claim.incarnation), registered)
    return GroupRef(claim.run_id, claim.group, claim.incarnation, claim.code)


def _is_same(tables: Tables, driver: DriverRow, claim: Claim, identity: DriverIdentity) -> bool:
    """The same driver asks again because its acknowledgement was lost."""
    fence = tables.fences[GroupKey(claim.run_id, claim.group)]
    return (driver.nonce, driver.identity, fence.incarnation) == (claim.nonce, identity, claim.incarnation)


def end(
    tables: Tables,
    ref: GroupRef,
    target: GroupState,
    error: str | None,
    failed_at: FailurePoint | None = None,
    *,
    was_taken: bool = False,
) -> bool:
    """False if the incarnation was replaced, or the state table forbids it."""
    moved = _move(tables, ref, target, error)
    if moved:
        _end_driver(tables, ref, error, failed_at, was_taken=was_taken)
    return moved


def _move(tables: Tables, ref: Claim | GroupRef, target: GroupState, error: str | None) -> bool:
    key = GroupKey(ref.run_id, ref.group)
    if key not in tables.groups:
        raise ProtocolViolation(f"run {ref.run_id} has no group {ref.group!r}")
    row = tables.groups[key]
    if tables.fences[key].incarnation != ref.incarnation or row.state not in allowed_from(target):
        return False
    desired = target if target is GroupState.HALTED else row.desired
    tables.put(tables.groups, key, replace(row, state=target, desired=desired, since=tables.now(), error=error))
    if target in STOPPED:  # its driver may be alive, or come back: it commits nothing more
        tables.put(tables.fences, key, replace(tables.fences[key], epoch=tables.fences[key].epoch + 1))
    return True


def _end_driver(
    tables: Tables,
    ref: GroupRef,
    error: str | None,
    failed_at: FailurePoint | None = None,
    *,
    was_taken: bool = False,
) -> None:
    key = (GroupKey(ref.run_id, ref.group), ref.incarnation)
    driver = tables.drivers.get(key)
    point = None if failed_at is None else str(failed_at)
    if driver is not None and driver.ended_at is None:
        ended = replace(driver, ended_at=tables.now(), error=error, failed_at=point, was_taken=was_taken)
        tables.put(tables.drivers, key, ended)


def request(tables: Tables, key: GroupKey, desired: GroupState, incarnation: int | None) -> bool:
    if key not in tables.groups:
        raise ProtocolViolation(f"run {key.run_id} has no group {key.group!r}")
    row, spec = tables.groups[key], tables.runs[key.run_id].spec
    if incarnation is not None and tables.fences[key].incarnation != incarnation:
        return False
    if check_wish(key.group, row.state, row.desired, desired, has_sources=has_sources(spec, key.group)):
        tables.put(tables.groups, key, replace(row, desired=desired))
    return True


# --- drivers on clusters (in SQL: `store/sql/cluster_log.py`) ---------------------------------------------------------

_OVER = (RunState.FINISHED, RunState.QUARANTINED, RunState.SUPERSEDED, RunState.REMOVING)


def submitting(tables: Tables, claim: Claim, submission: Submission) -> bool:
    key = GroupKey(claim.run_id, claim.group)
    driver = tables.drivers.get((key, claim.incarnation))
    if driver is None or driver.nonce != claim.nonce or driver.submission is not None:
        return False
    if tables.fences[key].incarnation != claim.incarnation or tables.groups[key].state is not GroupState.CLAIMED:
        return False
    tables.put(tables.drivers, (key, claim.incarnation), replace(driver, submission=submission))
    return True


def note_id(tables: Tables, ref: GroupRef, submission: Submission) -> None:
    driver = tables.drivers.get((GroupKey(ref.run_id, ref.group), ref.incarnation))
    if driver is not None and (driver.submission is None or not driver.submission.id):
        note_of_driver(tables, ref, submission=submission, gone_at=None)


def note_said(tables: Tables, ref: GroupRef, said: ManagerSaid) -> None:
    driver = tables.drivers.get((GroupKey(ref.run_id, ref.group), ref.incarnation))
    if driver is not None and driver.registered_at is None:
        note_of_driver(tables, ref, manager_said=said, said_at=tables.now())


def note_of_driver(tables: Tables, ref: GroupRef, **values: Any) -> None:
    """Set columns of the driver's row, if there is one."""
    key = (GroupKey(ref.run_id, ref.group), ref.incarnation)
    if key in tables.drivers:
        tables.put(tables.drivers, key, replace(tables.drivers[key], **values))


def left_on_clusters(tables: Tables, run_ids: Collection[int] | None, most: int) -> Sequence[LeftDriver]:
    found = []
    for (key, incarnation), row in sorted(tables.drivers.items(), key=lambda one: -one[1].claimed_at):
        group = tables.groups[key]
        is_replaced = tables.fences[key].incarnation > incarnation
        is_over = is_replaced or group.state in ENDED or tables.runs[key.run_id].state in _OVER
        is_asked = run_ids is None or key.run_id in run_ids
        if not (is_asked and is_over) or row.submission is None or row.gone_at is not None:
            continue
        submissions = known_as(row.submission, row.reported)
        ref = GroupRef(key.run_id, key.group, incarnation)
        now = tables.now()
        found.append(LeftDriver(ref, submissions, is_replaced, now - row.claimed_at, now - group.since))
    return found[:most]


# --- the recovery budget ----------------------------------------------------------------------------------------------


def budget_spent(tables: Tables, key: GroupKey) -> str | None:
    """Why the group is parked; None if it may be recovered."""
    clock = tables.now()
    budget = tables.runs[key.run_id].spec.budget
    all_mine = [(n, row) for (other, n), row in sorted(tables.drivers.items()) if other == key]
    mine = [(n, row) for n, row in all_mine if n > 1]
    forgiven = max((n for n, row in mine if not row.spends_budget), default=0)
    points = [row.failed_at for n, row in all_mine if n >= forgiven]
    if budget.is_spent_at(points):
        return (
            f"group {key.group!r} failed at {points[-1]} again after {budget.same_event} recoveries; it is parked. "
            "Fix the operator, or the data it cannot use, and `logio retry` the group (--code new after a change of the code)"
        )
    taken = {n for n, row in all_mine if row.was_taken}
    spent = [(n, row) for n, row in mine if n > forgiven and n - 1 not in taken]
    refused = {n for n, row in all_mine if row.submission is not None and not row.submission.id}
    free = [row for n, row in mine if n > forgiven and n - 1 in taken - refused]
    if TAKEN_BUDGET.is_spent([clock - row.claimed_at for row in free]):
        return taken_too_often(key.group)
    if (all_mine and all_mine[-1][1].was_taken) or not budget.is_spent([clock - row.claimed_at for _, row in spent]):
        return None
    causes = "\n".join(f"  incarnation {n}: {row.reason}" for n, row in spent[-budget.recoveries :])
    return (
        f"group {key.group!r} was recovered {budget.recoveries} times within {budget.window_seconds:g} s and "
        f"failed again; it is parked. Recoveries:\n{causes}"
    )


# --- what an observer sees --------------------------------------------------------------------------------------------


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
        drained_at=row.drained_at,
        submission=driver.submission if driver else None,
        reported=driver.reported if driver else None,
        manager_said=driver.manager_said if driver else None,
        said_age_seconds=tables.now() - driver.said_at if driver and driver.said_at else None,
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
        was_taken=row.was_taken,
        submission=row.reported or row.submission,
    )
