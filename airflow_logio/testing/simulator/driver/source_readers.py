"""The readers of a simulated driver's sources: their orders, what they deliver, and what they discard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_logio.protocol.commit import DiscardOrder, ReadOrder, SourceOrder
from airflow_logio.protocol.logic import Emit
from airflow_logio.protocol.values import Port
from airflow_logio.testing.simulator.driver.threads import Source
from airflow_logio.testing.simulator.violation import Violation

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver


class Reading:
    """The readers of one epoch. Every method named by a verb is a step, as in `SimulatedDriver`."""

    def __init__(self, driver: SimulatedDriver) -> None:
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
        """Who recovers a source knows the columns of what its predecessors have logged, and of nothing else."""
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

    def read(self, about: object, many: int, _outcome: str) -> bool:
        """The source's thread reads more, from the external system or from the stored effect of its read action."""
        name = str(about)
        source = self.sources.get(name)
        if not self._driver.is_running or source is None or not source.may_read:
            return False
        source.read(self._driver, name, many)
        return True

    def advance(self, about: object, many: int, _outcome: str) -> bool:
        """The source's thread takes what it has read through the chain behind it."""
        source = self.sources.get(str(about))
        return self._driver.is_running and source is not None and source.advance(many)

    def note_effect(self, about: object, _many: int, _outcome: str) -> bool:
        name = str(about)
        source = self.sources.get(name)
        if not self._driver.observes() or source is None or source.obtained is None:
            return False
        self._driver.loop.store_effect(name, *source.obtained, self._driver.now)
        source.stored, source.obtained = source.obtained[0], None
        return True

    def emit(self, about: object, many: int, _outcome: str) -> bool:
        name = str(about)
        source = self.sources.get(name)
        if not self._driver.observes() or source is None or not source.inbox:
            return False
        outputs = self._driver.protocol.source(name).spec.outputs
        for _ in range(min(many, len(source.inbox))):
            batch = source.inbox.popleft()
            ports = outputs if batch.records or self._driver.evaluating is not None else ()
            emits = [Emit(port, batch.payload, batch.records, None, batch.about) for port in ports]
            schema = batch.payload.schema if self._has_ranges(name) else None
            self._driver.loop.emit(name, emits, batch.next_offset, self._driver.now, schema)
        return True

    def end_source(self, about: object, _many: int, _outcome: str) -> bool:
        """The reader has no more records. For a stored effect it reports that first, and then what follows."""
        name = str(about)
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

    def discard(self, about: object, _many: int, _outcome: str) -> bool:
        """Discard the stored effect, after the commit that logged its last event. Then event r is removed."""
        if not self._driver.is_running or about not in self.drops:
            return False
        name, action_id, ref = drop = next(drop for drop in self.drops if drop == about)
        self.drops.remove(drop)
        if self._driver.evaluating is not None:
            self._driver.world.watch.datasets.discards(self._driver, ref)
            self._driver.evaluating.payloads.remove([ref])
        self._driver.world.effects.pop(ref, None)
        self._driver.loop.discarded(name, action_id, self._driver.now)
        self.dropped.add((name, action_id))
        return True
