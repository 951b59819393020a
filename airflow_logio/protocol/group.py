"""The operators of one group as one unit of failure (DESIGN decision 4): routing, generation, end of stream.

An event for an operator of the same group is handed over in memory, in the same step; what of it must be in the log is
decided by the ledger when the step is closed. All effects of a step commit in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from airflow_logio.errors import ProtocolViolation
from airflow_logio.protocol.effects import (
    Effects,
    FinishGroup,
    LogRead,
    LogWrite,
    RecordLineage,
    StoreState,
    WritesDone,
)
from airflow_logio.protocol.ledger import Ledger
from airflow_logio.protocol.logic import Emit, InputSetState, OperatorSpec, Output, Read, Write
from airflow_logio.protocol.operator import OperatorProtocol
from airflow_logio.protocol.source import SourceProtocol
from airflow_logio.protocol.values import Event, Kind, Port


class GroupProtocol:
    """Drives the operators of a group; the runtime brings observations and takes effects.

    `operators` are in topological order; `receivers` maps every output port of the group to its receiver ports, those in
    other groups included.
    """

    def __init__(self, operators: Sequence[OperatorSpec], receivers: Mapping[Port, Sequence[Port]]) -> None:
        self.operators: dict[str, OperatorProtocol] = {
            spec.name: OperatorProtocol(spec) if spec.inputs else SourceProtocol(spec) for spec in operators
        }
        self._remote: dict[Port, tuple[Port, ...]] = {}
        self._local: dict[Port, tuple[Port, ...]] = {}
        for sender, ports in receivers.items():
            self._local[sender] = tuple(p for p in ports if p.operator in self.operators)
            self._remote[sender] = tuple(p for p in ports if p.operator not in self.operators)
        self.ledger = Ledger()

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
        """An event of the log reached an input port (Algorithm 2). False if it is obsolete."""
        return self._receive(receiver, event, in_log=True)

    def generated(
        self, operator: str, results: Iterable[tuple[str, Sequence[Output]]], reads: Sequence[Read] = ()
    ) -> None:
        """A job of mode ``executors`` has ended: Step 4 of Algorithm 3 for its Input Sets, in the order triggered.

        `reads` are the read actions of the whole job, one action each, with a row per Input Set (DESIGN decision 6).
        """
        protocol = self.operators[operator]
        inset_ids = []
        for inset_id, outputs in results:
            self._complete(protocol, inset_id, outputs, has_read=bool(reads))
            inset_ids.append(inset_id)
        for read in reads:
            self._log_read(protocol, read, tuple(inset_ids))
        self._after_update(protocol)

    def begin_source(self, operator: str, action: Mapping[str, Any]) -> None:
        self.source(operator).begin(action, self.ledger)

    def emit(self, operator: str, outputs: Iterable[Emit], offset: int) -> None:
        """A source has read a batch: its events, and the offset after them."""
        source = self.source(operator)
        for output in outputs:
            self._emit(source, output, None, has_read=False)
        source.advance(offset)

    def end_source(self, operator: str) -> None:
        source = self.source(operator)
        source.complete(self.ledger)
        self._finish_if_drained(source)

    def writes_done(self, operator: str, connection: str, first: int, last: int, records: int) -> None:
        """The external system has applied write actions `first` to `last` (Algorithm 5 Step 3)."""
        self.ledger.add(WritesDone(operator, connection, first, last))
        self.ledger.count(Port(operator, connection), "write", last - first + 1, records)

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

    def source(self, operator: str) -> SourceProtocol:
        protocol = self.operators[operator]
        if not isinstance(protocol, SourceProtocol):
            raise ProtocolViolation(f"operator {operator!r} is not a source")
        return protocol

    def is_finished(self) -> bool:
        return all(operator.context.finished for operator in self.operators.values())

    def start_job(self, operator: str, inset_ids: Sequence[str]) -> list[tuple[str, Any]]:
        """Hand triggered Input Sets to a job: their event states; they are not offered again in this epoch."""
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
            outputs = list(operator.generate(inset_id))
            self._complete(operator, inset_id, outputs, has_read=any(isinstance(o, Read) for o in outputs))

    def _complete(
        self, operator: OperatorProtocol, inset_id: str, outputs: Iterable[Output], *, has_read: bool
    ) -> None:
        input_set = operator.close_input_set(inset_id, self.ledger)
        for output in outputs:
            match output:
                case Emit():
                    self._emit(operator, output, (inset_id, input_set), has_read=has_read)
                case Write():
                    self._log_write(operator, output)
                case Read():
                    self._log_read(operator, output, (inset_id,))

    def _emit(
        self, operator: OperatorProtocol, output: Emit, origin: tuple[str, InputSetState] | None, *, has_read: bool
    ) -> None:
        sender = Port(operator.spec.name, output.port)
        if output.port not in operator.spec.outputs:
            raise ProtocolViolation(
                f"operator {sender.operator!r} sent an event to port {output.port!r}, which it does not have"
            )
        event_id = operator.context.allocate_event(output.port)
        in_scope = output.port in operator.spec.lineage_out
        if in_scope and origin is not None and (origin[1].lineage or has_read):
            self.ledger.add(RecordLineage(sender, event_id, origin[0]))
        self._send(Event(sender, event_id, Kind.DATA, output.records, output.payload, output.body), in_scope=in_scope)

    def _send(self, event: Event, *, in_scope: bool) -> None:
        local = self._local.get(event.sender, ())
        self.ledger.produce(event, self._remote.get(event.sender, ()), local, in_scope=in_scope)
        for receiver in local:
            self._receive(receiver, event, in_log=False)

    def _log_write(self, operator: OperatorProtocol, write: Write) -> None:
        number = operator.context.allocate_write(write.connection)
        self.ledger.add(
            LogWrite(
                operator.spec.name, write.connection, number, write.header, write.records, write.payload, write.body
            )
        )

    def _log_read(self, operator: OperatorProtocol, read: Read, inset_ids: tuple[str, ...]) -> None:
        """Algorithm 4: an action id, and a stored effect, only where lineage asks for it."""
        if not operator.spec.lineage_out or not inset_ids:
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

    def _finish_if_drained(self, operator: OperatorProtocol) -> None:
        """End of stream (DESIGN decision 9): logged on every output port once nothing can come any more."""
        if not operator.is_drained():
            return
        operator.context.finished = True
        operator.dirty = True
        for port in operator.spec.outputs:
            event_id = operator.context.allocate_event(port)
            self._send(Event(Port(operator.spec.name, port), event_id, Kind.END), in_scope=False)
