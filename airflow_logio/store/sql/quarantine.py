"""Quarantined Input Sets in SQL: listing them, and putting them back (`protocol/reopening.py`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import ProtocolViolation, UnknownRun
from airflow_logio.protocol.reopening import Reopening, reopen
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, WAITING, GroupState, RunState
from airflow_logio.protocol.values import Kind, Port, Status
from airflow_logio.store.records.run_records import Run, senders_of
from airflow_logio.store.records.upkeep_records import QuarantineCount, QuarantinedInputSet, Retried
from airflow_logio.store.rules.endings import superseded
from airflow_logio.store.rules.header import encode_header
from airflow_logio.store.rules.seal import seal, unseal
from airflow_logio.store.sql import schema, slots
from airflow_logio.store.sql.counting import add_to_counters
from airflow_logio.store.sql.engines import now
from airflow_logio.store.sql.value_lists import among


def quarantined(
    connection: Connection, run_id: int, group: str | None = None, limit: int | None = None
) -> Sequence[QuarantinedInputSet]:
    """Quarantined Input Sets, the oldest first."""
    table = schema.quarantine
    query = sa.select(table).where(table.c.run_id == run_id).order_by(table.c.since, table.c.op, table.c.inset_id)
    query = query.limit(limit)
    if group is not None:
        query = query.where(table.c.group_name == replicated_group(group))
    return [
        QuarantinedInputSet(row.group_name, row.op, row.inset_id, row.error, row.since)
        for row in connection.execute(query)
    ]


def counts(connection: Connection, run_ids: Collection[int]) -> dict[int, dict[str, QuarantineCount]]:
    """Run id → group → its quarantined Input Sets in numbers, where there are any."""
    columns = schema.quarantine.c
    query = sa.select(columns.run_id, columns.group_name, sa.func.count(), sa.func.max(columns.since))
    found: dict[int, dict[str, QuarantineCount]] = {}
    rows = connection.execute(query.where(columns.run_id.in_(run_ids)).group_by(columns.run_id, columns.group_name))
    for run_id, group, count, latest in rows:
        found.setdefault(run_id, {})[group] = QuarantineCount(count, latest)
    return found


def retry(connection: Connection, run: Run, group: str | None) -> Retried:
    """Put Input Sets back among the triggered ones, and reopen what has ended behind them, under raised epochs.

    All fences of the run are locked first, in key order: no driver can commit in between, and none can keep using what
    it has in memory. Groups that had finished are left halted, ready for a launch.
    """
    runs, fences = schema.run, schema.fence
    locked = sa.select(fences.c.group_name).where(fences.c.run_id == run.run_id)
    connection.execute(locked.order_by(fences.c.group_name).with_for_update()).all()
    state = connection.execute(
        sa.select(runs.c.state).where(runs.c.run_id == run.run_id).with_for_update()
    ).scalar_one_or_none()
    if state in (None, RunState.REMOVING.value):
        raise UnknownRun(f"run {run.spec.key} is being removed from the log; it cannot be retried")
    if state == RunState.SUPERSEDED.value:
        raise ProtocolViolation(superseded(run))
    found = quarantined(connection, run.run_id, group)
    if not found:
        return Retried((), ())
    by_operator: dict[str, list[str]] = {}
    for one in found:
        by_operator.setdefault(one.operator, []).append(one.inset_id)
    reopened = reopen(_states(connection, run), senders_of(run.spec), by_operator)
    _put_back(connection, run.run_id, by_operator)
    _store(connection, run.run_id, reopened)
    groups = {run.spec.operators[operator].group for operator in reopened.concerned}
    owners = slots.reopen(connection, run.run_id, run.spec.slots_of(reopened.concerned))
    touched = sorted(groups - set(run.spec.replicated) | owners)
    connection.execute(
        sa.update(fences)
        .where(fences.c.run_id == run.run_id, fences.c.group_name.in_(touched))
        .values(epoch=fences.c.epoch + 1)
    )
    return Retried(tuple(found), tuple(_reopen_groups(connection, run.run_id, touched)))


def _states(connection: Connection, run: Run) -> dict[str, bytes]:
    table = schema.state
    query = sa.select(table.c.op, table.c.sealed).where(table.c.run_id == run.run_id, table.c.state_id == 0)
    stored = {row.op: unseal(row.op, bytes(row.sealed)) for row in connection.execute(query)}
    return {operator: stored[operator] for operator in run.spec.operators if operator in stored}


def _put_back(connection: Connection, run_id: int, by_operator: dict[str, list[str]]) -> None:
    rows, table = schema.event_log, schema.quarantine
    for operator, insets in by_operator.items():
        put_back = connection.execute(
            sa.update(rows)
            .where(
                rows.c.run_id == run_id,
                rows.c.rec_op == operator,
                rows.c.status == Status.ASIDE.value,
                among(connection, rows.c.inset_id, insets),
            )
            .values(status=Status.UNDONE.value)
            .returning(rows.c.rec_port)
        )
        # State events have no port, and are not counted.
        found = Counter(port for port in put_back.scalars() if port is not None)
        reopened = {(Port(operator, port), schema.OPEN): (count, 0, 0) for port, count in found.items()}
        add_to_counters(connection, run_id, reopened)
        connection.execute(
            sa.delete(table).where(
                table.c.run_id == run_id, table.c.op == operator, among(connection, table.c.inset_id, insets)
            )
        )


def _store(connection: Connection, run_id: int, reopened: Reopening) -> None:
    states, data = schema.state, schema.event_data
    for operator, state in reopened.states.items():
        where = (states.c.run_id == run_id, states.c.op == operator, states.c.state_id == 0)
        connection.execute(sa.update(states).where(*where).values(sealed=seal(state)))
    for port, event_id in reopened.ends:
        connection.execute(
            sa.update(data)
            .where(
                data.c.run_id == run_id,
                data.c.send_op == port.operator,
                data.c.channel == port.name,
                data.c.event_id == event_id,
            )
            .values(header=encode_header(Kind.RESUMED, 0, b""))
        )


def _reopen_groups(connection: Connection, run_id: int, touched: Sequence[str]) -> list[str]:
    """Reopening is the only way out of `finished`. A group that has a driver, or is to be recovered, resumes by
    itself."""
    groups, runs = schema.group, schema.run
    clock = now(connection.dialect.name)
    finished = (
        sa.update(groups)
        .where(
            groups.c.run_id == run_id,
            groups.c.group_name.in_(touched),
            groups.c.state.in_([state.value for state in CONCLUDED]),  # one that retired may have finished slots
        )
        .values(state=GroupState.HALTED.value, since=clock)
    )
    connection.execute(finished)
    connection.execute(
        sa.update(runs).where(runs.c.run_id == run_id).values(state=RunState.RUNNING.value, ended_at=None)
    )
    waiting = sa.select(groups.c.group_name).where(
        groups.c.run_id == run_id,
        groups.c.group_name.in_(touched),
        groups.c.state.in_([state.value for state in WAITING]),
    )
    return list(connection.execute(waiting.order_by(groups.c.group_name)).scalars())
