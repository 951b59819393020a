"""Events on their way to a hand-written operator, pulled from the log (design D5: the log is the channel)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.values import Event, Port
from airflow_logio.store.port.session_port import GroupSession

FETCH_EVENTS = 64
FETCH_BYTES = 8 * 2**20


class Inbox:
    """`marks` are the last acknowledged event ids of the input ports; the ports take turns."""

    def __init__(self, session: GroupSession, operator: str, marks: Mapping[str, int]) -> None:
        self._session = session
        self._operator = operator
        self._cursors = dict(marks)
        self._fetched: dict[str, deque[Event]] = {port: deque() for port in marks}

    def take(self, ports: Iterable[str]) -> tuple[str, Event] | None:
        """The next event of one of these ports, if there is one: those already fetched first, then by turns."""
        for port in self._by_turns(ports):
            if not self._fetched[port]:
                self._fetch(port)
            if self._fetched[port]:
                event = self._fetched[port].popleft()
                # Its turn is over: the other ports come first the next time.
                self._fetched[port] = self._fetched.pop(port)
                return port, event
        return None

    def _by_turns(self, ports: Iterable[str]) -> Sequence[str]:
        wanted = set(ports)
        return [port for port in self._fetched if port in wanted]

    def _fetch(self, port: str) -> None:
        receiver = Port(self._operator, port)
        try:
            events = self._session.fetch(receiver, self._cursors[port], max_events=FETCH_EVENTS, max_bytes=FETCH_BYTES)
        except LogUnavailable:
            return  # delivery only waits for the log; the next commit reports an outage that lasts
        self._fetched[port].extend(logged.event for logged in events)
        if events:
            self._session.will_hear()  # says again that this group waits, if it was not told of them
            self._cursors[port] = events[-1].event.event_id
