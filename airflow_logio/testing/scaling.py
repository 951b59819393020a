"""Replicas of one schedule: which are in use, and what movers, supervisors and persons do to them.

A mover is whoever carries out a scaling request (`runtime/scaling.py`). It has no memory that counts: a launch is a claim,
a move is one transaction, so two movers, and movers that died before or after either, are only more of these actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records import ReplicatedShape
from airflow_logio.testing.plan import GroupPlan
from airflow_logio.testing.violation import Violation

if TYPE_CHECKING:
    from airflow_logio.testing.world import World


class Move(NamedTuple):
    """(slot, new owner), and replicas that retire with the move."""

    placement: tuple[tuple[int, str | None], ...]
    retire: tuple[str, ...] = ()


def applications(groups: Mapping[str, GroupPlan], shapes: Mapping[str, ReplicatedShape]) -> dict[str, GroupPlan]:
    """What is launched by itself: groups, and the replicas of those that have some, which share the plan and its weight."""
    found: dict[str, GroupPlan] = {}
    for name, plan in groups.items():
        if name not in shapes:
            found[name] = plan
            continue
        weight = plan.weight / max(shapes[name].initial, 1)
        found |= {one: replace(plan, name=one, replica_of=name, weight=weight) for one in shapes[name].replicas}
    return found


class Scaling:
    """`retired` are the replicas that are not in use, as the log says it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store
        self._run_id = world.run.run_id
        self.shapes = world.scenario.replicated
        self.retired = set(world.run.spec.unused_replicas())
        self.moved = 0
        """Slots that have changed owners."""

    def state(self, replica: str) -> GroupState:
        return self._store.group(self._run_id, replica).state

    # --- actions ------------------------------------------------------------------------------------------------------

    def launch(self, replica: str) -> bool:
        """A mover launches a retired replica. The claim waits for the fence row."""
        world = self._world
        if replica not in self.retired or world.is_locked(replica):
            return False
        try:
            with world.watch.launching():
                claim = self._store.claim(
                    self._run_id, replica, expected=world.incarnations[replica], reason="scaling", by_user=True
                )
        except ProtocolViolation:
            return False  # the run has finished while the mover was on its way
        self.retired.discard(replica)
        world.to_claim[replica] = False
        world.begin(replica, claim)
        return True

    def move(self, group: str, what: object) -> bool:
        """A mover's transaction. One that is refused changes nothing: a replica may have died or finished meanwhile."""
        assert isinstance(what, Move)
        if any(self._world.is_locked(name) for name in self.shapes[group].replicas):
            return False  # `ReplicaBusy`: a commit is under way
        try:
            self.moved += self._store.rescale(self._run_id, group, dict(what.placement), retire=what.retire)
        except ProtocolViolation:
            return False
        if left := [name for name in what.retire if self.state(name) is not GroupState.RETIRED]:
            raise Violation("who_retires_is_retired", f"{left} were retired, and are {self.state(left[0]).value}")
        self.retired.update(what.retire)
        return True

    def revive(self, replica: str) -> bool:
        """A supervisor that has seen the replica alive, and then dead, recovers it: it is not in use any more."""
        if replica not in self.retired or self._world.is_locked(replica):
            return False
        return self.is_not_recovered(replica)

    def is_not_recovered(self, replica: str) -> bool:
        try:
            self._store.claim(
                self._run_id, replica, expected=self._world.incarnations[replica], reason="simulated", by_user=False
            )
        except ProtocolViolation:
            return True
        raise Violation("a_retired_replica_is_launched_by_a_request_alone", f"{replica} was recovered")

    def end_run(self) -> bool:
        """Somebody asks whether the run has finished: the watch says whether the answer is right."""
        return self._store.finish_run(self._run_id)

    # --- questions ----------------------------------------------------------------------------------------------------

    def is_over(self) -> bool:
        """All slots are done, and the log knows it. A run that cannot be finished then never can be."""
        if not self.shapes:
            return True
        if any(not slot.done for group in self.shapes for slot in self._store.slots(self._run_id, group)):
            return False
        if not self.end_run():
            raise Violation("a_run_without_open_work_finishes", "every group and slot is done, and the run goes on")
        return True

    def needs(self, group: str) -> tuple[str, str, Move | None] | None:
        """What somebody has to do so that the run comes to its end: (group, verb, move); None while all slots have owners.

        As `wake_up` of `runtime/scaling.py`: slots without a replica get one. Where all slots are done, replicas that wait
        for some retire.
        """
        shape = self.shapes[group]
        slots = self._store.slots(self._run_id, group)
        states = {name: self.state(name) for name in shape.replicas}
        if all(slot.done for slot in slots):
            idle = [name for name, state in states.items() if state not in (GroupState.RETIRED, GroupState.FINISHED)]
            return (group, "move", Move((), tuple(idle))) if idle else None
        homeless = [slot.number for slot in slots if slot.owner is None]
        if not homeless:
            return None
        running = [name for name, state in states.items() if state is GroupState.RUNNING]
        if running:
            return group, "move", Move(tuple((number, running[0]) for number in homeless))
        on_its_way = [name for name in shape.replicas if name not in self.retired | self._world.finished]
        return None if on_its_way else (next(name for name in shape.replicas if name in self.retired), "launch", None)
