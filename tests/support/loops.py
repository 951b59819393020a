"""A loop over a group in memory, with its queues and no thread, for tests of the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import CommitQueue, SourceOrder
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.job_queue import JobQueue
from airflow_logio.protocol.logic import OperatorSpec
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.values import Port
from airflow_logio.protocol.writes import WriteQueue
from tests.support.logics import of, serialized

NOTHING = Recovered({}, (), (), ())
STORED, QUEUE = "effects/1", {"queue": 1}


class NoGarbage:
    overdue = False

    def due(self, step: fx.Effects) -> fx.Effects:
        return []

    def is_overdue(self) -> bool:
        return self.overdue


class Readers:
    """They write down what they are told."""

    def __init__(self, told: list[object]) -> None:
        self.told = told
        self.orders: list[SourceOrder] = []

    def ask(self, orders: Iterable[SourceOrder]) -> None:
        self.orders = list(orders)
        self.told += self.orders

    def drain(self, name: str, *, cut_short: bool) -> None:
        self.told.append((name, "cut short" if cut_short else "to its end"))


class Commits(CommitQueue):
    """It writes down when a step is closed."""

    def __init__(self, told: list[object]) -> None:
        super().__init__()
        self._told = told

    def add(self, effects: fx.Effects) -> None:
        self._told.append("a step is closed")
        super().add(effects)


class Epoch:
    """A loop over a group, with its queues and no thread. `told` is what happens outside the loop, in order."""

    def __init__(
        self,
        *specs: OperatorSpec,
        first: Mapping[str, Any] | None = None,
        compares: bool = False,
        receivers: Mapping[Port, Sequence[Port]] = MappingProxyType({}),
    ) -> None:
        outputs = [Port(spec.name, port) for spec in specs for port in spec.outputs]
        elsewhere = {port: [Port("elsewhere", "in")] for port in outputs}
        protocol = GroupProtocol(specs, {**elsewhere, **receivers})
        self.told: list[object] = []
        self.readers = Readers(self.told)
        self.commits = Commits(self.told)
        self.writers = {
            (spec.name, "wh"): WriteQueue(spec.name, "wh", compares=compares, holds=spec.closes)
            for spec in specs
            if spec.inputs
        }
        self.garbage = NoGarbage()
        jobs = JobQueue(protocol, [], lambda _: (1, 0))
        self.loop = GroupLoop(
            protocol, self.commits, self.writers, self.readers, jobs, self.garbage, {"source": first or {}}
        )

    @property
    def orders(self) -> list[SourceOrder]:
        """What the readers were asked for last."""
        return self.readers.orders

    def begun(
        self,
        *,
        drains: bool = False,
        recovered: Recovered = NOTHING,
        start_threads: Callable[[], None] = lambda: None,
    ) -> Epoch:
        self.loop.begin(recovered, lambda event: event, start_threads, drains=lambda: drains)
        return self

    def commit(self) -> fx.Effects:
        """Everything that is queued, committed and handed over."""
        done: fx.Effects = []
        while self.commits.steps:
            self.commits.take(lambda _: 0)
            effects = serialized(self.commits.taken)
            self.commits.encoded(effects)
            self.commits.committed()
            self.loop.hand_over(self.commits.peek())
            self.commits.handed_over()
            done += effects
        return done


def source(*, replayable: bool = False) -> Epoch:
    return Epoch(OperatorSpec("source", (), ("out",), None, replayable=replayable), first=QUEUE)


def drained(epoch: Epoch) -> list[object]:
    """What the readers hear of a drain."""
    epoch.told.clear()
    epoch.loop.drain(0.0)
    return list(epoch.told)


def reading() -> Epoch:
    """A source whose effect is stored and logged so."""
    epoch = source().begun()
    epoch.commit()
    epoch.loop.store_effect("source", STORED, 1, 0.0)
    epoch.loop.close()
    epoch.commit()
    return epoch


def states(effects: fx.Effects) -> Recovered:
    """What recovery reads after these effects, the last state of an operator being the one that stands."""
    return Recovered({effect.operator: effect.data for effect in of(fx.StoreState, effects)}, (), (), ())
