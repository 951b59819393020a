"""Invariants of requests to scale a group: how one ends, and what must have been done when it is called done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from airflow_logio.protocol.states import OPEN_SCALING, GroupState, ScalingState
from airflow_logio.store.records.run_records import ReplicatedShape
from airflow_logio.store.records.status_records import ScalingRequest
from airflow_logio.testing.memory_log.tables import ABSENT, GroupKey, Tables
from airflow_logio.testing.simulator.violation import Violation

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
