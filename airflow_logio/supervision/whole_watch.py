"""Watching a group with all its drivers: its own, or those of its replicas (Section 7.1).

Of an ordinary group this is the group itself. A replicated one has ended only when every slot of it is done: replicas that
are not in use come back when they are asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import CONCLUDED, GroupState
from airflow_logio.status.whole_group import deciding, members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.group_watch import GroupWatcher, Observation


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one look has seen of all drivers of a group; nothing if the log could not be asked."""

    observations: Mapping[str, Observation] = field(default_factory=dict)
    """Name in the log → what was seen."""
    done: bool = True
    """False while slots of a replicated group are left of which no replica is at work."""

    @property
    def statuses(self) -> list[GroupStatus]:
        return [one.status for one in self.observations.values() if one.status is not None]

    @property
    def decides(self) -> Observation | None:
        """The observation that stands for all; None if nothing is known."""
        if not self.statuses:
            return None
        return self.observations[deciding(self.statuses).group]

    @property
    def state(self) -> GroupState | None:
        """State of the group as a whole: `FINISHED` if all its work is done, `RETIRED` while it is scaled to zero."""
        one = self.decides
        if one is None or one.state not in CONCLUDED:
            return None if one is None else one.state
        return GroupState.FINISHED if self.done else GroupState.RETIRED

    @property
    def is_dead(self) -> bool:
        """Whether a driver is dead, whatever the others are."""
        return any(one.is_dead for one in self.observations.values())

    @property
    def left_to_standby(self) -> bool:
        """Whether a driver is dead whose standby is about to take its place."""
        return any(one.left_to_standby for one in self.observations.values())

    @property
    def incarnations(self) -> dict[str, int]:
        return {status.group: status.incarnation for status in self.statuses}


class WholeWatcher:
    """One observer of all drivers of a group. Call `poll` about once per second: one query, whatever the replicas."""

    def __init__(self, store: LogStore, run: Run, group: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`group` may be one replica: it has ended when every slot of its group is done."""
        self._store = store
        self._run = run
        self._group = group
        self._clock = clock
        self._watchers = {
            name: GroupWatcher(store, run.run_id, name, run.spec.lease, clock=clock) for name in members_of(run, group)
        }

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self._watchers)

    def poll(self) -> Sighting:
        """Look once; declares drivers dead in the log that are (compare-and-set on the incarnation)."""
        asked_at = self._clock()  # what the answer says held then, however late it comes
        try:
            return self.judge(self._store.groups(self._run.run_id), asked_at)
        except LogUnavailable as error:
            return self.not_answered(str(error))

    def not_answered(self, why: str) -> Sighting:
        """The log could not be asked."""
        for watcher in self._watchers.values():
            watcher.not_answered(why)
        return Sighting()

    def judge(self, statuses: Sequence[GroupStatus], asked_at: float) -> Sighting:
        """What follows from the statuses of all groups of the run, asked for at `asked_at` on this watcher's clock.

        Raises `LogUnavailable`.
        """
        found = {status.group: status for status in statuses}
        seen = {name: watcher.judge(found[name], asked_at) for name, watcher in self._watchers.items()}
        if any(one.status is None for one in seen.values()):
            return Sighting()  # what is left does not stand for all
        whole = replicated_group(self._group)
        if whole not in self._run.spec.replicated or any(one.state not in CONCLUDED for one in seen.values()):
            return Sighting(seen)
        states = {found[name].state for name in self._run.spec.replicated[whole].replicas}
        if GroupState.FINISHED not in states and not states <= CONCLUDED:
            return Sighting(seen, done=False)  # others are at work: nothing needs to be asked
        slots = self._store.slots(self._run.run_id, whole)
        return Sighting(seen, done=all(slot.done for slot in slots))
