"""Broken recovery: what is read from the log, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from airflow_logio.protocol import group as group_module
from airflow_logio.protocol import source as source_module
from airflow_logio.protocol.commit import SourceOrder
from airflow_logio.protocol.context import ClosedInputSets, Context
from airflow_logio.protocol.effects import MarkDone
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.recovery import LoggedEvent, reload_order
from airflow_logio.protocol.source import SourceProtocol
from airflow_logio.protocol.values import Event, Status
from airflow_logio.testing.memory_log import MemoryLogStore, apply
from airflow_logio.testing.simulator.actions import Action, Verb
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.driver.sources import Reading
from airflow_logio.testing.simulator.world import World
from tests.unit.testing.mutants.registry import mutant


@mutant("linear", "an_event_is_used_once", "no_group_is_parked")
def filter_with_less_than(patch: pytest.MonkeyPatch) -> None:
    """The duplicate filter of Algorithm 2 Step 1 as printed: `<` where it must be `<=`."""

    def is_obsolete(self: Context, port: str, event_id: int) -> bool:
        return event_id < self.mark(port)

    patch.setattr(Context, "is_obsolete", is_obsolete)


@mutant("functions", "destinations_are_those_of_a_run_without_failures")
def triggering_during_recovery(patch: pytest.MonkeyPatch) -> None:
    """Reloaded events go through State Update and Triggering like new ones."""
    reload = OperatorProtocol.reload

    def as_if_new(self: OperatorProtocol, port: str, event: Event, inset_id: str) -> None:
        reload(self, port, event, inset_id)
        self.logic.assign(port, event, self.state)

    patch.setattr(OperatorProtocol, "reload", as_if_new)


@mutant("functions", "no_group_is_parked")
def reloads_some(patch: pytest.MonkeyPatch) -> None:
    """Of the events of an Input Set, only the first is reloaded, and generation marks done what it finds."""
    order = reload_order

    def firsts(acknowledged: Iterable[LoggedEvent], orders: Any) -> Sequence[LoggedEvent]:
        seen: dict[tuple[str, str | None], LoggedEvent] = {}
        for logged in order(acknowledged, orders):
            seen.setdefault((logged.receiver.operator, logged.inset_id), logged)
        return list(seen.values())

    patch.setattr(group_module, "reload_order", firsts)


@mutant("functions", "destinations_are_those_of_a_run_without_failures")
def done_count_unchecked(patch: pytest.MonkeyPatch) -> None:
    """The same, and the log marks done whatever rows it finds, without comparing their number with that of the step."""
    reloads_some(patch)

    def mark_done(self: Any, effect: MarkDone) -> None:
        self._tables.relog(self._tables.events.undone_of(self._run, effect.operator, effect.inset_id), Status.DONE)

    patch.setitem(apply._CHANGE, MarkDone, mark_done)


@mutant("functions", "closed_input_sets_stay_closed")
def closed_input_sets_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Which Input Sets are closed is not recovered: an event could join one that has been generated."""
    restore = OperatorProtocol.restore

    def without_closed(self: OperatorProtocol, data: bytes) -> None:
        restore(self, data)
        self.context.closed = ClosedInputSets()

    patch.setattr(OperatorProtocol, "restore", without_closed)


@mutant("synchronized", "destinations_are_those_of_a_run_without_failures")
def declared_order_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Recovery reloads round robin, though the operator has declared an order of its ports."""
    patch.setattr(group_module, "reload_order", lambda acknowledged, _orders: reload_order(acknowledged, {}))


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def lineage_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A reloaded event does not tell that its Input Set is in a lineage scope."""
    reload = OperatorProtocol.reload

    def without_lineage(self: OperatorProtocol, port: str, event: Event, inset_id: str) -> None:
        reload(self, port, event, inset_id)
        self._input_set(inset_id).lineage = False

    patch.setattr(OperatorProtocol, "reload", without_lineage)


def _tables(driver: SimulatedDriver) -> Any:
    store = driver.world.store
    assert isinstance(store, MemoryLogStore)
    return store.tables


class RecomputesMarks(SimulatedDriver):
    def _start_threads(self) -> None:
        rows = _tables(self).events.rows.values()
        for port in self.protocol.inputs_from_log():
            context = self.protocol.operators[port.operator].context
            used = [
                row.body.event_id
                for row in rows
                if (row.receiver, row.rec_port) == port and (row.inset_id is not None or row.status == "done")
            ]
            context.marks[port.name] = max(used, default=0)
        super()._start_threads()


