"""Invariants of replicated groups: slots and their owners, and requests to scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.replicas import Slot, slot_of
from airflow_logio.protocol.states import CONCLUDED, OPEN_SCALING, GroupState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.driver_records import FenceRow
from airflow_logio.store.records.run_records import ReplicatedShape
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.testing.memory_log.tables import ABSENT, GroupKey, GroupRow, Tables
from airflow_logio.testing.simulator.actions import Incarnation
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.watch.event_watch import ContextWatch

SlotName = tuple[str, int]
"""(replicated group, slot)"""


class SlotWatch:
    """Slots as they were before the present transaction, and those that earlier ones finished."""

    def __init__(self, tables: Tables, contexts: ContextWatch) -> None:
        self._tables = tables
        self._contexts = contexts
        self._operators_of: Mapping[SlotName, Collection[str]] = {}
        self._group_of_operator: Mapping[str, str] = {}
        self._done: set[SlotName] = set()
        """Slots that an earlier transaction has finished."""
        self._changed: list[tuple[tuple[int, str, int], Slot]] = []
        """Slots that the transaction has changed, in their former state."""
        self._raised: set[str] = set()
        """Groups whose epoch the transaction has raised."""
        self._launching = False

    def begin(self, operators: Mapping[str, Sequence[str]]) -> None:
        """`operators` are the operators of each replicated group."""
        self._group_of_operator = {name: group for group, names in operators.items() for name in names}
        found: dict[SlotName, list[str]] = {}
        for name, group in self._group_of_operator.items():
            slot = slot_of(name)
            assert slot is not None, name
            found.setdefault((group, slot), []).append(name)
        self._operators_of = found

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Within this context, a retired replica may be claimed."""
        self._launching = True
        try:
            yield
        finally:
            self._launching = False

    # --- what a driver does -------------------------------------------------------------------------------------------

    def only_its_owner_commits_for_a_slot(self, driver: Incarnation, effects: fx.Effects) -> None:
        """An owner's commit changes no owner, so it can be checked afterwards."""
        replica, run_id = driver.plan.name, driver.claim.run_id
        for effect in effects:
            for operator in _operators(effect):
                group = self._group_of_operator.get(operator)
                if group is None:
                    continue
                number = slot_of(operator)
                assert number is not None
                slot = self._tables.slots[run_id, group, number]
                if slot.owner != replica:
                    raise Violation(
                        "only_its_owner_commits_for_a_slot",
                        f"{replica}, incarnation {driver.number} has committed {type(effect).__name__} of {operator}, "
                        f"whose owner is {slot.owner}",
                    )
                if (group, number) in self._done and not isinstance(effect, fx.Collect):
                    raise Violation("what_is_done_stays_as_it_is", f"{replica} has committed {effect} of slot {number}")
        self._done = {(group, number) for (_, group, number), slot in self._tables.slots.items() if slot.done}

    def a_retired_replica_commits_nothing(self, driver: Incarnation) -> None:
        if self._tables.groups[GroupKey(driver.claim.run_id, driver.plan.name)].state is GroupState.RETIRED:
            raise Violation("a_retired_replica_commits_nothing", f"{driver.plan.name}, incarnation {driver.number}")

    # --- what a transaction changed -----------------------------------------------------------------------------------

    def note_epoch(self, key: GroupKey, before: Any, after: FenceRow) -> None:
        if before is not ABSENT and before.epoch < after.epoch:
            self._raised.add(key.group)

    def note_slot(self, key: tuple[int, str, int], before: Any) -> None:
        if before is not ABSENT:
            self._changed.append((key, before))

    def see(self, *, reopened: bool) -> None:
        """Check at the end of a transaction. `reopened` if a retry of quarantined Input Sets has taken ends back."""
        if not self._changed and not self._raised:
            return
        changed, self._changed = self._changed, []
        raised, self._raised = self._raised, set()
        for key, before in changed:
            after = self._tables.slots[key]
            if before.owner != after.owner:
                self.a_slot_that_is_done_never_moves(key, before, after)
                self.who_loses_or_gains_a_slot_gets_a_new_epoch(key, before, after, raised)
            if (after.moves != before.moves + 1) if before.owner != after.owner else after.moves != before.moves:
                raise Violation("every_move_is_counted", f"slot {key[2]} of {key[1]}: {before} became {after}")
            if after.done and not before.done:
                self.a_slot_is_done_when_its_operators_have_ended(key)
            if before.done and not after.done:
                self._done.discard(key[1:])
                if not reopened:
                    raise Violation("a_slot_stays_done", f"slot {key[2]} of {key[1]}")

    def a_slot_that_is_done_never_moves(self, key: tuple[int, str, int], before: Slot, after: Slot) -> None:
        if before.done:
            raise Violation("a_slot_that_is_done_never_moves", f"slot {key[2]} of {key[1]}: {before} became {after}")

    def who_loses_or_gains_a_slot_gets_a_new_epoch(
        self, key: tuple[int, str, int], before: Slot, after: Slot, raised: Collection[str]
    ) -> None:
        for owner in (before.owner, after.owner):
            if owner is not None and owner not in raised:
                raise Violation(
                    "who_loses_or_gains_a_slot_gets_a_new_epoch",
                    f"slot {key[2]} of {key[1]} went from {before.owner} to {after.owner}, and {owner} keeps its epoch",
                )

    def a_slot_is_done_when_its_operators_have_ended(self, key: tuple[int, str, int]) -> None:
        operators = self._operators_of[key[1:]]
        for name in operators:
            if not self._contexts.has_finished(name):
                raise Violation(
                    "a_slot_is_done_when_its_operators_have_ended", f"slot {key[2]} of {key[1]} is done, {name} is not"
                )

    def a_retired_replica_is_launched_by_a_request_alone(
        self, key: GroupKey, before: GroupRow, after: GroupRow, *, reopened: bool
    ) -> None:
        leaves = before.state is GroupState.RETIRED and after.state is not GroupState.RETIRED
        if leaves and not self._launching and not reopened:
            raise Violation(
                "a_retired_replica_is_launched_by_a_request_alone", f"{key.group} is {after.state.value} again"
            )

    def a_retired_replica_owns_no_open_slot(self, key: GroupKey) -> None:
        owned = [slot.number for slot in self._tables.slots.values() if slot.owner == key.group and not slot.done]
        if owned:
            raise Violation("a_retired_replica_owns_no_open_slot", f"{key.group} owns {owned}")

    def a_run_has_finished_when_all_is_done(self, operators: Collection[str]) -> None:
        for name in operators:
            if not self._contexts.has_finished(name):
                raise Violation("a_run_has_finished_when_all_is_done", f"it has, and {name} has not ended")
        for key, row in self._tables.groups.items():
            if row.state not in CONCLUDED:
                raise Violation("a_run_has_finished_when_all_is_done", f"it has, and {key.group} is {row.state.value}")


