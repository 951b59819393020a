"""What a Dispatcher knows of the replicas behind it: which replica owns which slot, and how much waits there.

It is only a hint, some tenths of a second old: the log alone decides which replica owns a slot when an event is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from airflow_logio.dataflow.replication import Dispatcher
from airflow_logio.driver.backlog import ASK_EVERY_SECONDS, Backlog
from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.values import Port


class SlotRoutes:
    """Routes of one Dispatcher. Not thread-safe: it belongs to the group's loop.

    `backlogs` are those of its output ports, in the order of slots; `ask` reads the receivers' counters, `owners` the slots.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        backlogs: Sequence[Backlog],
        ask: Callable[[Sequence[Port]], Mapping[Port, tuple[int, int]]],
        owners: Callable[[], Sequence[Slot]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._waits_for_each = dispatcher.partition.keyed or dispatcher.ordered
        self._backlogs = list(backlogs)
        self._ask = ask
        self._owners = owners
        self._clock = clock
        self._asked_at = float("-inf")
        self._by_owner: dict[str | None, list[int]] = {None: list(range(len(self._backlogs)))}

    def replicas(self) -> Sequence[Sequence[int]]:
        """Slots with room, by the replica that owns them; all slots if none has room or none has an owner."""
        self._refresh()
        with_room = [
            mine
            for owner, slots in self._by_owner.items()
            if owner is not None and (mine := [slot for slot in slots if not self._backlogs[slot].is_over()])
        ]
        return with_room or [list(range(len(self._backlogs)))]

    def backlog(self, slot: int) -> int:
        """Events that were sent to the slot and not taken, as far as was asked."""
        return self._backlogs[slot].waiting()

    def is_full(self) -> bool:
        """Whether the Dispatcher must wait: for one slot where keys decide, else only when no slot has room.

        For one slot also where the Merger keeps the order: what overtakes it there is held in memory.
        """
        enough = any if self._waits_for_each else all
        if not enough(backlog.is_over() for backlog in self._backlogs):
            return False
        self._refresh()
        return enough(backlog.is_over() for backlog in self._backlogs)

    def _refresh(self) -> None:
        """One question for all slots, at most every tenth of a second."""
        if self._clock() - self._asked_at < ASK_EVERY_SECONDS:
            return
        self._asked_at = self._clock()
        try:
            counters = self._ask([receiver for backlog in self._backlogs for receiver in backlog.receivers])
            slots = self._owners()
        except LogUnavailable:
            return  # as far as is known, nothing has changed
        for backlog in self._backlogs:
            backlog.learn(counters)
        self._by_owner = {}
        for slot in slots:
            if not slot.done:
                self._by_owner.setdefault(slot.owner, []).append(slot.number)
