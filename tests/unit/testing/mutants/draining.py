"""Broken draining: what a source forgets, when its stream ends, and who hears of the wish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import SourceOrder
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.loop import GroupLoop
from airflow_logio.protocol.source import SourceProtocol
from airflow_logio.protocol.states import GroupState
from airflow_logio.protocol.values import Kind
from airflow_logio.testing.memory_log import groups
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from tests.unit.testing.mutants.registry import mutant


@mutant("linear", "a_drain_is_not_taken_back")
def wish_lost_with_the_incarnation(patch: pytest.MonkeyPatch) -> None:
    """A claim takes back that the group was asked to drain: its successor reads everything."""
    patch.setattr(groups, "wish_after_claim", lambda _desired: GroupState.RUNNING)


class HearsLate(SimulatedDriver):
    """Does not ask before it reads: the wish comes with a heartbeat, some time."""

    def _hear_wish(self) -> None:
        self.heard = False


@mutant("linear", "what_is_to_drain_reads_no_further", driver=HearsLate)
def reads_before_it_has_heard(_patch: pytest.MonkeyPatch) -> None:
    """A driver that recovers a draining group reads on until its first heartbeat is answered."""


class TakesTheWishForDone(SimulatedDriver):
    """Where the stream of a source has ended, nothing is left of the wish."""

    def _start_threads(self) -> None:
        sources = [one for one in self.protocol.operators.values() if isinstance(one, SourceProtocol)]
        self.heard = self.heard and not any(source.context.finished for source in sources)
        super()._start_threads()


@mutant("linear", "the_end_of_a_stream_is_once_and_last", driver=TakesTheWishForDone)
def drained_source_forgets_its_end(patch: pytest.MonkeyPatch) -> None:
    """That a drained source has ended is not stored with its end of stream: a successor reads on behind it."""

    def serialized(self: SourceProtocol) -> bytes:
        whole = self.state
        if whole.get("cut"):
            self.state = {key: value for key, value in whole.items() if key != "cut"} | {"ended": False, "done": False}
        try:
            return super(SourceProtocol, self).serialized()
        finally:
            self.state = whole

    cut_short = SourceProtocol.cut_short

    def remembering(self: SourceProtocol, ledger: Any) -> None:
        begun = bool(self.state)
        cut_short(self, ledger)
        self.state |= {"cut": True} if begun else {}

    patch.setattr(SourceProtocol, "serialized", serialized, raising=False)
    patch.setattr(SourceProtocol, "cut_short", remembering)


@mutant("linear", "event_ids_are_gapless", rare=239)
def end_before_the_last_batch(patch: pytest.MonkeyPatch) -> None:
    """The end of the stream is logged first, and in the same step the batches that came before it."""
    close_step = GroupProtocol.close_step

    def ends_first(self: GroupProtocol) -> fx.Effects:
        effects = close_step(self)
        drains = any(isinstance(effect, fx.DrainGroup) for effect in effects)
        return sorted(effects, key=lambda effect: not _is_end(effect)) if drains else effects

    patch.setattr(GroupProtocol, "close_step", ends_first)


def _is_end(effect: fx.Effect) -> bool:
    return isinstance(effect, fx.LogEvent) and effect.event.kind is Kind.END


class EndsApart(SimulatedDriver):
    """The ends of the streams have a transaction of their own, before what says that the sources have ended."""

    def _close(self, step: Action) -> bool:
        closed = super()._close(step)
        if closed and self.loop.draining and self.committer.steps:
            effects = self.committer.steps.pop()
            self.committer.add([effect for effect in effects if _is_end(effect)])
            self.committer.add([effect for effect in effects if not _is_end(effect)])
        return closed


@mutant("linear", "no_group_is_parked", driver=EndsApart, rare=151)
def end_apart_from_its_source(_patch: pytest.MonkeyPatch) -> None:
    """A crash between the two transactions leaves a stream that has ended and a source that has not."""


@mutant("feed", "destinations_are_those_of_a_run_without_failures")
def stored_effect_cut_short(patch: pytest.MonkeyPatch) -> None:
    """Of a stored effect only what is logged is used: the rest, which cannot be read again, is discarded."""

    def at_once(self: GroupProtocol, operator: str) -> bool:
        source = self.source(operator)
        if not source.has_ended:
            if source.stored is not None:
                source.complete(self.ledger)
            source.cut_short(self.ledger)
            self._finish_if_drained(source)
        return True

    patch.setattr(GroupProtocol, "drain_source", at_once)


class ReadsForTheLastTime(SimulatedDriver):
    """Executes the read action on record, whose effect was not stored, and drains then."""

    @property
    def must_drain(self) -> bool:
        return not self.reading.sources and super().must_drain


@mutant("feed", "what_is_to_drain_reads_no_further", driver=ReadsForTheLastTime)
def read_once_more_to_drain(patch: pytest.MonkeyPatch) -> None:
    """A successor that is to drain reads the outside once more before it ends."""
    begin = GroupLoop._begin_source

    def once_more(self: GroupLoop, name: str, *, drains: bool) -> Iterable[SourceOrder]:
        return begin(self, name, drains=drains and self.protocol.source(name).action is None)

    patch.setattr(GroupLoop, "_begin_source", once_more)


@mutant("feed", "every_schedule_ends")
def drain_forgets_the_read_under_way(patch: pytest.MonkeyPatch) -> None:
    """Only sources without a read action under way end when the group drains."""
    sources = GroupLoop.sources.fget  # type: ignore[attr-defined]

    def idle(self: GroupLoop) -> list[str]:
        names: list[str] = sources(self)
        return [name for name in names if not self.draining or self.protocol.source(name).action is None]

    patch.setattr(GroupLoop, "sources", property(idle))


class DrainsOnce(SimulatedDriver):
    """Believes that a group drains once, whichever driver did it."""

    def _drain(self, step: Action) -> bool:
        if not self.is_running or not self.must_drain:
            return False
        row = self.world.store.group(self.claim.run_id, self.plan.name)
        if self.epochs > 1 or self.number > 1 or row.state is GroupState.DRAINING:
            self.loop.draining = True
            return True
        return super()._drain(step)


@mutant("linear", "every_schedule_ends", driver=DrainsOnce)
def not_drained_again_after_a_rebuild(_patch: pytest.MonkeyPatch) -> None:
    """A driver that has lost its memory, or its forerunner, leaves the ends of the streams to the first one asked."""
