"""Broken write actions, on their way to external systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_logio.protocol import commit, writes
from airflow_logio.protocol.commit import CommitStep
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.writes import WriteStep
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.driver.options import Option
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.driver.writing import SimulatedWriter
from airflow_logio.testing.simulator.world import World
from tests.unit.testing.mutants.registry import mutant


@mutant("linear", "event_ids_are_gapless", "no_group_is_parked")
def write_numbers_per_incarnation(patch: pytest.MonkeyPatch) -> None:
    """Write actions are numbered from one by every incarnation, instead of from what is stored."""
    restore = OperatorProtocol.restore

    def from_one(self: OperatorProtocol, data: bytes) -> None:
        restore(self, data)
        self.context.next_write = {}

    patch.setattr(OperatorProtocol, "restore", from_one)


@mutant("linear", "a_write_action_is_logged_before_it_is_applied")
def handed_over_before_its_commit(patch: pytest.MonkeyPatch) -> None:
    """What a transaction lets go leaves the group while it is under way: write actions run that the log does not have."""
    patch.setattr(commit, "ORDER", (CommitStep.ENCODE, CommitStep.HAND_OVER, CommitStep.COMMIT))


@mutant("linear", "a_write_action_is_done_when_it_is_applied")
def done_before_it_is_applied(patch: pytest.MonkeyPatch) -> None:
    """A write action is reported done when it is handed to the external system."""
    patch.setattr(writes, "ORDER", (WriteStep.REPORT, WriteStep.APPLY))


GHOST: Any = "ghost"
"""A step that no driver has."""


class LeavesWritersBehind(SimulatedDriver):
    """Writers of the old epoch continue while the new one is rebuilt."""

    def _join(self, step: Action) -> bool:
        old = [writer for writer in self.writers.values() if writer.wants is WriteStep.APPLY and not writer.tried]
        joined = super()._join(step)
        if joined:
            self.ghosts = old
        return joined

    ghosts: Sequence[SimulatedWriter] = ()

    def perform(self, step: Action) -> bool:
        if step.verb != GHOST:
            return super().perform(step)
        if not isinstance(step.about, int) or step.about >= len(self.ghosts):
            return False
        writer = self.ghosts[step.about]
        if writer.act(1):
            self.ghosts = [ghost for ghost in self.ghosts if ghost is not writer]
        return True


class WithGhosts(World):
    driver_class = LeavesWritersBehind

    def options(self, driver: SimulatedDriver) -> list[Option]:
        assert isinstance(driver, LeavesWritersBehind)
        return super().options(driver) + [(GHOST, index) for index, _ in enumerate(driver.ghosts)]


@mutant("checkable", "destinations_are_those_of_a_run_without_failures", world=WithGhosts, rare=523)
def rebuilt_before_writers_are_joined(_patch: pytest.MonkeyPatch) -> None:
    """A group rebuilds itself while a writer thread of its old epoch is still writing: both ask, both write."""


@mutant("checkable", "destinations_are_those_of_a_run_without_failures")
def replay_without_asking(patch: pytest.MonkeyPatch) -> None:
    """Pending write actions of a checkable system are written again without asking which were applied."""

    def at_once(self: SimulatedWriter, _many: int) -> bool:
        self._system.write(self.key, self.taken)
        return True

    patch.setattr(SimulatedWriter, "act", at_once)
