"""Slots of replicated groups as rows: how they begin, their owners, and which are done. Moves are in `slot_moves`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.replicas import Slot, balanced, replicated_group, slot_of
from airflow_logio.protocol.values import Status
from airflow_logio.store.records import GroupRef, Run, RunSpec
from airflow_logio.store.rules.scaling_rules import has_left
from airflow_logio.store.rules.seal import unseal
from airflow_logio.store.sql import schema

slot = schema.slot


def create(connection: Connection, run_id: int, spec: RunSpec) -> None:
    """Spread the slots over the replicas with which the run begins."""
    rows = [
        {"run_id": run_id, "group_name": group, "slot": number, "owner": owner, "moves": 0, "done": False}
        for group, shape in spec.replicated.items()
        for number, owner in balanced(
            [Slot(number, None) for number in range(shape.slots)], shape.replicas[: shape.initial]
        ).items()
    ]
    if rows:
        connection.execute(sa.insert(slot), rows)


def of_group(connection: Connection, run_id: int, group: str) -> list[Slot]:
    """The slots of a group, by number."""
    query = sa.select(slot).where(slot.c.run_id == run_id, slot.c.group_name == group).order_by(slot.c.slot)
    return [Slot(row.slot, row.owner, row.moves, bool(row.done)) for row in connection.execute(query)]


def owned(connection: Connection, ref: GroupRef) -> Mapping[int, int]:
    """Slot → number of moves, for the slots that a replica owns and that are not done."""
    query = sa.select(slot.c.slot, slot.c.moves).where(*_open_of(ref)).order_by(slot.c.slot)
    return {row.slot: row.moves for row in connection.execute(query)}


def finish(connection: Connection, ref: GroupRef) -> None:
    """Mark the slots of a replica done, because its group has finished: both or neither. Behind the replica's fence.

    Raises `LogInconsistent` for a replica without a slot: it is retired, and never finishes.
    """
    base = replicated_group(ref.group)
    if base == ref.group:
        return
    if connection.execute(sa.update(slot).where(*_open_of(ref)).values(done=True)).rowcount:
        return
    replicated = sa.select(sa.exists().where(slot.c.run_id == ref.run_id, slot.c.group_name == base))
    if connection.execute(replicated).scalar_one():
        raise LogInconsistent(f"replica {ref.group!r} owns no slot that is not done: it has nothing to finish")


def open_slots(connection: Connection, run_ids: Sequence[int] | None = None) -> dict[int, dict[str, int]]:
    """Run id → replicated group → how many of its slots are not done. Without `run_ids`, for all runs."""
    query = (
        sa.select(slot.c.run_id, slot.c.group_name, sa.func.count())
        .where(~slot.c.done)
        .group_by(slot.c.run_id, slot.c.group_name)
        .order_by(slot.c.run_id, slot.c.group_name)
    )
    if run_ids is not None:
        query = query.where(slot.c.run_id.in_(run_ids))
    found: dict[int, dict[str, int]] = {}
    for run_id, group, count in connection.execute(query):
        found.setdefault(run_id, {})[group] = count
    return found


def has_work(connection: Connection, run: Run, group: str) -> bool:
    """Whether rows are in no Input Set: events that no replica has taken, or write actions. If none are, the stored
    states decide."""
    log, states = schema.event_log, schema.state
    operators = [name for name, shape in run.spec.operators.items() if shape.group == group]
    waiting = sa.exists().where(
        log.c.run_id == run.run_id,
        log.c.rec_op.in_(operators),
        log.c.status == Status.UNDONE.value,
        log.c.inset_id.is_(None),
    )
    if connection.execute(sa.select(waiting)).scalar_one():
        return True
    over = {number for name, number in done(connection, run.run_id) if name == group}
    query = sa.select(states.c.op, states.c.sealed).where(
        states.c.run_id == run.run_id, states.c.op.in_(operators), states.c.state_id == 0
    )
    rows = [row for row in connection.execute(query) if slot_of(row.op) not in over]
    stored = {row.op: unseal(row.op, bytes(row.sealed)) for row in rows}
    return has_left(run.spec, group, over, stored)


def done(connection: Connection, run_id: int) -> frozenset[tuple[str, int]]:
    """(replicated group, slot) of those that are done."""
    query = sa.select(slot.c.group_name, slot.c.slot).where(slot.c.run_id == run_id, slot.c.done)
    return frozenset((row.group_name, row.slot) for row in connection.execute(query))


def reopen(connection: Connection, run_id: int, reopened: Mapping[str, Sequence[int]]) -> frozenset[str]:
    """Reopen slots of each replicated group. Returns the replicas that own them. Runs under all fences of the run."""
    owners: set[str] = set()
    for group, numbers in reopened.items():
        update = (
            sa.update(slot)
            .where(slot.c.run_id == run_id, slot.c.group_name == group, slot.c.slot.in_(numbers))
            .values(done=False)
        )
        owners.update(owner for owner in connection.execute(update.returning(slot.c.owner)).scalars() if owner)
    return frozenset(owners)


def _open_of(ref: GroupRef) -> tuple[sa.ColumnElement[Any], ...]:
    group = replicated_group(ref.group)
    return slot.c.run_id == ref.run_id, slot.c.group_name == group, slot.c.owner == ref.group, ~slot.c.done
