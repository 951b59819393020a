"""Groups of the log in memory: claimed, launched, registered, ended (`store/sql/groups.py` does so in a database).

All functions run in an open transaction.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from airflow_logio.errors import BudgetSpent, FailurePoint, Fenced, ProtocolViolation, UnknownRun
from airflow_logio.protocol.states import (
    STOPPED,
    GroupState,
    RunState,
    allowed_from,
    check_claim,
    check_wish,
    wish_after_claim,
)
from airflow_logio.store.memory import scaling_requests
from airflow_logio.store.memory.budget import budget_spent
from airflow_logio.store.memory.tables import DriverRow, GroupKey, Tables
from airflow_logio.store.records import Claim, DriverIdentity, FenceRow, GroupRef, Refused, has_sources
from airflow_logio.store.rules.endings import superseded
from airflow_logio.store.rules.scaling_rules import check_going_on


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
        scaling_requests.check_is_open(tables, request_id)
    check_claim(group, row.state, by_user=by_user)
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


def register(tables: Tables, claim: Claim, identity: DriverIdentity) -> GroupRef:
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
    registered = replace(driver, registered_at=tables.now(), identity=identity)
    tables.put(tables.drivers, (key, claim.incarnation), registered)
    return GroupRef(claim.run_id, claim.group, claim.incarnation, claim.code)


def _is_same(tables: Tables, driver: DriverRow, claim: Claim, identity: DriverIdentity) -> bool:
    """The same driver asks again because its acknowledgement was lost."""
    fence = tables.fences[GroupKey(claim.run_id, claim.group)]
    return (driver.nonce, driver.identity, fence.incarnation) == (claim.nonce, identity, claim.incarnation)


def end(
    tables: Tables, ref: GroupRef, target: GroupState, error: str | None, failed_at: FailurePoint | None = None
) -> bool:
    """False if the incarnation was replaced, or the state table forbids it."""
    moved = _move(tables, ref, target, error)
    if moved:
        _end_driver(tables, ref, error, failed_at)
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


def _end_driver(tables: Tables, ref: GroupRef, error: str | None, failed_at: FailurePoint | None = None) -> None:
    key = (GroupKey(ref.run_id, ref.group), ref.incarnation)
    driver = tables.drivers.get(key)
    point = None if failed_at is None else str(failed_at)
    if driver is not None and driver.ended_at is None:
        tables.put(tables.drivers, key, replace(driver, ended_at=tables.now(), error=error, failed_at=point))


def request(tables: Tables, key: GroupKey, desired: GroupState, incarnation: int | None) -> bool:
    if key not in tables.groups:
        raise ProtocolViolation(f"run {key.run_id} has no group {key.group!r}")
    row, spec = tables.groups[key], tables.runs[key.run_id].spec
    if incarnation is not None and tables.fences[key].incarnation != incarnation:
        return False
    if check_wish(key.group, row.state, row.desired, desired, has_sources=has_sources(spec, key.group)):
        tables.put(tables.groups, key, replace(row, desired=desired))
    return True
