"""Moves the events of a hand-written operator out of the log and into it, and waits for both."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from airflow_logio.contrib.paper_api.book import Book
from airflow_logio.contrib.paper_api.call_order import CallOrder
from airflow_logio.contrib.paper_api.host import Stopped
from airflow_logio.contrib.paper_api.inbox import FETCH_BYTES, FETCH_EVENTS, Inbox
from airflow_logio.contrib.paper_api.infos import EventInfo, StateInfo, StreamEvent
from airflow_logio.errors import ExternalUnavailable
from airflow_logio.protocol.loop import FLUSH_EVENTS, FLUSH_SECONDS
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.store.rules.patience import Patience

T = TypeVar("T")

POLL_SECONDS = 0.25
FLUSH_BYTES = 8 * 2**20


class EventFlow:
    """Every wait here raises `Stopped` as soon as the group is asked to halt."""

    def __init__(self, book: Book, order: CallOrder) -> None:
        self._book = book
        self._order = order
        self._inbox = Inbox(book.session, book.spec.name, book.marks())

    def receive(
        self, ports: Sequence[str], state: Mapping[str, Any] | None, timeout: float | None
    ) -> StreamEvent | None:
        """The next event of these input ports; None when they have ended, or after `timeout` seconds. Flushes meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._is_flush_due():
            self._flush(state)
        while (event := self._next_event(ports)) is None:
            if self.has_ended(*ports):
                self._flush(state)
                return None
            if self._is_flush_due():
                self._flush(state)
            if deadline is not None and time.monotonic() >= deadline:
                return None
            self._pause(POLL_SECONDS if deadline is None else min(POLL_SECONDS, deadline - time.monotonic()))
        return event

    def has_ended(self, *ports: str) -> bool:
        """The streams of these input ports have ended, of all by default."""
        return self._book.context.ended.issuperset(ports or self._book.spec.inputs)

    def send(self, port: str) -> None:
        """Wake the receivers of what is logged on an output port, and wait while the slowest receiver lags too far."""
        self._book.unsent.discard(port)
        if groups := self._book.host.groups_behind(port):
            self._book.session.announce(groups)
        self._refuse_stopping()  # a source may call nothing else that says so
        while self._book.host.is_full(port):
            self._pause(POLL_SECONDS)

    def undelivered(self, port: str) -> Iterator[Event]:
        """Undone, unassigned events of an output port in order, once per receiver."""
        receivers = self._book.station.receivers.get(port, ())
        return heapq.merge(*map(self._undelivered_to, receivers), key=lambda event: event.event_id)

    def replayed(self, what: str, execute: Callable[[], T]) -> T:
        """Execute an external action; again, with back-off, while the external system is unavailable."""
        try:
            return self._book.host.replay(what, execute)
        except ExternalUnavailable as error:
            if self._book.host.is_stopping():  # that is why it was given up
                raise Stopped from error
            raise

    # --- inside -------------------------------------------------------------------------------------------------------

    def _undelivered_to(self, receiver: Port) -> Iterator[Event]:
        after = 0
        while events := self._next_undelivered(receiver, after):
            yield from (logged.event for logged in events)
            after = events[-1].event.event_id

    def _next_undelivered(self, receiver: Port, after: int) -> Sequence[LoggedEvent]:
        session = self._book.session
        return Patience().call(
            f"events for {receiver}",
            lambda: session.fetch(receiver, after, max_events=FETCH_EVENTS, max_bytes=FETCH_BYTES),
        )

    def _next_event(self, ports: Sequence[str]) -> StreamEvent | None:
        book = self._book
        self._refuse_stopping()
        while (taken := self._inbox.take([port for port in ports if not self.has_ended(port)])) is not None:
            port, event = taken
            if event.kind is Kind.DATA:
                book.unassigned[port, event.event_id] = event
                info = book.last_received = EventInfo(event.event_id, port, about=event.about)
                return StreamEvent(info, book.host.decode(event))
            book.acknowledge(port, event)
            if event.kind is Kind.END:  # and not one that was taken back
                book.context.ended.add(port)
        return None

    def _is_flush_due(self) -> bool:
        book = self._book
        if book.pending_since is None:
            return False
        late = time.monotonic() - book.pending_since >= FLUSH_SECONDS
        return late or book.ledger.received >= FLUSH_EVENTS or book.pending_bytes >= FLUSH_BYTES

    def _flush(self, state: Mapping[str, Any] | None) -> None:
        """Commit riding rows, so that the senders and the next incarnation see them (design D2)."""
        if self._book.pending_since is None:
            return
        with self._order.begin() as transaction:
            if state is not None:
                transaction.store_state(StateInfo(self._book.context.allocate_state()), state)

    def _pause(self, seconds: float) -> None:
        self._refuse_stopping()
        self._book.session.wait(max(0.0, seconds))
        self._book.host.idle()
        self._refuse_stopping()

    def _refuse_stopping(self) -> None:
        if self._book.host.is_stopping():
            raise Stopped
