"""The ledger of one step: what it touched, folded into effects when the step is closed.

An event that arrived from the log and one that a fused operator has just produced differ in one thing: the first has a
row in EVENT_LOG, the second needs one only if it outlives the step in an event state or lies on a data lineage path
(DESIGN decision 4). That is decided here, at the end of the step, when it is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_logio.protocol.effects import (
    Acknowledge,
    Assignments,
    Count,
    Delivery,
    Effect,
    Effects,
    LogEvent,
    LogStateEvent,
    MarkDone,
)
from airflow_logio.protocol.values import Event, Kind, Port, Status


@dataclass(slots=True)
class _Receipt:
    """An event received in this step, and what became of it at one receiver."""

    event: Event
    in_log: bool
    insets: dict[str, Status] = field(default_factory=dict)

    def assignments(self) -> Assignments:
        return tuple(self.insets.items())

    def is_undone(self) -> bool:
        return Status.UNDONE in self.insets.values()


@dataclass(slots=True)
class _Produced:
    event: Event
    remote: tuple[Port, ...]
    local: tuple[Port, ...]
    in_scope: bool


class Ledger:
    """Collects what the operators of a group did since the last `close`."""

    def __init__(self) -> None:
        self._receipts: dict[tuple[Port, int], _Receipt] = {}
        self._produced: list[_Produced] = []
        self._done: list[MarkDone] = []
        self._state_events: dict[tuple[str, str], LogStateEvent] = {}
        self._effects: Effects = []
        self._counts: dict[tuple[Port, str], list[int]] = {}
        self.has_output = False
        """The step made an Output Set or a write action: it should be committed without waiting for the flush timer."""
        self.received = 0

    def receive(self, receiver: Port, event: Event, *, in_log: bool) -> None:
        self._receipts[receiver, event.event_id] = _Receipt(event, in_log)
        if in_log:
            self.received += 1
        if event.kind is Kind.DATA:
            self.count(receiver, "in", 1, event.records, len(event.body or b""))

    def assign(self, receiver: Port, event_id: int, inset_id: str) -> None:
        self._receipts[receiver, event_id].insets[inset_id] = Status.UNDONE

    def mark_done(self, operator: str, inset_id: str, pending: list[tuple[str, int]], logged_rows: int) -> None:
        """Rows of this step are born done; rows of earlier steps are marked, and counted."""
        for port, event_id in pending:
            self._receipts[Port(operator, port), event_id].insets[inset_id] = Status.DONE
        if logged_rows:
            self._done.append(MarkDone(operator, inset_id, logged_rows))
        self.has_output = True

    def produce(self, event: Event, remote: tuple[Port, ...], local: tuple[Port, ...], *, in_scope: bool) -> None:
        self._produced.append(_Produced(event, remote, local, in_scope))
        self.has_output = True
        if event.kind is Kind.DATA:
            self.count(event.sender, "out", 1, event.records)

    def log_state(self, effect: LogStateEvent) -> None:
        self._state_events[effect.operator, effect.inset_id] = effect

    def finish_state(self, operator: str, inset_id: str, *, keep: bool) -> None:
        """A state event of this step that is done already is nothing to recover; only lineage wants to keep it."""
        effect = self._state_events.pop((operator, inset_id), None)
        if effect is not None and keep:
            self.add(replace(effect, status=Status.DONE))

    def add(self, effect: Effect) -> None:
        self._effects.append(effect)

    def count(self, port: Port, direction: str, events: int, records: int, size: int = 0) -> None:
        total = self._counts.setdefault((port, direction), [0, 0, 0])
        total[0] += events
        total[1] += records
        total[2] += size

    def close(self) -> Effects:
        """The effects of the step, in the order in which a store may apply them. The ledger is empty afterwards."""
        effects: Effects = [e for p in self._produced if (e := self._log_event(p)) is not None]
        effects += [
            Acknowledge(receipt.event.sender, receiver, event_id, receipt.assignments())
            for (receiver, event_id), receipt in self._receipts.items()
            if receipt.in_log
        ]
        effects += self._state_events.values()
        effects += self._done
        effects += self._effects
        effects += [Count(port, way, *total) for (port, way), total in self._counts.items()]
        self.__init__()  # type: ignore[misc]  # an empty ledger is a new ledger
        return effects

    def _log_event(self, produced: _Produced) -> LogEvent | None:
        deliveries = [Delivery(receiver) for receiver in produced.remote]
        for receiver in produced.local:
            receipt = self._receipts[receiver, produced.event.event_id]
            if receipt.is_undone() or (produced.in_scope and produced.event.kind is Kind.DATA):
                deliveries.append(Delivery(receiver, receipt.assignments(), fused=True))
        return LogEvent(produced.event, tuple(deliveries)) if deliveries or produced.in_scope else None
