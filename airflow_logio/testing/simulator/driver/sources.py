"""The readers of a simulated driver's sources: their orders, what they deliver, and what they discard."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.commit import DiscardOrder, ReadOrder, SourceOrder
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.values import Port
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.driver.ports import Epoch
from airflow_logio.testing.simulator.plan import Batch
from airflow_logio.testing.simulator.stepwise import Steps, finished
from airflow_logio.testing.simulator.violation import Violation


class StoredEffect(NamedTuple):
    """The path of a payload names the incarnation that wrote it (design D6)."""

    group: str
    incarnation: int
    rest: str

    @property
    def path(self) -> str:
        return f"{self.group}/{self.incarnation}/{self.rest}"

    @classmethod
    def of(cls, path: str) -> StoredEffect:
        group, incarnation, rest = path.split("/", 2)
        return cls(group, int(incarnation), rest)


@dataclass(slots=True)
class Source:
    """A reading thread: how far it has read, and what the group has not used yet."""

    action: int
    offset: int
    inbox: deque[Batch] = field(default_factory=deque)
    stored: str | None = None
    """Reference of the stored effect of a non-replayable read action; from the log, or just obtained."""
    obtained: tuple[str, int] | None = None
    """The effect is stored, but the group has not noted it: (reference, records)."""
    exhausted: bool = False
    evaluating: deque[Steps[Batch]] = field(default_factory=deque)
    """With datasets: what was read and is being evaluated, one batch after the other."""
    storing: Steps[tuple[str, int]] | None = None
    """With datasets: the effect that is being stored."""
    handed_over: bool = False
    """The group knows that the stored effect is used up, but not yet what follows."""

    @property
    def may_read(self) -> bool:
        return not self.exhausted and self.obtained is None and self.storing is None

    @property
    def has_more(self) -> bool:
        """Something was read, or may be, that the group has not used."""
        return bool(self.inbox or self.evaluating) or not self.exhausted

    def read(self, driver: Epoch, name: str, many: int) -> None:
        """Continue to read, from the external system or from the stored effect."""
        if driver.evaluating is not None:
            driver.evaluating.read(name, self, many)
            return
        if not driver.protocol.source(name).spec.replayable and self.stored is None:
            self.obtained = self._obtain(driver, name)
            return
        for _ in range(many):
            batch = self._batch(driver, name)
            if batch is None:
                self.exhausted = True
                break
            self.inbox.append(batch)
            self.offset = batch.next_offset

    def _obtain(self, driver: Epoch, name: str) -> tuple[str, int]:
        """Obtain a non-replayable read action: its whole present effect goes to the payload store under a new name."""
        script = driver.world.scenario.sources[name]
        reading = driver.world.count_reading(driver, name, driver.protocol.source(name).action_id)
        batches: list[Batch] = []
        offset = 0
        while (batch := script.batch(self.action, offset, reading)) is not None:
            batches.append(batch)
            offset = batch.next_offset
        ref = StoredEffect(driver.plan.name, driver.number, f"{driver.epochs}/{name}.{reading}").path
        driver.world.effects[ref] = batches
        return ref, len(batches)

    def _batch(self, driver: Epoch, name: str) -> Batch | None:
        """The next batch, read from outside or from the stored effect."""
        if self.stored is None:
            return driver.world.scenario.sources[name].batch(self.action, self.offset, 0)
        effects = driver.world.effects
        if self.stored not in effects:
            if driver.is_replaced:
                raise LogInconsistent(f"{self.stored} is gone")
            raise Violation("a_stored_effect_is_kept", f"{name} needs {self.stored}, which is discarded")
        return next((batch for batch in effects[self.stored] if batch.next_offset > self.offset), None)

    def advance(self, many: int) -> bool:
        """Take what is being stored or evaluated further."""
        if self.storing is not None:
            self.obtained = finished(self.storing, many)
            self.storing = None if self.obtained else self.storing
        elif self.evaluating:
            if (batch := finished(self.evaluating[0], many)) is not None:
                self.evaluating.popleft()
                self.inbox.append(batch)
        else:
            return False
        return True


class Reading:
    """The readers of one epoch. Each method that gets an `Action` is a step, as in `SimulatedDriver`."""

    def __init__(self, driver: Epoch) -> None:
        self._driver = driver
        self.sources: dict[str, Source] = {}
        self._recovered: set[str] = set()
        """Sources that have had their first order."""
        self.drops: list[tuple[str, int, str]] = []
        """(source, action, reference): stored effects to discard."""
        self.dropped: set[tuple[str, int]] = set()
        """(source, action) of discarded effects that no commit has reported yet."""

    def ask(self, orders: Iterable[SourceOrder]) -> None:
        """Give the readers their orders. A stream that has ended meanwhile is read no further; none of a scenario forgets."""
        for order in orders:
            name = order.operator
            if isinstance(order, DiscardOrder):
                ref = order.ref or dict(self._driver.protocol.source(name).to_drop())[order.action_id]
                self.drops.append((name, order.action_id, ref))
            elif isinstance(order, ReadOrder) and self._driver.loop.reads_on(name):
                self._check_columns(name, order)
                self.sources[name] = Source(order.action_id - 1, order.offset, stored=order.stored)

    def drain(self, name: str, *, cut_short: bool) -> None:
        """A reader that is not cut short brings the rest of its stored effect, and is told then that it ends."""
        if cut_short:
            self.sources.pop(name, None)

    def _has_ranges(self, name: str) -> bool:
        return self._driver.evaluating is not None and self._driver.evaluating.has_ranges(name)

    def _check_columns(self, name: str, order: ReadOrder) -> None:
        """A recovered source knows the columns of what its predecessors have logged, and of nothing else."""
        if name in self._recovered or not self._has_ranges(name):
            return
        self._recovered.add(name)
        (output,) = self._driver.protocol.source(name).spec.outputs
        logged, _ = self._driver.loop.last_sent(Port(name, output))
        if (order.sent_schema is not None) != (logged > 0):
            told = "none" if order.sent_schema is None else "some"
            raise Violation(
                "columns_outlive_the_driver", f"{name} has sent {logged} events; of columns, its reader is told {told}"
            )

    def read(self, step: Action) -> bool:
        """The source's thread reads more, from the external system or from the stored effect of its read action."""
        name = str(step.about)
        source = self.sources.get(name)
        if not self._driver.is_running or source is None or not source.may_read:
            return False
        source.read(self._driver, name, step.many)
        return True

    def advance(self, step: Action) -> bool:
        """The source's thread takes what it has read through the chain behind it."""
        source = self.sources.get(str(step.about))
        return self._driver.is_running and source is not None and source.advance(step.many)

    def note_effect(self, step: Action) -> bool:
        name = str(step.about)
        source = self.sources.get(name)
        if not self._driver.observes() or source is None or source.obtained is None:
            return False
        self._driver.loop.store_effect(name, *source.obtained, self._driver.now)
        source.stored, source.obtained = source.obtained[0], None
        return True

    def emit(self, step: Action) -> bool:
        name = str(step.about)
        source = self.sources.get(name)
        if not self._driver.observes() or source is None or not source.inbox:
            return False
        outputs = self._driver.protocol.source(name).spec.outputs
        for _ in range(min(step.many, len(source.inbox))):
            batch = source.inbox.popleft()
            ports = outputs if batch.records or self._driver.evaluating is not None else ()
            emits = [Emit(port, batch.payload, batch.records, None, batch.about) for port in ports]
            schema = batch.payload.schema if self._has_ranges(name) else None
            self._driver.loop.emit(name, emits, batch.next_offset, self._driver.now, schema)
        return True

    def end_source(self, step: Action) -> bool:
        """The reader has no more records. For a stored effect it reports that first, and then what follows."""
        name = str(step.about)
        source = self.sources.get(name)
        if not self._driver.observes() or source is None or source.has_more:
            return False
        if source.stored is not None and not source.handed_over:
            source.handed_over = True
            self._driver.loop.used_whole(name, self._driver.now)
            return True
        del self.sources[name]
        following = self._driver.world.scenario.sources[name].actions[source.action + 1 :]
        self._driver.loop.end_read(name, following[0] if following else None, self._driver.now)
        return True

    def discard(self, step: Action) -> bool:
        """Discard the stored effect, after the commit that logged its last event. Then event r is removed."""
        if not self._driver.is_running or step.about not in self.drops:
            return False
        name, action_id, ref = drop = next(drop for drop in self.drops if drop == step.about)
        self.drops.remove(drop)
        if self._driver.evaluating is not None:
            self._driver.evaluating.discard(ref)
        self._driver.world.effects.pop(ref, None)
        self._driver.loop.discarded(name, action_id, self._driver.now)
        self.dropped.add((name, action_id))
        return True
