"""Slots of replicated groups as rows: how they begin, their owners, and which are done. Moves are in `scaling_log`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.replicas import Slot, SlotsSight, balanced, replicated_group, slot_of
from airflow_logio.protocol.values import Status
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run, RunSpec
from airflow_logio.store.rules.row_forms import unseal
from airflow_logio.store.rules.scaling_rules import has_left, slots_sight
from airflow_logio.store.sql import schema
from airflow_logio.store.sql.bulk import among

slot = schema.slot

GroupId = tuple[int, str]
"""(run id, replicated group)"""

_ROWS_PER_STATEMENT = 5_000
"""Rows of three values each in one statement: SQLite takes no more than 32,766 values."""


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


def of_run(connection: Connection, run_id: int) -> dict[str, list[Slot]]:
    """Replicated group → its slots, by number."""
    found: dict[str, list[Slot]] = {}
    query = sa.select(slot.c.group_name, slot.c.slot, slot.c.owner, slot.c.moves, slot.c.done)
    rows = connection.execute(query.where(slot.c.run_id == run_id).order_by(slot.c.group_name, slot.c.slot))
    for group, number, owner, moves, done in rows.all():
        found.setdefault(group, []).append(Slot(number, owner, moves, bool(done)))
    return found


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


def sight(connection: Connection, runs: Mapping[int, Run], groups: Collection[GroupId]) -> dict[GroupId, SlotsSight]:
    """`LogStore.slots_sight`. Rows in no Input Set are work: events that no replica has taken, and write actions. Where there
    are none, the stored states decide."""
    query = sa.select(slot).where(among(connection, slot.c.run_id, sorted(runs)))
    slots: dict[GroupId, list[Slot]] = {}
    for row in connection.execute(query):
        if (row.run_id, row.group_name) in groups:
            found = slots.setdefault((row.run_id, row.group_name), [])
            found.append(Slot(row.slot, row.owner, row.moves, bool(row.done)))
    members = {
        (run_id, group): [name for name, shape in runs[run_id].spec.operators.items() if shape.group == group]
        for run_id, group in slots
    }
    working = _with_rows(connection, members)
    left = {one: names for one, names in members.items() if one not in working}
    states = _states(connection, left)
    working |= {one for one in left if _has_left(runs[one[0]].spec, one[1], slots[one], states[one])}
    return {one: slots_sight(found, has_work=one in working) for one, found in slots.items()}


def _has_left(spec: RunSpec, group: str, slots: Sequence[Slot], states: Mapping[str, bytes]) -> bool:
    over = {slot.number for slot in slots if slot.done}
    try:
        return has_left(spec, group, over, {n: unseal(n, data) for n, data in states.items() if slot_of(n) not in over})
    except LogInconsistent:  # a damaged row of one run is no reason to look after no other
        return True


def _with_rows(connection: Connection, members: Mapping[GroupId, Sequence[str]]) -> set[GroupId]:
    """Those with a row that is in no Input Set. Each operator is looked up in the index, however much waits."""
    rows = [(run_id, group, name) for (run_id, group), names in members.items() for name in names]
    parts = [rows[start : start + _ROWS_PER_STATEMENT] for start in range(0, len(rows), _ROWS_PER_STATEMENT)]
    return {found for part in parts for found in _waiting_in(connection, part)}


def _waiting_in(connection: Connection, rows: Sequence[tuple[int, str, str]]) -> set[GroupId]:
    columns = (sa.column("run_id", sa.BigInteger), sa.column("group_name", sa.Text), sa.column("op", sa.Text))
    asked = sa.values(*columns, name="asked").data(rows).cte("asked")
    log = schema.event_log
    waiting = sa.exists().where(
        log.c.run_id == asked.c.run_id,
        log.c.rec_op == asked.c.op,
        log.c.status == Status.UNDONE.value,
        log.c.inset_id.is_(None),
    )
    query = sa.select(asked.c.run_id, asked.c.group_name).where(waiting).distinct()
    return {(run_id, group) for run_id, group in connection.execute(query)}


def _states(connection: Connection, members: Mapping[GroupId, Sequence[str]]) -> dict[GroupId, dict[str, bytes]]:
    """Operator → its stored state, sealed."""
    found: dict[GroupId, dict[str, bytes]] = {one: {} for one in members}
    if members:
        table, groups = schema.state, {(one[0], name): one for one, names in members.items() for name in names}
        query = sa.select(table.c.run_id, table.c.op, table.c.sealed).where(
            among(connection, table.c.run_id, sorted({run_id for run_id, _ in members})),
            among(connection, table.c.op, sorted({name for names in members.values() for name in names})),
            table.c.state_id == 0,
        )
        for row in connection.execute(query):
            if (one := groups.get((row.run_id, row.op))) is not None:
                found[one][row.op] = bytes(row.sealed)
    return found


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
