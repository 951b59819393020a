"""The writers of a simulated driver: each applies its group's write actions at one connection, a step at a time.

`protocol/writes.py` decides in which order a writer takes its steps; the threads of `driver/` run the same queue. A call
that could be cut off or overtaken in the middle is two steps here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from airflow_logio.protocol.external_rules import compare
from airflow_logio.protocol.writes import HeldGroup, PendingWrite, WriteQueue, WriterKey, WriteStep
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.datasets import DatasetEpoch
from airflow_logio.testing.simulator.driver.ports import Epoch
from airflow_logio.testing.simulator.external_systems import THIS_RUN, Attempt, ExternalSystem, Guarantee
from airflow_logio.testing.simulator.watch.log_watch import LogWatch

PAGE_BYTES = 256
"""A few write actions of a simulated day."""


class SimulatedWriter(WriteQueue):
    """A writer, and what it knows about its last attempt. It is a `Client` of its system."""

    tried = False
    """It has tried to apply what it has taken, but does not know the outcome."""
    attempt: Attempt | None = None
    """The attempt under way."""
    kept: Any = None

    def __init__(self, driver: Epoch, key: WriterKey, system: ExternalSystem) -> None:
        closes = any(spec.closes for spec in driver.operators if spec.name == key[0])
        super().__init__(*key, compares=system.guarantee is Guarantee.CONDITIONAL, holds=closes)
        self._driver = driver
        self._system = system

    # --- as its system sees it ----------------------------------------------------------------------------------------

    @property
    def watch(self) -> LogWatch:
        return self._driver.world.watch

    @property
    def run_uid(self) -> str:
        return self._driver.world.run.uid

    @property
    def datasets(self) -> DatasetEpoch | None:
        return self._driver.evaluating

    def token(self) -> int:
        return self._driver.token(self.key[0])

    def loaded(self) -> Sequence[PendingWrite]:
        if self.group is not None:
            return self._from_log(self.group)
        evaluating = self._driver.evaluating
        return self.taken if evaluating is None else [evaluating.loaded(write) for write in self.taken]

    def _from_log(self, group: HeldGroup) -> Sequence[PendingWrite]:
        """Held write actions are numbers here. The log has their bodies, and gives them to the newest epoch only."""
        writes: list[PendingWrite] = []
        while (number := group.first - 1 + len(writes)) < group.last - 1:
            writes += self._driver.session.held_writes(self.key, number, group.last - 1, max_bytes=PAGE_BYTES)
        return [*writes, *self.taken]

    def liveness(self) -> Callable[[], bool]:
        """It is alive if its driver is, and has not joined it. Weak references: the locks of a database must not keep a
        driver in memory."""
        of_driver, of_writer = ref(self._driver), ref(self)

        def is_alive() -> bool:
            alive = of_driver()
            return alive is not None and alive.is_alive and of_writer() is not None

        return is_alive

    # --- its steps ----------------------------------------------------------------------------------------------------

    def begin(self, actions: int) -> None:
        """Take the next group of actions."""
        self.take(actions)
        self.tried, self.attempt = False, None

    def act(self, many: int) -> bool:
        """Take up to `many` steps of an attempt. True if the system has now applied everything that was taken."""
        if self.attempt is None:
            self.attempt = self._system.begin(self)
        return self.attempt.advance(many)

    def look(self) -> None:
        """Compare the marker with the log, before anything is applied."""
        row = self._system.marker_row(THIS_RUN, self.key)
        assert self.log_end is not None
        compare(*self.key, self.token(), row, self.log_end)

    def lose_answer(self) -> None:
        """Everything is applied, but the answer is lost: the writer tries again."""
        self.tried, self.attempt = True, None

    def give_up(self) -> None:
        """The connection breaks: a transaction under way is rolled back."""
        if self.attempt is not None and not self.attempt.break_off():
            self.attempt = None


class SimulatedWriters(dict[WriterKey, SimulatedWriter]):
    """The writers of one epoch. No plan names the connections that operators write to: a lookup makes the writer."""

    def __init__(self, driver: Epoch) -> None:
        super().__init__()
        self._driver = driver

    def __missing__(self, key: WriterKey) -> SimulatedWriter:
        self[key] = SimulatedWriter(self._driver, key, self._driver.world.systems[key[1]])
        return self[key]

    def _of(self, about: object) -> SimulatedWriter | None:
        return self.get(about) if isinstance(about, tuple) else None

    def take_writes(self, step: Action) -> bool:
        writer = self._of(step.about)
        if not self._driver.is_running or writer is None or writer.wants is not None or not writer.pending:
            return False
        writer.begin(step.many)
        return True

    def apply(self, step: Action) -> bool:
        """Take up to `many` steps of an attempt at the external system.

        If the steps are enough, everything is applied; with outcome ``lost``, the answer is then lost. With outcome
        ``fails``, the connection breaks.
        """
        writer = self._of(step.about)
        if writer is not None and writer.wants is WriteStep.COMPARE:
            return self._compare(writer, step.outcome)
        if writer is None or writer.wants is not WriteStep.APPLY:
            return False
        if step.outcome == "fails":
            writer.give_up()
        elif writer.act(step.many):
            writer.lose_answer() if step.outcome == "lost" else writer.applied()
        return True

    def _compare(self, writer: SimulatedWriter, outcome: str) -> bool:
        """Look at the marker, and tell the loop. With any outcome, the answer does not come, and it is asked again."""
        if not self._driver.is_running:
            return False
        if not outcome:
            writer.look()
            self._driver.loop.compared(writer.compared(), self._driver.now)
        return True

    def note_writes(self, step: Action) -> bool:
        writer = self._of(step.about)
        if not self._driver.is_running or writer is None or writer.wants is not WriteStep.REPORT:
            return False
        self._driver.loop.applied(writer.report(), self._driver.now)
        return True
