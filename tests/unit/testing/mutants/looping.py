"""A broken loop: in what order an epoch begins, what it forgets, and when it believes that it has finished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from airflow_logio.driver.back_pressure import Backlog
from airflow_logio.protocol import life
from airflow_logio.protocol.life import Life, LifeStep
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.values import Port
from airflow_logio.protocol.writes import Applied
from airflow_logio.store.records.run_records import BacklogBound
from airflow_logio.testing.memory_log.session import MemoryGroupSession
from airflow_logio.testing.simulator.driver import simulated_driver
from tests.unit.testing.mutants.registry import mutant


@mutant("spread", "every_schedule_ends", "only_the_replaced_are_fenced")
def opened_after_the_log_was_read(patch: pytest.MonkeyPatch) -> None:
    """The log is read, and only then the fence: what is committed in between is in neither memory."""
    patch.setattr(life, "START", (LifeStep.ASK_SLOTS, LifeStep.READ, LifeStep.OPEN, LifeStep.REBUILD))


@mutant("keyed", "every_schedule_ends")
def slots_asked_for_before_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A move between the question and the fence is not seen: two replicas work on a slot, or none does."""
    patch.setattr(life, "START", (LifeStep.ASK_SLOTS, LifeStep.OPEN, LifeStep.READ, LifeStep.REBUILD))


@mutant("linear", "no_group_is_parked", "event_ids_are_gapless")
def voided_epoch_keeps_its_memory(patch: pytest.MonkeyPatch) -> None:
    """An epoch that is void raises the epoch, and continues with what it has in memory."""
    stopped = Life.stopped

    def in_memory(self: Life) -> None:
        stopped(self)
        self._left = [LifeStep.OPEN]

    patch.setattr(Life, "stopped", in_memory)


@mutant("linear", "a_finished_group_holds_nothing")
def finished_with_writes_under_way(patch: pytest.MonkeyPatch) -> None:
    """A group finishes when its streams have ended, whatever its writers have not applied."""

    def at_once(self: GroupLoop) -> bool:
        return not self.finishing and self.protocol.is_finished() and not self.has_step and self._commits.is_idle()

    patch.setattr(GroupLoop, "is_finished", at_once)


@mutant("linear", "no_step_waits_for_ever")
def steps_are_never_due(patch: pytest.MonkeyPatch) -> None:
    """Assignments without an Output Set wait for company that may never come."""
    patch.setattr(GroupLoop, "is_due", lambda self, _now: self.wants_to_commit())


@mutant("linear", "a_finished_group_holds_nothing", "no_group_is_parked")
def pending_writes_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Write actions that were pending at recovery are not handed to their writers (Algorithm 8 left out)."""
    write = GroupLoop.write

    def only_new(self: GroupLoop, writes: object, *, recovered: bool = False, held: object = None) -> None:
        if not recovered:
            write(self, writes)  # type: ignore[arg-type]

    patch.setattr(GroupLoop, "write", only_new)


@mutant("linear", "a_finished_group_holds_nothing")
def success_is_not_logged(patch: pytest.MonkeyPatch) -> None:
    """The success of write actions is noted in memory, and not in the log."""

    def in_memory(self: GroupLoop, applied: Applied, _now: float) -> None:
        self._writers[applied.operator, applied.connection].settle(applied)

    patch.setattr(GroupLoop, "applied", in_memory)


@mutant("linear", "every_schedule_ends")
def held_up_for_ever(patch: pytest.MonkeyPatch) -> None:
    """A sender that back-pressure holds up does not hear that its receiver has caught up."""
    patch.setattr(Backlog, "learn", lambda _self, _counters: None)


@mutant("functions", "every_schedule_ends")
def held_up_by_what_is_not_done(patch: pytest.MonkeyPatch) -> None:
    """Back-pressure counts what a receiver has not done, not what it has not acknowledged: a large window waits for ever."""

    def done(self: MemoryGroupSession, receivers: Sequence[Port]) -> Mapping[Port, tuple[int, int]]:
        undone: Counter[Port] = Counter()
        for row in self._tables.events.rows.values():
            if row.status != "done":
                undone[Port(row.receiver, row.rec_port or "")] += 1
        found = acknowledged(self, receivers)
        return {port: (max(0, events - undone[port]), size) for port, (events, size) in found.items()}

    acknowledged = MemoryGroupSession.acknowledged
    patch.setattr(MemoryGroupSession, "acknowledged", done)
    patch.setattr(simulated_driver, "BOUND", BacklogBound(events=2))
