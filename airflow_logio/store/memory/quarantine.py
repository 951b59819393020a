"""Quarantined Input Sets in memory: as in `sql/quarantine.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from airflow_logio.errors import ProtocolViolation, UnknownRun
from airflow_logio.protocol.reopening import reopen
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, WAITING, GroupState, RunState
from airflow_logio.protocol.values import Kind, Status
from airflow_logio.store.memory import slots
from airflow_logio.store.memory.tables import BodyKey, GroupKey, Tables
from airflow_logio.store.quarantine_records import QuarantineCount, QuarantinedInputSet, Retried
from airflow_logio.store.records import senders_of
from airflow_logio.store.rules.endings import superseded
from airflow_logio.store.rules.header import encode_header


def quarantined(tables: Tables, run_id: int, group: str | None = None) -> Sequence[QuarantinedInputSet]:
    """Quarantined Input Sets, the oldest first."""
    found = [
        QuarantinedInputSet(row.group, operator, inset_id, row.error, row.since)
        for (run, operator, inset_id), row in tables.quarantine.items()
        if run == run_id and (group is None or row.group == replicated_group(group))
    ]
    return sorted(found, key=lambda one: (one.since, one.operator, one.inset_id))


def counts(found: Sequence[QuarantinedInputSet]) -> dict[str, QuarantineCount]:
    """By group."""
    return {
        group: QuarantineCount(
            sum(one.group == group for one in found), max(one.since for one in found if one.group == group)
        )
        for group in sorted({one.group for one in found})
    }


def retry(tables: Tables, run_id: int, group: str | None) -> Retried:
    """Runs in an open transaction."""
    if run_id not in tables.runs or tables.runs[run_id].state is RunState.REMOVING:
        raise UnknownRun(f"run {run_id} is being removed from the log; it cannot be retried")
    if tables.runs[run_id].state is RunState.SUPERSEDED:
        raise ProtocolViolation(superseded(tables.runs[run_id].as_run()))
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