def _operators(effect: fx.Effect) -> Sequence[str]:
    """The operators whose rows an effect changes."""
    match effect:
        case fx.LogEvent(event=event):
            return (event.sender.operator,)
        case fx.Collect(operators=operators):
            return tuple(operators)
        case fx.DrainGroup() | fx.FinishGroup() | fx.ExpireLineage() | fx.SweepShared():
            return ()
    named: Any = getattr(effect, "operator", None) or getattr(effect, "receiver", None)
    named = named or getattr(effect, "sender", None) or getattr(effect, "port", None)
    return () if named is None else (named.operator if isinstance(named, Port) else named,)


_ORDER = (ScalingState.REQUESTED, ScalingState.ACCEPTED, ScalingState.DONE)


class ScalingWatch:
    """Requests to scale, and those for which slots were placed."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._shapes: Mapping[str, ReplicatedShape] = {}
        self._met: set[int] = set()
        """Requests for which slots are placed as they ask."""
        self.reopened: set[str] = set()
        """Replicas that had finished, and got work again by a retry, perhaps unnoticed by an executor."""

    def begin(self, shapes: Mapping[str, ReplicatedShape]) -> None:
        self._shapes = shapes

    # --- what an executor does ----------------------------------------------------------------------------------------

    def carried_out(self, request: ScalingRequest) -> None:
        """An executor has just placed the slots for this request."""
        self.nothing_moves_for_a_settled_request(request)
        self.slots_are_placed_as_was_asked(request)
        self._met.add(request.request_id)

    def nothing_moves_for_a_settled_request(self, request: ScalingRequest) -> None:
        found = self._as_it_is(request)
        if found.state not in OPEN_SCALING:
            raise Violation(
                "nothing_moves_for_a_settled_request", f"{_named(found)} is {found.state.value}: {found.note}"
            )

    def slots_are_placed_as_was_asked(self, request: ScalingRequest) -> None:
        """Evenly over as many unfinished replicas as the request names; without owners if it names 0."""
        slots = [
            slot.owner
            for (run_id, group, _), slot in self._tables.slots.items()
            if (run_id, group) == (request.run_id, request.group)
            and not slot.done
            and (slot.owner is None or slot.owner not in self.reopened)
        ]
        states = [
            self._tables.groups[GroupKey(request.run_id, name)].state for name in self._shapes[request.group].replicas
        ]
        finished = sum(state is GroupState.FINISHED for state in states) + len(self.reopened)
        shares = Counter(owner for owner in slots if owner is not None)
        least = min(request.replicas - finished, len(states) - finished, len(slots))
        is_even = not shares or max(shares.values()) - min(shares.values()) <= 1
        is_whole = shares.total() == (len(slots) if request.replicas else 0)
        if not (is_even and is_whole and least <= len(shares) <= request.replicas):
            raise Violation("slots_are_placed_as_was_asked", f"{_named(request)}, and the owners are {slots}")

    def a_replica_is_launched_for_an_open_request(self, request: ScalingRequest | None, replica: str) -> None:
        """Checked right after the launch."""
        if request is None or self._as_it_is(request).state not in OPEN_SCALING:
            which = "no request" if request is None else _named(self._as_it_is(request))
            raise Violation("a_replica_is_launched_for_an_open_request", f"{replica} was launched for {which}")

    # --- what a transaction changed -----------------------------------------------------------------------------------

    def see(self, before: Any, after: ScalingRequest) -> None:
        if before is ABSENT:
            self.a_key_names_one_request(after)
        else:
            self.a_request_is_settled_once(before, after)
        self.one_request_of_a_group_is_open(after)
        if after.state is ScalingState.DONE:
            self.what_is_done_was_done_before(after)

    def a_key_names_one_request(self, made: ScalingRequest) -> None:
        for other in self._tables.scalings.values():
            same = (other.run_id, other.group, other.key) == (made.run_id, made.group, made.key)
            if made.key is not None and same and other.request_id != made.request_id:
                raise Violation(
                    "a_key_names_one_request", f"{made.key!r} is that of {_named(other)} and {_named(made)}"
                )

    def a_request_is_settled_once(self, before: ScalingRequest, after: ScalingRequest) -> None:
        asked = [(one.run_id, one.group, one.replicas, one.by, one.reason, one.key) for one in (before, after)]
        is_later = before.state in OPEN_SCALING and (
            after.state is ScalingState.REFUSED or _ORDER.index(after.state) > _ORDER.index(before.state)
        )
        if asked[0] != asked[1] or not is_later:
            raise Violation("a_request_is_settled_once", f"{before} became {after}")

    def one_request_of_a_group_is_open(self, made: ScalingRequest) -> None:
        """At the end of every transaction: a newer request has caused all others to be refused."""
        mine = [
            one
            for one in self._tables.scalings.values()
            if (one.run_id, one.group) == (made.run_id, made.group) and one.state in OPEN_SCALING
        ]
        if len(mine) > 1:
            raise Violation("one_request_of_a_group_is_open", " and ".join(map(_named, mine)))

    def what_is_done_was_done_before(self, request: ScalingRequest) -> None:
        if request.request_id not in self._met:
            raise Violation(
                "what_is_done_was_done_before", f"{_named(request)} is called done, and nothing was moved for it"
            )

    def no_request_stays_open(self) -> None:
        """After the end, when a live executor has looked."""
        for request in self._tables.scalings.values():
            if request.state in OPEN_SCALING:
                raise Violation("no_request_stays_open", _named(request))

    def _as_it_is(self, request: ScalingRequest) -> ScalingRequest:
        return self._tables.scalings[request.run_id, request.request_id]


def _named(request: ScalingRequest) -> str:
    return f"request {request.request_id} for {request.replicas} replica(s) of {request.group}"
