"""Drivers on clusters, in memory (in SQL: `store/sql/cluster_log.py`). All functions run in an open transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from airflow_logio.protocol.states import ENDED, GroupState, RunState
from airflow_logio.store.records.driver_records import Claim, GroupRef, LeftDriver, ManagerSaid, Submission
from airflow_logio.testing.memory_log.tables import GroupKey, Tables

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
        note(tables, ref, submission=submission, gone_at=None)


def note_said(tables: Tables, ref: GroupRef, said: ManagerSaid) -> None:
    driver = tables.drivers.get((GroupKey(ref.run_id, ref.group), ref.incarnation))
    if driver is not None and driver.registered_at is None:
        note(tables, ref, manager_said=said, said_at=tables.now())


def note(tables: Tables, ref: GroupRef, **values: Any) -> None:
    """Set columns of the driver's row, if there is one."""
    key = (GroupKey(ref.run_id, ref.group), ref.incarnation)
    if key in tables.drivers:
        tables.put(tables.drivers, key, replace(tables.drivers[key], **values))


def left(tables: Tables, run_ids: Collection[int] | None, most: int) -> Sequence[LeftDriver]:
    found = []
    for (key, incarnation), row in sorted(tables.drivers.items(), key=lambda one: one[1].claimed_at):
        group = tables.groups[key]
        is_replaced = tables.fences[key].incarnation > incarnation
        is_over = is_replaced or group.state in ENDED or tables.runs[key.run_id].state in _OVER
        is_asked = run_ids is None or key.run_id in run_ids
        if not (is_asked and is_over) or row.submission is None or row.gone_at is not None:
            continue
        submissions = tuple(dict.fromkeys(one for one in (row.submission, row.reported) if one is not None))
        ref = GroupRef(key.run_id, key.group, incarnation)
        now = tables.now()
        found.append(LeftDriver(ref, submissions, is_replaced, now - row.claimed_at, now - group.since))
    return found[:most]
