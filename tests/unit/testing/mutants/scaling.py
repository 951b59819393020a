"""Broken scaling: moves that no driver hears of, what a new owner forgets, and replicas that are not what they were."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from msgspec import structs

from airflow_logio.dataflow import Dispatcher, LeastLoaded, Merger, Tumbling
from airflow_logio.dataflow.operators import InputEvent
from airflow_logio.dataflow.replication import partition
from airflow_logio.dataflow.replication.dispatcher import OrderedMerger
from airflow_logio.dataflow.replication.partition import slots_of
from airflow_logio.errors import Fenced
from airflow_logio.protocol.effects import RecordLineage
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.replicas import Placement, Slot, replicated_group, slot_of
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.scaling_rules import Rescaling, plan
from airflow_logio.systems.connections import WriterIdentity
from airflow_logio.testing.memory_log import groups, slots
from airflow_logio.testing.memory_log.tables import GroupKey, Tables
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.world import World
from tests.unit.testing.mutants.registry import mutant


@mutant("spread", "who_loses_or_gains_a_slot_gets_a_new_epoch")
def losing_replica_keeps_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """The epoch of a replica that loses a slot is not raised: it commits what its new owner has not seen."""
    patch.setattr(Rescaling, "voided", property(lambda self: self.gaining))


@mutant("spread", "who_loses_or_gains_a_slot_gets_a_new_epoch")
def gaining_replica_keeps_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """The epoch of a replica that gets a slot is not raised: it never learns of it."""
    patch.setattr(Rescaling, "voided", property(lambda self: self.losing))


class ForgetsWrites(SimulatedDriver):
    """A new owner begins with what it logs itself."""

    def _new_memory(self) -> None:
        moves = self.slots or {}
        pending = tuple(write for write in self.recovered.writes if not moves.get(slot_of(write.operator) or 0))
        self.recovered = replace(self.recovered, writes=pending)
        super()._new_memory()


@mutant("copies", "no_group_is_parked", driver=ForgetsWrites)
def pending_writes_stay_behind(_patch: pytest.MonkeyPatch) -> None:
    """Write actions that were pending when a slot moved are left to its old owner, who must not write."""


@mutant("copies", "only_the_replaced_are_fenced")
def token_without_moves(patch: pytest.MonkeyPatch) -> None:
    """The fencing token of a slot's writer is the incarnation alone: an old owner may hold a higher one."""
    patch.setattr(WriterIdentity, "token_after", lambda self, _moves: self.token)


@mutant("spread", "who_retires_is_retired")
def retired_replica_left_running(patch: pytest.MonkeyPatch) -> None:
    """A replica that retires keeps its state, and its epoch: its driver continues."""
    patch.setattr(slots, "_retire", lambda _tables, _key: None)
    patch.setattr(slots, "plan", _losing_without_retiring)


def _losing_without_retiring(run: Run, group: str, found: Sequence[Slot], placement: Placement, retire: Any) -> Any:
    rescaling = plan(run, group, found, placement, retire)
    return _Keeps(rescaling.group, rescaling.moved, rescaling.losing, rescaling.retire)


class _Keeps(Rescaling):
    @property
    def voided(self) -> frozenset[str]:
        return (self.gaining | self.losing) - self.retire


