"""In which order the channel takes the events of a group's input ports from the log.

A port by itself is read as fast as the group takes its events. The ports of an operator with a declared order are read
together, in turn: an event that is not due stays out of the group's mailbox, so that a port that waits for another one
holds no operator up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.ports import PortOrder
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.values import FIRST_EVENT_ID, Kind, Port

EVENTS_PER_ROUND = 64

Fetch = Callable[[Port, int], Sequence[LoggedEvent]]
"""(receiver port, last event_id taken) → the next events in the log, few or none."""

More = Callable[[LoggedEvent], Sequence[LoggedEvent]]
"""The last event that is known → what may be handed over behind it, by now."""

HandOver = Callable[[Port, Sequence[LoggedEvent], More], Iterator[LoggedEvent]]
"""(receiver port, events in their order) → each of them, once it has been handed over, and perhaps more."""


class Lane(Protocol):
    """Ports that are read together. Belongs to the channel's thread."""

    def wanted(self) -> tuple[Port, int] | None:
        """What the next round fetches first, so that the channel can ask for all lanes at once. None if it has some."""
        ...

    def pull(self, fetch: Fetch, hand_over: HandOver) -> bool:
        """One round: hand over what is there, but not so much that other lanes starve. False if there was nothing."""
        ...

    def is_cut(self) -> bool:
        """The last round has ended for the sake of other lanes: more may be there."""
        ...

    def has_ended(self) -> bool:
        """The end of stream was handed over on every port."""
        ...


class OnePort:
    """A port whose events are taken as they come; `mark` is the last one taken."""

    def __init__(self, port: Port, mark: int) -> None:
        self._port = port
        self._mark = mark
        self._ended = False

    def wanted(self) -> tuple[Port, int] | None:
        return self._port, self._mark

    def pull(self, fetch: Fetch, hand_over: HandOver) -> bool:
        events = fetch(self._port, self._mark)
        for logged in hand_over(self._port, events, self._more(fetch, len(events))):
            self._mark = logged.event.event_id
            self._ended = logged.event.kind is Kind.END
        return bool(events)

    def _more(self, fetch: Fetch, known: int) -> More:
        """What comes while a round lasts, which has so many events. An outage of the log is none of theirs."""

        def more(last: LoggedEvent) -> Sequence[LoggedEvent]:
            nonlocal known
            if known >= EVENTS_PER_ROUND or last.event.kind is Kind.END:
                return ()
            try:
                found = fetch(self._port, last.event.event_id)
            except LogUnavailable:
                return ()
            known += len(found)
            return found

        return more

    def is_cut(self) -> bool:
        return False

    def has_ended(self) -> bool:
        return self._ended


class InTurn:
    """The ports of an operator with a declared order: `marks` and `ended` are its context's, as recovery left them.

    What was fetched of a port and is not due waits here: one fetch of each port at most.
    """

    def __init__(self, operator: str, order: PortOrder, marks: Mapping[str, int], ended: Collection[str]) -> None:
        self._operator = operator
        self._order = order
        self._marks = dict(marks)
        self._ended = set(ended)
        self._fetched: dict[str, deque[LoggedEvent]] = {}
        self._is_cut = False

    def wanted(self) -> tuple[Port, int] | None:
        port = self._order.next_port(self._marks, self._ended)
        return None if port is None or self._fetched.get(port) else self._at(port)

    def pull(self, fetch: Fetch, hand_over: HandOver) -> bool:
        taken = 0
        for port, logged in islice(iter(lambda: self._next(fetch), None), EVENTS_PER_ROUND):
            for _ in hand_over(Port(self._operator, port), [logged], lambda _: ()):
                self._fetched[port].popleft()  # only now: handing over may fail, and is tried again
                self._marks[port] = logged.event.event_id
                if logged.event.kind is Kind.END:
                    self._ended.add(port)
                taken += 1
        self._is_cut = taken == EVENTS_PER_ROUND
        return taken > 0

    def is_cut(self) -> bool:
        return self._is_cut

    def has_ended(self) -> bool:
        return self._order.next_port(self._marks, self._ended) is None

    def _next(self, fetch: Fetch) -> tuple[str, LoggedEvent] | None:
        """The event whose turn it is, if it has come."""
        port = self._order.next_port(self._marks, self._ended)
        if port is None:
            return None
        waiting = self._fetched.setdefault(port, deque())
        if not waiting:
            waiting.extend(fetch(*self._at(port)))
        return (port, waiting[0]) if waiting else None

    def _at(self, port: str) -> tuple[Port, int]:
        return Port(self._operator, port), self._marks.get(port, FIRST_EVENT_ID - 1)


def lanes_of(group: GroupProtocol) -> list[Lane]:
    """The lanes of a group as recovery left it, for all its ports that are fed from the log and have not ended."""
    lanes: list[Lane] = []
    alone = group.inputs_from_log()
    for name, operator in group.operators.items():
        if operator.order is not None and any(port.operator == name for port in alone):
            lanes.append(InTurn(name, operator.order, operator.context.marks, operator.context.ended))
            alone = [port for port in alone if port.operator != name]
    return lanes + [OnePort(port, group.operators[port.operator].context.mark(port.name)) for port in alone]
