"""The ledger of one step: what it touched, folded into effects when the step is closed.

An event that arrived from the log and one that a fused operator has just produced differ in one respect: the first has
a row in EVENT_LOG, the second needs one only if it outlives the step in an event state or lies on a data lineage path
(design D4). This is decided here at the end of the step, when it is known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from msgspec.structs import replace

from airflow_logio.protocol.effects import (
    Acknowledge,
    Assignments,
    CountEvents,
    Delivery,
    Effect,
    Effects,
    LogEvent,
    LogStateEvent,
    MarkDone,
    SetAside,
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

    def is_used_up(self) -> bool:
        """Nothing of the event is held in an event state or set aside: the step has used all of it."""
        return all(status is Status.DONE for status in self.insets.values())


@dataclass(slots=True)
class _Produced:
    event: Event
    remote: tuple[Port, ...]
    local: tuple[Port, ...]
    in_scope: bool
    held: bool


class Ledger:
    """Collects what the operators of a group did since the last `close`.

    `lineage_in` are the receiver ports for which lineage is captured, including those in other groups: their rows are kept.
    """

    def __init__(self, lineage_in: Collection[Port] = frozenset()) -> None:
        self._lineage_in = lineage_in
        self._receipts: dict[tuple[Port, int], _Receipt] = {}
        self._produced: list[_Produced] = []
        self._done: list[MarkDone | SetAside] = []
        self._state_events: dict[tuple[str, str], LogStateEvent] = {}
        self._effects: Effects = []
        self._counts: dict[tuple[Port, str], list[int]] = {}
        self.has_output = False
        """The step made an Output Set or a write action: it should be committed without waiting for the flush timer."""
        self.received = 0

    def keeps(self, receiver: Port) -> bool:
        """Whether lineage keeps the rows of a receiver port."""
        return receiver in self._lineage_in

    def receive(self, receiver: Port, event: Event, *, in_log: bool) -> None:
        self._receipts[receiver, event.event_id] = _Receipt(event, in_log)
        if in_log:
            self.received += 1
        if event.kind is Kind.DATA:
            size = len(event.body or b"") if event.made_of is None else event.made_of.size
            self.count(receiver, "in", 1, event.records, size)

    def assign(self, receiver: Port, event_id: int, inset_id: str) -> None:
        self._receipts[receiver, event_id].insets[inset_id] = Status.UNDONE

    def mark_done(self, operator: str, inset_id: str, pending: list[tuple[str, int]], logged_rows: int) -> None:
        """Rows of this step are born done; rows of earlier steps are marked, and counted."""
        for port, event_id in pending:
            self._receipts[Port(operator, port), event_id].insets[inset_id] = Status.DONE
        if logged_rows:
            self._done.append(MarkDone(operator, inset_id, logged_rows))
        self.has_output = True

    def set_aside(
        self, operator: str, inset_id: str, pending: list[tuple[str, int]], logged_rows: int, error: str
    ) -> None:
        """Quarantine: rows of this step are born set aside; rows of earlier steps are marked, and counted."""
        for port, event_id in pending:
            self._receipts[Port(operator, port), event_id].insets[inset_id] = Status.ASIDE
        if (effect := self._state_events.get((operator, inset_id))) is not None:
            self._state_events[operator, inset_id] = replace(effect, status=Status.ASIDE)
        self._done.append(SetAside(operator, inset_id, logged_rows, error))
        self.has_output = True

    def produce(
        self,
        event: Event,
        remote: tuple[Port, ...],
        local: tuple[Port, ...],
        *,
        in_scope: bool,
        held: bool = False,
    ) -> None:
        self._produced.append(_Produced(event, remote, local, in_scope, held))
        self.has_output = True
        if event.kind is Kind.DATA:
            self.count(event.sender, "out", 1, event.records)

    def log_state(self, effect: LogStateEvent) -> None:
        self._state_events[effect.operator, effect.inset_id] = effect

    def finish_state(self, operator: str, inset_id: str, *, keep: bool) -> None:
        """A state event of this step that is already done is not needed for recovery; it is kept only for lineage."""
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
            Acknowledge(
                receipt.event.sender, receiver, event_id, receipt.assignments(), kept=receiver in self._lineage_in
            )
            for (receiver, event_id), receipt in self._receipts.items()
            if receipt.in_log
        ]
        effects += self._state_events.values()
        effects += self._done
        effects += self._effects
        effects += [CountEvents(port, way, *total) for (port, way), total in self._counts.items()]
        self.__init__(self._lineage_in)  # type: ignore[misc]  # an empty ledger is a new ledger
        return effects

    def _log_event(self, produced: _Produced) -> LogEvent | None:
        is_data = produced.event.kind is Kind.DATA
        deliveries = [Delivery(receiver, kept=is_data and receiver in self._lineage_in) for receiver in produced.remote]
        for receiver in produced.local:
            receipt = self._receipts[receiver, produced.event.event_id]
            kept = is_data and receiver in self._lineage_in
            if kept or not receipt.is_used_up():
                deliveries.append(Delivery(receiver, receipt.assignments(), fused=True, kept=kept))
        if not deliveries and not produced.in_scope:
            return None
        return LogEvent(produced.event, tuple(deliveries), kept=produced.in_scope and is_data, held=produced.held)