@mutant("spread", "who_retires_is_retired")
def retired_state_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A replica that retires gets a new epoch, and keeps its state: its driver waits for slots for ever."""
    patch.setattr(slots, "_retire", lambda _tables, _key: None)


@mutant("spread", "what_is_done_stays_as_it_is", "a_slot_is_done_when_its_operators_have_ended")
def finishes_slots_of_others(patch: pytest.MonkeyPatch) -> None:
    """A replica that has finished marks all slots of its group done."""

    def finish(tables: Tables, ref: GroupRef) -> None:
        for key, slot in list(tables.slots.items()):
            if key[:2] == (ref.run_id, replicated_group(ref.group)):
                tables.put(tables.slots, key, replace(slot, done=True))

    patch.setattr(slots, "finish", finish)


@mutant("copies", "a_run_has_finished_when_all_is_done", "every_schedule_ends")
def finished_with_open_slots(patch: pytest.MonkeyPatch) -> None:
    """A run has finished when all its groups have: slots of a group that is scaled to zero have no owner."""
    patch.setattr(slots, "open_slots", lambda _tables, _run_id: {})


@mutant("copies", "a_slot_that_is_done_never_moves")
def done_slots_move(patch: pytest.MonkeyPatch) -> None:
    """Slots that are done move with the others."""

    def any_slot(
        run: Run, group: str, found: Sequence[Slot], placement: Placement, retire: Collection[str]
    ) -> Rescaling:
        return plan(run, group, [replace(slot, done=False) for slot in found], placement, retire)

    patch.setattr(slots, "plan", any_slot)


@mutant("spread", "a_retired_replica_is_launched_by_a_request_alone")
def recovery_of_a_retired_replica(patch: pytest.MonkeyPatch) -> None:
    """A supervisor that has seen a replica die claims it, though it has retired since."""
    claim = groups.claim

    def whoever(
        tables: Tables, key: GroupKey, expected: int, reason: str, *, by_user: bool, request_id: int | None = None
    ) -> Any:
        retired = tables.groups[key].state is GroupState.RETIRED
        return claim(tables, key, expected, reason, by_user=by_user or retired, request_id=request_id)

    patch.setattr(groups, "claim", whoever)


class TakesItForBroken(World):
    """Whatever a driver finds strange is its own fault."""

    @staticmethod
    def _is_void(_driver: SimulatedDriver) -> bool:
        return False

    def _refused(self, driver: SimulatedDriver, error: Fenced) -> None:
        if not (driver.slots is not None and driver.is_running and World._is_void(driver)):
            super()._refused(driver, error)


@mutant("spread", "no_group_is_parked", world=TakesItForBroken, rare=307)
def parked_for_the_work_of_another(_patch: pytest.MonkeyPatch) -> None:
    """A replica that finds an event missing parks itself, though the slot has moved and its new owner has used it."""


@mutant("spread", "destinations_are_those_of_a_run_without_failures")
def ends_with_the_first_slot(patch: pytest.MonkeyPatch) -> None:
    """A Merger ends when one of its streams has: the end overtakes what is on its way in the other slots."""
    patch.setattr(OperatorProtocol, "inputs_ended", lambda self: bool(self.context.ended))


@mutant("scaled", "no_group_is_parked")
def progress_ahead_of_the_stream(patch: pytest.MonkeyPatch) -> None:
    """A Dispatcher tells the slots of a window that the stream has not come to: they close the one before too early."""
    progress = Tumbling.progress

    def ahead(self: Tumbling, event: InputEvent) -> str | None:
        latest = progress(self, event)
        if latest is None:
            return None
        return self.grid().name(self.number(latest) + 1)

    patch.setattr(Tumbling, "progress", ahead)


@mutant("scaled", "replicas_make_what_one_would_make")
def slots_of_keys_change(patch: pytest.MonkeyPatch) -> None:
    """The slot of a key is not the same for ever, but depends on who computes it."""
    asked = count()

    def moving(table: pa.Table, columns: Sequence[str], slots_: int) -> Any:
        return (slots_of(table, columns, slots_) + next(asked) // 7) % slots_

    patch.setattr(partition, "slots_of", moving)


@mutant("scaled", "replicas_make_what_one_would_make")
def merged_twice(patch: pytest.MonkeyPatch) -> None:
    """A Merger sends on some events twice."""

    def process(self: Merger, event: InputEvent, external: Any) -> Any:
        return (("out", event.table),) * (1 + (event.event_id == 3))

    patch.setattr(Merger, "process", process)


@mutant("scaled", "replicas_make_what_one_would_make")
def not_dispatched(patch: pytest.MonkeyPatch) -> None:
    """A Dispatcher passes over a slot now and then: its records go nowhere."""
    part = LeastLoaded.part

    def without_some(self: LeastLoaded, event: InputEvent, slots_: int, routes: Any) -> Any:
        return [] if event.event_id == 11 else part(self, event, slots_, routes)

    patch.setattr(LeastLoaded, "part", without_some)


@mutant("scaled", "replicas_make_what_one_would_make")
def lineage_of_another_slot(patch: pytest.MonkeyPatch) -> None:
    """A Merger's lineage leads to what came before in any slot."""
    add = Ledger.add

    def shifted(self: Ledger, effect: Any) -> None:
        if isinstance(effect, RecordLineage) and effect.sender.operator.startswith("merge") and effect.event_id > 1:
            effect = structs.replace(effect, event_id=effect.event_id - 1)
        add(self, effect)

    patch.setattr(Ledger, "add", shifted)


@mutant("scaled", "no_group_is_parked")
def order_not_kept(patch: pytest.MonkeyPatch) -> None:
    """An ordered Merger sends on what has come."""
    patch.setattr(OrderedMerger, "triggered", lambda _self, _state, open_insets: sorted(open_insets, key=int))


@mutant("scaled", "no_group_is_parked")
def places_taken_twice(patch: pytest.MonkeyPatch) -> None:
    """A Dispatcher numbers its events anew in each incarnation: places are taken twice."""
    restore = OperatorProtocol.restore

    def forgets(self: OperatorProtocol, data: bytes) -> None:
        restore(self, data)
        if "events" in self.state:
            self.state = {**self.state, "events": 0}

    patch.setattr(OperatorProtocol, "restore", forgets)


@mutant("scaled", "replicas_make_what_one_would_make")
def places_swapped(patch: pytest.MonkeyPatch) -> None:
    """A Dispatcher gives each second event the place of the one before it."""
    dispatch = Dispatcher.dispatch

    def swapped(self: Dispatcher, input_set: Any, state: Any, routes: Any) -> Any:
        sent = dispatch(self, input_set, state, routes)
        return [one if one.place is None else replace(one, place=((one.place - 1) ^ 1) + 1) for one in sent]

    patch.setattr(Dispatcher, "dispatch", swapped)
