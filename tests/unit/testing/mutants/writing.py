"""Broken write actions, on their way to external systems."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.testing.simulator.driver.commits import pending_write
from airflow_logio.testing.simulator.driver.driver_state import Option
from airflow_logio.testing.simulator.driver.simulated_driver import Driver
from airflow_logio.testing.simulator.driver.threads import At, Writer
from tests.unit.testing.mutants.registry import mutant


@mutant("linear")
def write_numbers_per_incarnation(patch: pytest.MonkeyPatch) -> None:
    """Write actions are numbered from one by every incarnation, instead of from what is stored."""
    restore = OperatorProtocol.restore

    def from_one(self: OperatorProtocol, data: bytes) -> None:
        restore(self, data)
        self.context.next_write = {}

    patch.setattr(OperatorProtocol, "restore", from_one)


class WritesEarly(Driver):
    def _take(self, about: object, many: int, outcome: str) -> bool:
        taken = super()._take(about, many, outcome)
        if taken:
            for effect in self.committer.taken:
                if isinstance(effect, fx.LogWrite):
                    self._hand(pending_write(effect))
        return taken

    def _hand_over(self, about: object, many: int, outcome: str) -> bool:
        self.committer.taken = [effect for effect in self.committer.taken if not isinstance(effect, fx.LogWrite)]
        return super()._hand_over(about, many, outcome)


@mutant("linear", driver=WritesEarly)
def written_before_its_commit(_patch: pytest.MonkeyPatch) -> None:
    """A write action runs while the transaction that logs it is under way."""


class MarksEarly(Driver):
    def _take_writes(self, about: object, many: int, outcome: str) -> bool:
        taken = super()._take_writes(about, many, outcome)
        writer = self._writer(about)
        if taken and writer is not None:
            writer.at = At.DONE
        return taken


@mutant("linear", driver=MarksEarly)
def done_before_it_is_applied(_patch: pytest.MonkeyPatch) -> None:
    """A write action is marked done when it is handed to the external system."""


class LeavesWritersBehind(Driver):
    """Writers of the old epoch go on while the new one is rebuilt."""

    def _join(self, about: object, many: int, outcome: str) -> bool:
        old = [writer for writer in self.writers.values() if writer.at is At.TAKEN]
        joined = super()._join(about, many, outcome)
        if joined:
            self.ghosts = old
        return joined

    ghosts: Sequence[Writer] = ()

    def options(self) -> list[Option]:
        return super().options() + [("ghost", index) for index, _ in enumerate(self.ghosts)]

    def perform(self, verb: str, about: object, many: int, outcome: str) -> bool:
        if verb != "ghost":
            return super().perform(verb, about, many, outcome)
        if not isinstance(about, int) or about >= len(self.ghosts):
            return False
        writer = self.ghosts[about]
        if self._attempt(writer):
            self.ghosts = [ghost for ghost in self.ghosts if ghost is not writer]
        return True


@mutant("checkable", driver=LeavesWritersBehind)
def rebuilt_before_writers_are_joined(_patch: pytest.MonkeyPatch) -> None:
    """A group rebuilds itself while a writer thread of its old epoch is still writing: both ask, both write."""


class WritesWithoutAsking(Driver):
    def _attempt(self, writer: Writer, many: int = 1) -> bool:
        self.world.systems[writer.key[1]].write(writer.key, writer.taken)
        return True


@mutant("checkable", driver=WritesWithoutAsking)
def replay_without_asking(_patch: pytest.MonkeyPatch) -> None:
    """Pending write actions of a checkable system are written again without asking which were applied."""
