"""The operators of one group as one unit of failure (design D4): routing, Output Sets, rebuild and resume (Algorithm 9).

An event for an operator of the same group is handed over in memory, in the same step. When the step is closed, the ledger
decides what of it must be in the log. All effects of a step commit in one transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.errors import OperatorFailed, ProtocolViolation
from airflow_logio.protocol.context import HeldOutput
from airflow_logio.protocol.effects import (
    LATE,
    DrainGroup,
    Effects,
    FinishGroup,
    LogRead,
    LogWrite,
    MarkCompared,
    RecordLineage,
    Release,
    StoreState,
    WritesDone,
)
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.logic import Emit, InputSetState, OperatorSpec, Output, Read, Write
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.recovery import Recovered, reload_order
from airflow_logio.protocol.source import READ_ACTION_ID, SourceProtocol
from airflow_logio.protocol.values import FIRST_EVENT_ID, Event, Kind, MadeOf, Port
from airflow_logio.protocol.writes import is_closing


class GroupProtocol:
    """Drives the operators of a group; the runtime brings observations and takes effects.

    `operators` are in topological order; `receivers` maps every output port of the group to its receiver ports,
    including those in other groups.
    """

    def __init__(
        self,
        operators: Sequence[OperatorSpec],
        receivers: Mapping[Port, Sequence[Port]],
        lineage_in: Collection[Port] = frozenset(),
    ) -> None:
        self.operators: dict[str, OperatorProtocol] = {
            spec.name: OperatorProtocol(spec) if spec.inputs else SourceProtocol(spec) for spec in operators
        }
        self.closers = frozenset(spec.name for spec in operators if spec.closes)
        """Operators that end with a closing write action. `close_writer` closes them: they never finish by themselves."""
        self._remote: dict[Port, tuple[Port, ...]] = {}
        self._local: dict[Port, tuple[Port, ...]] = {}
        for sender, ports in receivers.items():
            fused = tuple(port for port in ports if self._is_fused(sender, port))
            self._local[sender] = fused
            self._remote[sender] = tuple(port for port in ports if port not in fused)
        mine = {Port(spec.name, port) for spec in operators for port in spec.lineage_in}
        self.ledger = Ledger(frozenset(lineage_in) | mine)

    def _is_fused(self, sender: Port, receiver: Port) -> bool:
        """Whether events are handed over in memory.

        The chain is cut where they must wait: for write actions, for a turn, and in front of a chain that is evaluated
        before the group gets its events, because an operator of another kind, or a window, makes its events within the group.
        """
        if receiver.operator not in self.operators:
            return False
        before, behind = self.operators[sender.operator].spec, self.operators[receiver.operator]
        if before.sends_after_writes or behind.order is not None:
            return False
        return before.hands_on or not behind.spec.evaluated

    def inputs_from_log(self) -> list[Port]:
        """Input ports of the group whose events are pulled from the log and whose stream has not ended."""
        fused = {port for ports in self._local.values() for port in ports}
        return [
            port
            for name, operator in self.operators.items()
            for port in (Port(name, port) for port in operator.spec.inputs)
            if port not in fused and port.name not in operator.context.ended
        ]

    # --- Algorithms 6 to 9 --------------------------------------------------------------------------------------------

    def rebuild(self, recovered: Recovered, unpack: Callable[[Event], Event] = lambda event: event) -> None:
        """States, snapshots, then all acknowledged undone events, without triggering (Algorithm 9 Steps 1 and 2).

        `unpack` makes the payload of an event from its body; it is called once per event and receiver.
        """
        for name, data in recovered.states.items():
            self.operators[name].restore(data)
        for name, inset_id, data in recovered.snapshots:
            self.operators[name].restore_snapshot(inset_id, data)
        orders = {name: operator.order for name, operator in self.operators.items() if operator.order is not None}
        ready: dict[tuple[Port, int], Event] = {}
        for logged in reload_order(recovered.acknowledged, orders):
            assert logged.inset_id is not None
            key = (logged.receiver, logged.event.event_id)
            if key not in ready:
                ready[key] = unpack(logged.event)  # once: its Input Sets share the records
            self.operators[logged.receiver.operator].reload(logged.receiver.name, ready[key], logged.inset_id)

    # --- observations -------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """First step of an incarnation or epoch, after everything acknowledged was reloaded (Algorithm 9 Step 2.c).

        What was triggered before is generated first, in order; only then are conditions evaluated.
        """
        for operator in self.operators.values():
            if not operator.context.opened:
                self._open(operator)
            self._generate_triggered(operator)
            self._after_update(operator)

    def deliver(self, receiver: Port, event: Event) -> bool:
        """An event from the log has reached an input port (Algorithm 2). False if it is obsolete."""
        return self._receive(receiver, event, in_log=True)

    def generated(
        self, operator: str, results: Iterable[tuple[str, Sequence[Output]]], reads: Sequence[Read] = ()
    ) -> None:
        """A job has ended: Step 4 of Algorithm 3 for its Input Sets, in the order triggered.

        `reads` are the read actions of the whole job, one action each, with a row per Input Set (design D6).
        """
        protocol = self.operators[operator]
        inset_ids = []
        for inset_id, produced in results:
            outputs = list(produced)
            self._complete(protocol, inset_id, outputs, has_read=bool(reads))
            if self._is_captured(protocol, outputs):
                inset_ids.append(inset_id)
        for read in reads:
            self._log_read(protocol, read, tuple(inset_ids))
        self._after_update(protocol)

    def begin_source(self, operator: str, action: Mapping[str, Any]) -> None:
        self.source(operator).begin(action, self.ledger)

    def emit(self, operator: str, outputs: Iterable[Emit], offset: int, schema: str | None = None) -> None:
        """A source has read a batch: its events, the offset after them, and the columns of a `RangeSource`.

        Where lineage leads back to the events, they say which read action they come from (`READ_ACTION_ID`).
        """
        source = self.source(operator)
        for output in outputs:
            if output.port in source.spec.lineage_out:
                about = {READ_ACTION_ID: source.action_id, **output.about}
                output = Emit(output.port, output.payload, output.records, output.body, about)  # noqa: PLW2901
            self._emit(source, output, None, has_read=False)
        source.advance(offset, self.ledger, schema)

    def store_effect(self, operator: str, ref: str, records: int) -> None:
        """The effect of a non-replayable read action is stored at `ref` (Algorithm 1 Step 2.b)."""
        self.source(operator).store_effect(ref, records, self.ledger)

    def end_source(self, operator: str, next_action: Mapping[str, Any] | None = None) -> None:
        """The read action under way has no more records; `next_action` follows it, or else the stream ends."""
        source = self.source(operator)
        source.complete(self.ledger)
        if next_action is not None:
            source.begin(next_action, self.ledger)
        else:
            source.end()
            self._finish_if_drained(source)

    def drain(self) -> None:
        """The group was asked to drain (design D9): the log says so with this step."""
        self.ledger.add(DrainGroup())
        self.ledger.has_output = True

    def drain_source(self, operator: str) -> bool:
        """Nothing further is read. True if the stream has ended, with this step or before it.

        False if a stored effect is under way: it has been read, so its events come first; then `end_source`.
        """
        source = self.source(operator)
        if source.has_ended:
            return True
        if source.stored is not None:
            return False
        source.cut_short(self.ledger)
        self._finish_if_drained(source)
        return True

    def effect_dropped(self, operator: str, action_id: int) -> None:
        """The stored effect of a used-up read action is discarded (Algorithm 1 Step 2.d)."""
        self.source(operator).dropped(action_id, self.ledger)

    def compared(self, operator: str, connection: str) -> None:
        """The marker of a writer was found not to be ahead of the log. Its actions may be applied once that is durable."""
        protocol = self.operators[operator]
        protocol.context.uncompared.pop(connection, None)
        protocol.dirty = True
        self.ledger.add(MarkCompared(operator, connection))
        self.ledger.has_output = True

    def forgotten(self, operator: str, action_id: int) -> None:
        """The external system may have forgotten what was read up to the end of a read action: it was told to."""
        self.source(operator).forgotten(action_id)

    def writes_done(self, operator: str, connection: str, first: int, last: int, records: int) -> None:
        """The external system has applied write actions `first` to `last` (Algorithm 5 Step 3)."""
        self.ledger.add(WritesDone(operator, connection, first, last))
        self.ledger.count(Port(operator, connection), "write", last - first + 1, records)
        if self.operators[operator].spec.sends_after_writes:
            self._release(self.operators[operator], connection, last)

    def set_aside(self, operator: str, inset_id: str, error: str) -> None:
        """A job has found that the generation of one Input Set raises (quarantine)."""
        protocol = self.operators[operator]
        protocol.set_aside(inset_id, error, self.ledger)
        self._after_update(protocol)

    def close_writer(self, operator: str) -> None:
        """The log has everything that the operator writes: its closing action is logged with this step, behind all others.

        It is the one output of its own Output Set (Algorithm 3), and `Context.finished` says from then on that it is closed.
        Raises `ProtocolViolation` for an operator that cannot be closed now, and for one that does not write and close one
        connection, which its opening action has claimed.
        """
        if operator not in self.to_close():
            raise ProtocolViolation(f"operator {operator!r} is closed before its group has ended, or twice")
        protocol = self.operators[operator]
        closing = protocol.logic.closing()
        if [write.connection for write in closing] != list(protocol.context.next_write) or not is_closing(closing[0]):
            raise ProtocolViolation(
                f"operator {operator!r} has to close the one connection that it has opened and written, by one write action"
            )
        self._log_write(protocol, closing[0])
        protocol.context.finished = True
        protocol.dirty = True
        self.ledger.has_output = True

    def finish(self) -> None:
        """Everything has ended and every write action is done: the group is finished with this step."""
        self.ledger.add(FinishGroup())

    def close_step(self) -> Effects:
        """End the step: its effects, with the state of every operator that it changed, serialized now."""
        changed = [operator for operator in self.operators.values() if operator.dirty]
        effects = self.ledger.close()
        effects += [StoreState(operator.spec.name, operator.serialized()) for operator in changed]
        for operator in changed:
            operator.settle()
        return effects

    # --- questions ----------------------------------------------------------------------------------------------------

    def log_ends(self) -> Mapping[tuple[str, str], int]:
        """(operator, connection) → what its marker is compared with; of those that the log has given numbers to."""
        return {
            (name, connection): number
            for name, operator in self.operators.items()
            for connection, number in operator.context.uncompared.items()
        }

    def fused(self, sender: Port) -> Sequence[Port]:
        """Receivers that get the events of an output port in memory."""
        return self._local.get(sender, ())

    def is_logged(self, sender: Port) -> bool:
        """Whether every event of an output port has a row in the log: it leaves the group, or lineage keeps it."""
        captured = sender.name in self.operators[sender.operator].spec.lineage_out
        kept = any(self.ledger.keeps(receiver) for receiver in self.fused(sender))
        return captured or kept or bool(self._remote.get(sender))

    def source(self, operator: str) -> SourceProtocol:
        protocol = self.operators[operator]
        if not isinstance(protocol, SourceProtocol):
            raise ProtocolViolation(f"operator {operator!r} is not a source")
        return protocol

    def is_finished(self) -> bool:
        """Every operator has ended and sent what it held, every stored effect is discarded, and sources were told what they
        may forget."""
        return all(map(_is_over, self.operators.values()))  # no generator: this is asked after every observation

    def to_close(self) -> list[str]:
        """Operators that can be closed: they have used all that comes, and every other operator of the group has finished.

        Whether they may be is not known here. A source that was drained ended early, and an Input Set that was set aside
        leaves rows out: the log is asked first.
        """
        if not self.closers:
            return []
        drained = [name for name in self.operators if name in self.closers and self.operators[name].is_drained()]
        others = (operator for name, operator in self.operators.items() if name not in drained)
        return drained if all(map(_is_over, others)) else []

    def start_job(self, operator: str, inset_ids: Sequence[str]) -> list[tuple[str, Any]]:
        """Hand triggered Input Sets to a job; returns their event states. They are not offered again in this epoch."""
        protocol = self.operators[operator]
        protocol.in_flight.update(inset_ids)
        return [(inset_id, protocol.triggered[inset_id].held) for inset_id in inset_ids]

    # --- inside -------------------------------------------------------------------------------------------------------

    def _receive(self, receiver: Port, event: Event, *, in_log: bool) -> bool:
        operator = self.operators[receiver.operator]
        if not operator.state_update(receiver.name, event, self.ledger, in_log=in_log):
            return False
        self._after_update(operator)
        return True

    def _after_update(self, operator: OperatorProtocol) -> None:
        operator.trigger(self.ledger)
        self._generate_triggered(operator)
        self._finish_if_drained(operator)

    def _generate_triggered(self, operator: OperatorProtocol) -> None:
        if operator.spec.asynchronous:
            return
        for inset_id in operator.next_triggered():
            try:
                outputs = operator.generate(inset_id)
            except OperatorFailed as error:
                if not operator.spec.quarantines:
                    raise
                operator.set_aside(inset_id, str(error), self.ledger)
                continue
            self._complete(operator, inset_id, outputs, has_read=any(isinstance(o, Read) for o in outputs))

    def _complete(
        self, operator: OperatorProtocol, inset_id: str, outputs: Iterable[Output], *, has_read: bool
    ) -> None:
        input_set = operator.close_input_set(inset_id, self.ledger)
        outputs = list(outputs)
        waiting = self._hold_back(operator, any(isinstance(output, Write) for output in outputs))
        places: Counter[str] | None = Counter() if operator.spec.replay else None
        for output in outputs:
            match output:
                case Emit():
                    made_of = None
                    if places is not None:
                        made_of = MadeOf(inset_id, places[output.port])
                        places[output.port] += 1
                    origin = (inset_id, input_set)
                    event_id = self._emit(operator, output, origin, made_of, has_read=has_read, held=waiting)
                    if waiting is not None:
                        first, _ = waiting.events.get(output.port, (event_id, event_id))
                        waiting.events[output.port] = (first, event_id)
                case Write():
                    if operator.spec.closes:
                        _refuse_beside(operator, output)
                    number = self._log_write(operator, output)
                    if waiting is not None:
                        waiting.writes[output.connection] = number
                case Read() if self._is_captured(operator, outputs):
                    self._log_read(operator, output, (inset_id,))

    @staticmethod
    def _is_captured(operator: OperatorProtocol, outputs: Iterable[Output]) -> bool:
        """Whether an Output Set has an event on a port in OUT."""
        return any(isinstance(output, Emit) and output.port in operator.spec.captured_out for output in outputs)

    @staticmethod
    def _hold_back(operator: OperatorProtocol, writes: bool) -> HeldOutput | None:
        """If an operator sends after its writes, an Output Set waits for its own writes and for the Output Sets before it."""
        context = operator.context
        if not operator.spec.sends_after_writes or not (writes or context.outbox):
            return None
        context.outbox.append(HeldOutput())
        return context.outbox[-1]

    def _release(self, operator: OperatorProtocol, connection: str, last: int) -> None:
        """Send what has waited for write actions up to `last`, in order."""
        context = operator.context
        operator.dirty = True
        context.written[connection] = last
        while context.outbox and all(context.written.get(c, 0) >= n for c, n in context.outbox[0].writes.items()):
            for name, (first, final) in context.outbox.pop(0).events.items():
                port = Port(operator.spec.name, name)
                rows = (final - first + 1) * len(self._remote.get(port, ()))
                self.ledger.add(Release(port, first, final, rows))
                self.ledger.has_output = True

    def _emit(
        self,
        operator: OperatorProtocol,
        output: Emit,
        origin: tuple[str, InputSetState] | None,
        made_of: MadeOf | None = None,
        *,
        has_read: bool,
        held: HeldOutput | None = None,
    ) -> int:
        sender = Port(operator.spec.name, output.port)
        if output.port not in operator.spec.outputs:
            raise ProtocolViolation(
                f"operator {sender.operator!r} sent an event to port {output.port!r}, which it does not have"
            )
        event_id = operator.context.allocate_event(output.port)
        in_scope = output.port in operator.spec.lineage_out
        captured = output.port in operator.spec.captured_out
        if captured and origin is not None and (origin[1].lineage or has_read):
            self.ledger.add(RecordLineage(sender, event_id, origin[0]))
        event = Event(
            sender, event_id, Kind.DATA, output.records, output.payload, output.body, output.about, made_of=made_of
        )
        self._send(event, in_scope=in_scope, held=held is not None)
        for partition, records in output.late.items():
            self.ledger.count(Port(sender.operator, partition), LATE, 1, records)
        return event_id

    def _send(self, event: Event, *, in_scope: bool, held: bool = False) -> None:
        local = self._local.get(event.sender, ())
        self.ledger.produce(event, self._remote.get(event.sender, ()), local, in_scope=in_scope, held=held)
        for receiver in local:
            self._receive(receiver, event, in_log=False)

    def _log_write(self, operator: OperatorProtocol, write: Write) -> int:
        number = operator.context.allocate_write(write.connection)
        self.ledger.add(
            LogWrite(
                operator.spec.name, write.connection, number, write.header, write.records, write.payload, write.body
            )
        )
        return number

    def _log_read(self, operator: OperatorProtocol, read: Read, inset_ids: tuple[str, ...]) -> None:
        """Algorithm 4: an action id, and a stored effect, only where lineage asks for it.

        `inset_ids` are those Input Sets of the action that have an output event on a port in OUT (Section 3.1).
        """
        if not inset_ids:
            return
        action_id = operator.context.allocate_action()
        self.ledger.add(
            LogRead(
                operator.spec.name, read.connection, action_id, read.description, inset_ids, read.records, read.payload
            )
        )

    def _open(self, operator: OperatorProtocol) -> None:
        operator.context.opened = True
        operator.dirty = True
        if operator.spec.logic is not None:
            for write in operator.logic.opening():
                self._log_write(operator, write)
                self.ledger.has_output = True
        if operator.spec.closes and list(operator.context.next_write.values()) != [FIRST_EVENT_ID + 1]:
            raise ProtocolViolation(
                f"operator {operator.spec.name!r} closes, so it has to begin with one opening action"
            )

    def _finish_if_drained(self, operator: OperatorProtocol) -> None:
        """End of stream (design D9): logged on every output port once nothing can come any more.

        One that closes is then to be closed, which is a step of its own: the log is asked before it.
        """
        if operator.spec.closes or not operator.is_drained():
            return
        operator.context.finished = True
        operator.dirty = True
        waiting = self._hold_back(operator, writes=False)
        for port in operator.spec.outputs:
            event_id = operator.context.allocate_event(port)
            if waiting is not None:
                waiting.events[port] = (event_id, event_id)
            event = Event(Port(operator.spec.name, port), event_id, Kind.END)
            self._send(event, in_scope=False, held=waiting is not None)


def _refuse_beside(operator: OperatorProtocol, write: Write) -> None:
    """An operator that closes writes to the connection that it has opened, and nothing in an Output Set closes it."""
    if write.connection not in operator.context.next_write or is_closing(write):
        raise ProtocolViolation(
            f"operator {operator.spec.name!r} closes the one connection that it has opened, once, at its end: an Output Set "
            f"of it cannot write to {write.connection!r} as {dict(write.header)}"
        )


def _is_over(operator: OperatorProtocol) -> bool:
    """It has ended and sent what it held; if it is a source, its stored effects are discarded, and it was told what it may
    forget."""
    if not operator.context.finished or operator.context.outbox:
        return False
    return not (isinstance(operator, SourceProtocol) and (operator.to_drop() or operator.to_forget()))
