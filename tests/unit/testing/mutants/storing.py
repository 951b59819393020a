"""What a step commits, broken: acknowledgements, states, triggers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from airflow_logio.protocol import effects as fx
from airflow_logio.protocol.commit import CommitQueue
from airflow_logio.protocol.context import Context, encode_state
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.testing.simulator.actions import Action
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from tests.unit.testing.mutants.registry import mutant


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def trigger_not_committed(patch: pytest.MonkeyPatch) -> None:
    """The stored context does not name Input Sets that are triggered: after a crash they are open again."""

    def serialized(self: OperatorProtocol) -> bytes:
        context = Context(**{name: getattr(self.context, name) for name in Context.__struct_fields__})
        context.triggered = []
        return encode_state(context, self.state)

    patch.setattr(OperatorProtocol, "serialized", serialized)


@mutant("linear", "destinations_are_those_of_a_run_without_failures")
def snapshot_not_logged(patch: pytest.MonkeyPatch) -> None:
    """The global state that an Input Set saw at its trigger stays in memory: a successor generates with a later one."""
    log_state = OperatorProtocol._log_state

    def kept_in_memory(self: OperatorProtocol, inset_id: str, _ledger: Ledger) -> None:
        log_state(self, inset_id, Ledger())
        self.triggered[inset_id].state_pending = False

    patch.setattr(OperatorProtocol, "_log_state", kept_in_memory)


@mutant("linear", "marks_are_what_was_acknowledged")
def acknowledgement_not_a_prefix(patch: pytest.MonkeyPatch) -> None:
    """A transaction acknowledges what it used; events that no Input Set has used are left for later."""
    close = Ledger.close

    def without_unused(self: Ledger) -> fx.Effects:
        return [effect for effect in close(self) if not isinstance(effect, fx.Acknowledge) or effect.assignments]

    patch.setattr(Ledger, "close", without_unused)


def _apart(patch: pytest.MonkeyPatch, kind: type[fx.Effect]) -> None:
    """Effects of one kind have a transaction of their own, behind that of their step."""
    add = CommitQueue.add

    def in_two(self: CommitQueue, effects: fx.Effects) -> None:
        add(self, [effect for effect in effects if not isinstance(effect, kind)])
        add(self, [effect for effect in effects if isinstance(effect, kind)])

    patch.setattr(CommitQueue, "add", in_two)


@mutant("idempotent", "marks_are_what_was_acknowledged")
def acknowledge_after_send(patch: pytest.MonkeyPatch) -> None:
    """Outputs are committed, and the inputs they were made of are acknowledged by the next transaction."""
    _apart(patch, fx.Acknowledge)


class SerializesLate(SimulatedDriver):
    def _take(self, step: Action) -> bool:
        taken = super()._take(step)
        if taken:
            self.committer.taken = [
                fx.StoreState(effect.operator, self.protocol.operators[effect.operator].serialized())
                if isinstance(effect, fx.StoreState)
                else effect
                for effect in self.committer.taken
            ]
        return taken


@mutant("linear", "marks_are_what_was_acknowledged", driver=SerializesLate)
def state_by_reference(_patch: pytest.MonkeyPatch) -> None:
    """States are serialized when they are committed: by then they hold events of later steps."""


@mutant("linear", "marks_are_what_was_acknowledged", "what_is_done_is_closed")
def state_outside_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """States have a transaction of their own, behind that of the step: an acknowledgement is flushed without its state."""
    _apart(patch, fx.StoreState)


@mutant("functions", "marks_are_what_was_acknowledged")
def state_not_stored_without_output(patch: pytest.MonkeyPatch) -> None:
    """The paper's "if F uses a global state": a step that only assigns events does not store the state they changed."""
    close_step = GroupProtocol.close_step

    def lazily(self: GroupProtocol) -> fx.Effects:
        effects = close_step(self)
        makes = any(isinstance(effect, fx.LogEvent | fx.LogWrite | fx.MarkDone) for effect in effects)
        return effects if makes else [effect for effect in effects if not isinstance(effect, fx.StoreState)]

    patch.setattr(GroupProtocol, "close_step", lazily)


@mutant("swapped", "no_group_is_parked")
def sent_before_its_writes(patch: pytest.MonkeyPatch) -> None:
    """An operator that should send after its writes sends at once."""

    def at_once(*_arguments: Any, **_settings: Any) -> None:
        return None

    patch.setattr(GroupProtocol, "_hold_back", staticmethod(at_once))


@mutant("linear", "the_end_of_a_stream_is_once_and_last")
def second_end_of_stream(patch: pytest.MonkeyPatch) -> None:
    """That a stream has ended is not stored: a successor ends it again."""
    serialized = OperatorProtocol.serialized

    def without_end(self: OperatorProtocol) -> bytes:
        finished, self.context.finished = self.context.finished, False
        try:
            return serialized(self)
        finally:
            self.context.finished = finished

    patch.setattr(OperatorProtocol, "serialized", without_end)


@mutant("synchronized", "every_schedule_ends")
def done_for_one_receiver_is_done_for_all(patch: pytest.MonkeyPatch) -> None:
    """An event for several receivers is logged for the first one only."""
    log_event = Ledger._log_event

    def for_one(self: Ledger, produced: Any) -> fx.LogEvent | None:
        effect = log_event(self, produced)
        return effect if effect is None else replace(effect, deliveries=effect.deliveries[:1])

    patch.setattr(Ledger, "_log_event", for_one)
