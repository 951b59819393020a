"""One operator: Algorithm 2 (State Update), and its own part of 3 (the author's function) and 9 (reloading).

Differences from the paper's text, and why: The filter is *less than or equal* (hole H1). Triggers are stored, so that
reloading emits none (hole H2). Assignments are not written per event but with the operator's next transaction (design D2);
`Ledger` gathers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_logio.errors import FailurePoint, OperatorFailed, ProtocolViolation
from airflow_logio.protocol.context import KEPT, Context, decode_state, encode_state, fault, is_plain
from airflow_logio.protocol.effects import LogStateEvent
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.logic import InputSetState, Logic, OperatorSpec, Output
from airflow_logio.protocol.recovery import PortOrder
from airflow_logio.protocol.values import Event, Kind, Port, unstorable


class OperatorProtocol:
    """State Update and Triggering of one operator that has input ports, and its part of recovery."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.context = Context()
        self.state: dict[str, Any] = self.logic.initial_state() if spec.logic else {}
        self.open: dict[str, InputSetState] = {}
        """Input Sets that events may still join."""
        self.triggered: dict[str, InputSetState] = {}
        """Complete Input Sets that are not generated yet, in the order of `context.triggered`."""
        self.in_flight: set[str] = set()
        self.dirty = False
        self.receivers = {port: Port(spec.name, port) for port in spec.inputs}
        self.order = PortOrder(spec.port_order) if spec.port_order else None
        self._snapshots: dict[str, dict[str, Any]] = {}

    @property
    def logic(self) -> Logic:
        assert self.spec.logic is not None, f"{self.spec.name} is a source"
        return self.spec.logic

    # --- Algorithm 9, Steps 1 and 2 -----------------------------------------------------------------------------------

    def restore(self, data: bytes) -> None:
        """Step 1: global state and LOG.io context, from STATE."""
        stored = decode_state(self.spec.name, data)
        self.context, self.state = stored.context, stored.state
        self.context.reopen()
        self.triggered = {inset_id: InputSetState() for inset_id in self.context.triggered}

    def restore_snapshot(self, inset_id: str, data: bytes) -> None:
        """The global state as it was when `inset_id` was triggered (an undone state event)."""
        self._snapshots[inset_id] = decode_state(self.spec.name, data).state
        self._input_set(inset_id).logged_rows += 1

    def reload(self, port: str, event: Event, inset_id: str) -> None:
        """Step 2.b: an acknowledged, undone event updates the event state of that Input Set only; nothing triggers."""
        self._hold(port, event, inset_id, self.logic.part(port, event, inset_id)).logged_rows += 1

    def serialized(self) -> bytes:
        """The state as bytes. Raises `OperatorFailed` for one that would not come back unchanged."""
        if not is_plain(self.state):
            raise self._unstorable(None)
        try:
            return encode_state(self.context, self.state)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._unstorable(error) from error

    def _unstorable(self, error: Exception | None) -> OperatorFailed:
        what = fault(self.state) or error
        used = ", ".join(f"event {event_id} on port {port!r}" for port, event_id in sorted(self.context.marks.items()))
        return OperatorFailed(
            f"the state of operator {self.spec.name!r} cannot be stored: {what}. {KEPT}. Last used: {used or 'no event'}",
            FailurePoint(self.spec.name, action="a state that cannot be stored"),
        )

    # --- Algorithm 2 --------------------------------------------------------------------------------------------------

    def state_update(self, port: str, event: Event, ledger: Ledger, *, in_log: bool) -> bool:
        """Steps 1 and 2. False if the event is obsolete and was discarded."""
        if self.context.is_obsolete(port, event.event_id):
            return False
        self._refuse_out_of_turn(port, event)
        self.dirty = True
        self.context.marks[port] = event.event_id
        receiver = self.receivers[port]
        ledger.receive(receiver, event, in_log=in_log)
        if event.kind is not Kind.DATA:
            if event.kind is Kind.END:
                self.context.ended.add(port)
            return True
        for inset_id, part in self.logic.assign(port, event, self.state).items():
            self._refuse_unstorable(inset_id, receiver, event)
            self._refuse_closed(inset_id, receiver, event)
            self._hold(port, event, inset_id, part).pending.append((port, event.event_id))
            ledger.assign(receiver, event.event_id, inset_id)
        return True

    def next_port(self) -> str | None:
        """The input port whose turn it is by the operator's declared order; None if it has none, or all have ended."""
        return None if self.order is None else self.order.next_port(self.context.marks, self.context.ended)

    def _refuse_out_of_turn(self, port: str, event: Event) -> None:
        if self.order is not None and port != (due := self.next_port()):
            raise ProtocolViolation(
                f"operator {self.spec.name!r} uses its input ports in a declared order: event {event.event_id} of port "
                f"{port!r} came when port {due!r} was due"
            )

    def _hold(self, port: str, event: Event, inset_id: str, part: Any) -> InputSetState:
        input_set = self._input_set(inset_id)
        try:
            input_set.held = self.logic.accumulate(input_set.held, part)
        except OperatorFailed as error:
            raise self._at_event(error, port, event, inset_id, f", Input Set {inset_id!r}") from error
        if not self.spec.stateless:
            input_set.note(port, event.event_id)
        input_set.lineage = input_set.lineage or port in self.spec.lineage_in
        return input_set

    def _at_event(
        self, error: OperatorFailed, port: str, event: Event, inset_id: str, inset: str = ""
    ) -> OperatorFailed:
        place = f"port {port!r}, event {event.event_id} of {event.sender}{inset}"
        return error.further(place, FailurePoint(self.spec.name, port, event.event_id, inset_id))

    def _input_set(self, inset_id: str) -> InputSetState:
        found = self.triggered.get(inset_id) or self.open.get(inset_id)
        if found is None:
            found = self.open[inset_id] = InputSetState()
        return found

    def _refuse_unstorable(self, inset_id: str, receiver: Port, event: Event) -> None:
        """Refuse the id now, while event and port are known: one database would refuse the commit, another cut the id."""
        if (reason := unstorable(inset_id)) is not None:
            shown = ascii(inset_id)[:60]
            raise ProtocolViolation(f"{receiver} event {event.event_id} was assigned to Input Set {shown}: {reason}")

    def _refuse_closed(self, inset_id: str, receiver: Port, event: Event) -> None:
        if self.spec.stateless:
            return
        logic = self.logic
        try:
            closed = self.context.closed.holds(inset_id, logic.function(inset_id), logic.order(inset_id))
        except OperatorFailed as error:
            raise self._at_event(error, receiver.name, event, inset_id) from error
        if closed or inset_id in self.triggered or inset_id in self.context.aside:
            raise ProtocolViolation(
                f"{receiver} event {event.event_id} was assigned to Input Set {inset_id!r}, which is "
                f"{'closed' if closed else 'triggered or set aside'}: no event may join it any more (late data needs a "
                "window that waits)"
            )

    def trigger(self, ledger: Ledger) -> None:
        """Step 3: complete Input Sets enter the context, and so commit with the assignment that completed them."""
        if not self.open:
            return
        choose = self.logic.flush if self.inputs_ended() else self.logic.triggered
        for inset_id in choose(self.state, list(self.open)):
            if inset_id not in self.open:
                raise ProtocolViolation(
                    f"operator {self.spec.name!r} triggered Input Set {inset_id!r}, which is not open"
                )
            self.dirty = True
            self.context.triggered.append(inset_id)
            self.triggered[inset_id] = self.open.pop(inset_id)
            if self.spec.reads_state:
                self._log_state(inset_id, ledger)
        if self.open and self.inputs_ended():
            raise ProtocolViolation(
                f"operator {self.spec.name!r} left Input Set {next(iter(self.open))!r} open at the end of its inputs: "
                "flush() must name every open one, or nothing would ever generate it"
            )

    def _log_state(self, inset_id: str, ledger: Ledger) -> None:
        state_id = self.context.allocate_state()
        data = self.serialized()
        self.context.state_events[inset_id] = state_id
        self._snapshots[inset_id] = decode_state(self.spec.name, data).state
        self.triggered[inset_id].state_pending = True
        kept = bool(self.spec.captured_out)
        ledger.log_state(LogStateEvent(self.spec.name, state_id, inset_id, data, kept=kept))

    def inputs_ended(self) -> bool:
        return bool(self.spec.inputs) and self.context.ended.issuperset(self.spec.inputs)

    def is_drained(self) -> bool:
        """Nothing can come, nothing is held: the operator may log its end of stream."""
        return not self.context.finished and self.inputs_ended() and not self.open and not self.triggered

    # --- Algorithm 3 --------------------------------------------------------------------------------------------------

    def next_triggered(self) -> list[str]:
        """Input Sets to generate, in order, except those that a job already has."""
        return [inset for inset in self.triggered if inset not in self.in_flight]

    def generate(self, inset_id: str) -> Sequence[Output]:
        """Step 3 in mode ``driver``: the author's function over the event state and the state at the trigger."""
        input_set = self.triggered[inset_id]
        state = self.logic.initial_state() if self.spec.replay else self._snapshots.get(inset_id, self.state)
        try:
            return list(self.logic.generate(inset_id, input_set.held, state))
        except OperatorFailed as error:
            raise error.further(input_set.origin()) from error

    def close_input_set(self, inset_id: str, ledger: Ledger) -> InputSetState:
        """Step 4 (4): mark the Input Set done and empty it; no event can join it any more."""
        if inset_id not in self.triggered:
            raise ProtocolViolation(
                f"operator {self.spec.name!r} generated Input Set {inset_id!r}, which was not triggered"
            )
        input_set = self._take(inset_id)
        if not self.spec.stateless:
            self.context.closed.add(inset_id, self.logic.function(inset_id), self.logic.order(inset_id))
        if self.context.state_events.pop(inset_id, None) is not None:
            ledger.finish_state(self.spec.name, inset_id, keep=bool(self.spec.captured_out))
        ledger.mark_done(self.spec.name, inset_id, input_set.pending, input_set.logged_rows)
        return input_set

    def set_aside(self, inset_id: str, error: str, ledger: Ledger) -> None:
        """Quarantine: the Input Set leaves memory with its rows set aside; no event can join it any more."""
        input_set = self._take(inset_id)
        self.context.aside.append(inset_id)
        ledger.set_aside(self.spec.name, inset_id, input_set.pending, input_set.logged_rows, error)

    def _take(self, inset_id: str) -> InputSetState:
        self.dirty = True
        self.context.triggered.remove(inset_id)
        self.in_flight.discard(inset_id)
        self._snapshots.pop(inset_id, None)
        return self.triggered.pop(inset_id)

    def settle(self) -> None:
        """The step is closed: rows assigned in it are in the log from its commit on."""
        for input_set in (*self.open.values(), *self.triggered.values()):
            input_set.logged_rows += len(input_set.pending)
            input_set.pending.clear()
            input_set.logged_rows += input_set.state_pending
            input_set.state_pending = False
        self.dirty = False