@mutant("idempotent", "no_group_is_parked", driver=RecomputesMarks)
def marks_recomputed_from_rows(_patch: pytest.MonkeyPatch) -> None:
    """The mark of a port is the greatest event that EVENT_LOG shows as used: garbage collection takes it away."""


class RecomputesIds(SimulatedDriver):
    def _start_threads(self) -> None:
        bodies = _tables(self).bodies
        for name, operator in self.protocol.operators.items():
            for port in operator.spec.outputs:
                logged = [key.event_id for key in bodies if (key.operator, key.channel) == (name, port)]
                if port in operator.context.next_event:
                    operator.context.next_event[port] = max(logged, default=0) + 1
        super()._start_threads()


@mutant("idempotent", "a_context_never_goes_back", driver=RecomputesIds)
def ids_recomputed_from_rows(_patch: pytest.MonkeyPatch) -> None:
    """The next event id is one more than the greatest in the log, which may have been collected."""


class SkipsOne(SimulatedDriver):
    def _start_threads(self) -> None:
        super()._start_threads()
        self.cursors = {port: mark + bool(mark) for port, mark in self.cursors.items()}


@mutant("linear", "no_group_is_parked", driver=SkipsOne)
def cursor_behind_the_mark(_patch: pytest.MonkeyPatch) -> None:
    """After a recovery the channel begins one event too late."""


@mutant("feed", "a_stored_effect_is_kept")
def effect_dropped_in_the_loop(patch: pytest.MonkeyPatch) -> None:
    """Listing 1 as printed: the stored effect of a read action is discarded when its first batch is made."""
    emit, read = Reading.emit, Reading.read

    def dropping(self: Reading, step: Action) -> bool:
        emitted = emit(self, step)
        source = self.sources.get(str(step.about))
        if emitted and source is not None and source.stored is not None:
            self._driver.world.effects.pop(source.stored, None)
        return emitted

    def whole(self: Reading, step: Action) -> bool:
        source = self.sources.get(str(step.about))
        is_stored = source is not None and source.stored is not None
        return read(self, step._replace(many=1_000_000) if is_stored else step)

    patch.setattr(Reading, "emit", dropping)
    patch.setattr(Reading, "read", whole)


@mutant("feed", "a_complete_read_action_is_never_read_again", "no_group_is_parked")
def complete_action_read_again(patch: pytest.MonkeyPatch) -> None:
    """A non-replayable read action of which no event is logged yet is executed again, though its effect is stored."""
    order = Reading.ask

    def from_outside(self: Reading, orders: Iterable[SourceOrder]) -> None:
        order(self, orders)
        for name, source in self.sources.items():
            if self._driver.protocol.source(name).offset == 0 and not source.inbox:
                source.stored = None

    patch.setattr(Reading, "ask", from_outside)


class SweepsLiveOnes(World):
    def _sweep(self, _action: Action) -> bool:
        named = self.watch.references()
        self.effects = {path: effect for path, effect in self.effects.items() if path in named}
        return True


@mutant("feed", "a_stored_effect_is_kept", world=SweepsLiveOnes)
def sweep_of_a_living_incarnation(patch: pytest.MonkeyPatch) -> None:
    """The sweep removes every payload that the log does not name, also what a living driver has just stored."""
    from airflow_logio.testing.simulator import world

    patch.setitem(world._SUPERVISION, Verb.SWEEP, SweepsLiveOnes._sweep)


@mutant("lake", "columns_outlive_the_driver")
def next_range_forgets_the_columns(patch: pytest.MonkeyPatch) -> None:
    """A read action begins without the columns of the events before it: a range with others gets into the log."""
    patch.setattr(source_module, "_STAYS", ("to_forget",))


@mutant("lake", "columns_outlive_the_driver")
def columns_in_a_transaction_of_their_own(patch: pytest.MonkeyPatch) -> None:
    """They are kept with the event that follows, and not with the first one: a crash in between loses them."""
    advance = SourceProtocol.advance

    def late(self: SourceProtocol, offset: int, ledger: Ledger, schema: str | None = None) -> None:
        advance(self, offset, ledger, schema if self.action_id > 1 else None)

    patch.setattr(SourceProtocol, "advance", late)
