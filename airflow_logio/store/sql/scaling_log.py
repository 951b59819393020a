"""Replicas: slots move in one transaction, behind the fences of all affected replicas (Section 7.2); requests to scale.

A step of a replica and a move of its slots both change the replica's fence row, so whichever comes first holds up the
other. A step that comes later finds a raised epoch and is refused. A move that comes later finds the step in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import ReplicaBusy, UnknownRun
from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight
from airflow_logio.protocol.states import GroupState, RunState, ScalingState
from airflow_logio.store.port.scaling_port import ScalingLog
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.store.rules.scaling_rules import Rescaling, check_going_on, check_states, plan, shape_of
from airflow_logio.store.sql import scaling_requests, schema, slots, wake
from airflow_logio.store.sql.engines import LockTimeout, TransactionConflict, reading, translated, writing
from airflow_logio.store.sql.group_log import end_driver, move
from airflow_logio.store.sql.runs import SqlPart, known

log = logging.getLogger(__name__)

BUSY_SECONDS = 1.0
"""How long to wait for a commit of a replica; replicas that are locked already are held up meanwhile."""


class SqlScalingLog(SqlPart, ScalingLog):
    """Slots of replicated groups, and requests to scale."""

    def slots(self, run_id: int, group: str) -> Sequence[Slot]:
        with reading(self.engine) as connection:
            shape_of(self._run(connection, run_id), group)
            return slots.of_group(connection, run_id, group)

    def slots_of_run(self, run_id: int) -> Mapping[str, Sequence[Slot]]:
        with reading(self.engine) as connection:
            return slots.of_run(connection, run_id)

    def rescale(
        self,
        run_id: int,
        group: str,
        placement: Placement,
        *,
        retire: Collection[str] = (),
        request_id: int | None = None,
    ) -> int:
        def attempt() -> Rescaling:
            with writing(self.engine) as connection:
                run = self._run(connection, run_id)
                return rescale(connection, run, group, placement, retire, request_id)

        try:
            done = attempt()
        except LockTimeout:
            raise
        except TransactionConflict as error:
            log.info("retrying: %s", error)
            done = attempt()
        wake.announce(self.engine, run_id, sorted(done.concerned))
        return done.count

    def slots_sight(self, groups: Collection[tuple[int, str]]) -> Mapping[tuple[int, str], SlotsSight]:
        with reading(self.engine) as connection:
            found: dict[int, Run] = {}
            for run_id in {run_id for run_id, _ in groups}:
                with suppress(UnknownRun):
                    found[run_id] = self._run(connection, run_id)
            return slots.sight(connection, found, groups)

    def request_scaling(
        self, run_id: int, group: str, replicas: int, *, by: str, reason: str = "", key: str | None = None
    ) -> ScalingRequest:
        with writing(self.engine) as connection:
            run = self._run(connection, run_id)
            return scaling_requests.request(connection, run, group, replicas, by=by, reason=reason, key=key)

    def scalings(self, run_id: int, group: str | None = None) -> Sequence[ScalingRequest]:
        with reading(self.engine) as connection:
            return scaling_requests.requests(connection, run_id, group)

    def settle_scaling(self, request_id: int, state: ScalingState, note: str = "") -> bool:
        with writing(self.engine) as connection:
            return scaling_requests.settle(connection, request_id, state, note)


def rescale(
    connection: Connection, run: Run, group: str, placement: Placement, retire: Collection[str], request_id: int | None
) -> Rescaling:
    """Runs in an open transaction. Returns what it has changed."""
    _lock_rescaling(connection, run.run_id, group)
    # Owners change only here, one after the other. What is done may change until the fences are locked.
    wanted = plan(run, group, slots.of_group(connection, run.run_id, group), placement, retire)
    # The fences before the request: a launch for it holds one, and may wait for a process that supersedes it.
    locked = _lock_fences(connection, run, wanted) if wanted.concerned else {}
    if request_id is not None:
        scaling_requests.check_open(connection, request_id)
    if not wanted.concerned:
        return wanted
    rescaling = plan(run, group, slots.of_group(connection, run.run_id, group), placement, retire)
    _check_run(connection, run)
    states = _lock_groups(connection, run, locked)
    retiring = check_states(rescaling, states)
    _move(connection, run.run_id, rescaling)
    for name, incarnation in locked.items():
        if name in retiring:
            ref = GroupRef(run.run_id, name, incarnation)
            move(connection, ref, GroupState.RETIRED)
            end_driver(connection, ref, None)
    _raise_epochs(connection, run.run_id, rescaling.voided - retiring)
    return rescaling


def _lock_rescaling(connection: Connection, run_id: int, group: str) -> None:
    """Lock until the end of the transaction. On SQLite a transaction that writes is alone anyway.

    Another move may wait `BUSY_SECONDS` for each replica, so this one waits for it as long as for any transaction.
    """
    if connection.dialect.name == "postgresql":
        lock = sa.text("SELECT pg_advisory_xact_lock(hashtext('logio rescale'), hashtext(:what))")
        with _busy(connection.engine, f"another process has been moving slots of group {group!r} for seconds"):
            connection.execute(lock, {"what": f"{run_id} {group}"})
        connection.execute(sa.text(f"SET LOCAL lock_timeout = '{int(BUSY_SECONDS * 1000)}ms'"))


def _lock_fences(connection: Connection, run: Run, rescaling: Rescaling) -> dict[str, int]:
    """Lock the fences. Returns replica → incarnation. They are locked one by one, in the order that every transaction
    uses, so that the replica that holds one is known."""
    fence = schema.fence
    mine = (fence.c.run_id == run.run_id, fence.c.group_name.in_(rescaling.concerned))
    in_order = connection.execute(sa.select(fence.c.group_name).where(*mine).order_by(fence.c.group_name)).scalars()
    locked: dict[str, int] = {}
    for name in in_order.all():
        lock = sa.select(fence.c.incarnation).where(fence.c.run_id == run.run_id, fence.c.group_name == name)
        with _busy(
            connection.engine, f"replica {name!r} has been inside a transaction for more than {BUSY_SECONDS:g} s"
        ):
            incarnation = connection.execute(lock.with_for_update()).scalar_one_or_none()
        if incarnation is not None:
            locked[name] = incarnation
    if set(locked) != rescaling.concerned:
        raise UnknownRun(f"run {run.spec.key} is being removed from the log; it cannot be scaled")
    return locked


@contextmanager
def _busy(engine: Engine, why: str) -> Iterator[None]:
    try:
        with translated(engine):
            yield
    except LockTimeout as error:
        raise ReplicaBusy(
            f"{why}: slots cannot be moved now, and nothing was changed; try again when it has ended or was recovered"
        ) from error


def _check_run(connection: Connection, run: Run) -> None:
    """Runs under fences of the run. A process that gives the run up, or removes it, holds all of them."""
    table = schema.run
    state = connection.execute(sa.select(table.c.state).where(table.c.run_id == run.run_id)).scalar_one()
    check_going_on(run, known(RunState, state, f"the state of run {run.uid}"))


def _lock_groups(connection: Connection, run: Run, names: Collection[str]) -> dict[str, tuple[GroupState, GroupState]]:
    """Replica → (state, desired). A request to halt is either seen here, or comes later and is heard by the driver."""
    table = schema.group
    query = sa.select(table.c.group_name, table.c.state, table.c.desired).where(
        table.c.run_id == run.run_id, table.c.group_name.in_(names)
    )
    with _busy(
        connection.engine, f"another process has held {', '.join(sorted(names))} for more than {BUSY_SECONDS:g} s"
    ):
        rows = connection.execute(query.order_by(table.c.group_name).with_for_update()).all()
    return {
        row.group_name: (
            known(GroupState, row.state, f"the state of group {row.group_name!r}"),
            known(GroupState, row.desired, f"the desired state of group {row.group_name!r}"),
        )
        for row in rows
    }


def _move(connection: Connection, run_id: int, rescaling: Rescaling) -> None:
    table = schema.slot
    for owner, numbers in rescaling.moved.items():
        connection.execute(
            sa.update(table)
            .where(table.c.run_id == run_id, table.c.group_name == rescaling.group, table.c.slot.in_(numbers))
            .values(owner=owner, moves=table.c.moves + 1)
        )


def _raise_epochs(connection: Connection, run_id: int, names: Collection[str]) -> None:
    fence = schema.fence
    raised = sa.update(fence).where(fence.c.run_id == run_id, fence.c.group_name.in_(names))
    connection.execute(raised.values(epoch=fence.c.epoch + 1))
