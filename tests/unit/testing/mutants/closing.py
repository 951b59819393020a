"""Broken closings: of a writer whose actions are held until the log has all of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.scope_rules import ScopeContender
from airflow_logio.protocol.writes import Held, HeldGroup, PendingWrite, WriteQueue
from airflow_logio.testing.memory_log.session import MemoryGroupSession
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.driver.writing import SimulatedWriter
from tests.simulator.days import NOT_OLDER, DayAttempt
from tests.unit.testing.mutants.registry import mutant

PARTLY = "a_day_is_the_old_one_or_the_whole_new_one"


@mutant("day_in_three", PARTLY, "no_group_is_parked")
def closed_before_its_end(patch: pytest.MonkeyPatch) -> None:
    """A writer is closed when nothing of it is under way, though its inputs have not ended."""
    drained = OperatorProtocol.is_drained

    def at_rest(self: OperatorProtocol) -> bool:
        if not self.spec.closes:
            return drained(self)
        return bool(self.context.marks) and not (self.context.finished or self.open or self.triggered)

    patch.setattr(OperatorProtocol, "is_drained", at_rest)
    patch.setattr(GroupProtocol, "to_close", lambda self: [n for n in self.closers if self.operators[n].is_drained()])


class AsksNothing(SimulatedDriver):
    """It closes what has come to its end, whatever the log says of it."""

    def _close_writer(self, step: Action) -> bool:
        if not self.is_running or not (found := self.loop.to_close()):
            return False
        self.loop.close_writer(found[0], self.now)
        return True


@mutant("day_in_two", PARTLY, driver=AsksNothing)
def the_log_is_not_asked(_patch: pytest.MonkeyPatch) -> None:
    """The question is left out: Input Sets that are set aside are missing from the day."""


@mutant("day_in_one", PARTLY)
def asked_with_an_open_step(patch: pytest.MonkeyPatch) -> None:
    """The log is asked before it has what the group has set aside: that is in a step which is not committed."""

    def at_once(self: GroupLoop) -> list[str]:
        return self.protocol.to_close() if self.protocol.closers else []

    def options(driver: SimulatedDriver) -> bool:
        return bool(at_once(driver.loop))

    close = SimulatedDriver._close

    def asks_first(self: SimulatedDriver, step: Action) -> bool:
        if self.is_running and options(self) and not self.short:
            return self._close_writer(step)
        return close(self, step)

    patch.setattr(GroupLoop, "to_close", at_once)
    patch.setattr(SimulatedDriver, "_close", asks_first)


@mutant("day_in_one", "a_group_parks_for_what_is_set_aside")
def parked_in_an_epoch_that_is_void(patch: pytest.MonkeyPatch) -> None:
    """The parking compares the incarnation, but not the epoch: a retry has brought what was missing, and nothing says so."""
    patch.setattr(MemoryGroupSession, "park_short", MemoryGroupSession.park)


@mutant("day_in_three", PARTLY)
def applied_before_its_closing(patch: pytest.MonkeyPatch) -> None:
    """Write actions are applied as they come."""
    begin = WriteQueue.__init__

    def holds_nothing(
        self: WriteQueue, operator: str, connection: str, *, compares: bool = False, holds: bool = False
    ) -> None:
        begin(self, operator, connection, compares=compares)

    recover = MemoryGroupSession.recover
    patch.setattr(WriteQueue, "__init__", holds_nothing)
    patch.setattr(MemoryGroupSession, "recover", lambda self, operators, held=(): recover(self, operators))


@mutant("day_in_three", PARTLY)
def a_held_group_in_two_transactions(patch: pytest.MonkeyPatch) -> None:
    """What was held is applied a half at a time."""
    loaded = SimulatedWriter.loaded

    def half(self: SimulatedWriter) -> Sequence[PendingWrite]:
        writes = loaded(self)
        return writes[: len(writes) // 2] if self.group is not None else writes

    patch.setattr(SimulatedWriter, "loaded", half)


@mutant("day_in_three", PARTLY, "no_group_is_parked")
def held_anew_in_each_epoch(patch: pytest.MonkeyPatch) -> None:
    """What was in the log when an epoch began is not held in it: only what comes later is."""
    add = WriteQueue.add

    def forgets(
        self: WriteQueue,
        writes: Sequence[PendingWrite],
        *,
        recovered: bool = False,
        log_end: int = 0,
        held: HeldGroup | None = None,
    ) -> None:
        if not recovered or self._held is None:
            add(self, writes, recovered=recovered, log_end=log_end, held=held)
        else:
            self.log_end = log_end
            self._held = Held()

    patch.setattr(WriteQueue, "add", forgets)


@mutant("day_in_three", "event_ids_are_gapless", "no_group_is_parked")
def its_number_is_given_out_again(patch: pytest.MonkeyPatch) -> None:
    """A driver that is rebuilt numbers write actions from the one that was last."""
    restore = OperatorProtocol.restore

    def one_less(self: OperatorProtocol, data: bytes) -> None:
        restore(self, data)
        if self.spec.closes:
            self.context.next_write = {name: max(2, number - 1) for name, number in self.context.next_write.items()}

    patch.setattr(OperatorProtocol, "restore", one_less)


@mutant("day_in_one", NOT_OLDER, "no_group_is_parked")
def closed_by_a_zombie_of_the_replaced_run(patch: pytest.MonkeyPatch) -> None:
    """A run that has claimed the day once may close it, though a younger one has claimed it since."""
    patch.setattr(ScopeContender, "check_close", lambda _self, _row: None)


@mutant("day_in_one", NOT_OLDER, "no_group_is_parked")
def claimed_by_an_older_run(patch: pytest.MonkeyPatch) -> None:
    """The order of the runs is not looked at: the last one to begin has the day."""
    patch.setattr(ScopeContender, "check_claim", lambda _self, _row: None)


@mutant("day_in_one", NOT_OLDER, "no_group_is_parked")
def scope_looked_at_without_its_lock(patch: pytest.MonkeyPatch) -> None:
    """Between the look of an older run and its commit, a younger one claims the day, or closes it."""
    patch.setattr(DayAttempt, "lock_scope", lambda _self: True)
