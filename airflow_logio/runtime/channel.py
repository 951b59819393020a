"""The log as the channel (DESIGN decision 5): pulls undone, unassigned events of the group's external input ports.

The cursor is volatile and starts at the mark; it bounds every scan. What is fetched waits in the mailbox, which bounds
memory, however far the receiver lags.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.values import Event, Kind, Port
from airflow_logio.runtime.arrow import decode
from airflow_logio.runtime.mailbox import Closed, Mailbox
from airflow_logio.store.port import GroupSession
from airflow_logio.store.records import LoggedEvent

POLL_SECONDS = 0.25
FETCH_EVENTS = 64
FETCH_BYTES = 8 * 2**20


class Channel:
    """One thread for all external input ports of a group. `cursors` maps each port to its mark."""

    def __init__(
        self,
        session: GroupSession,
        cursors: Mapping[Port, int],
        mailbox: Mailbox,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._session = session
        self._cursors = dict(cursors)
        self._mailbox = mailbox
        self._failed = failed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-channel", daemon=True)

    def start(self) -> None:
        if self._cursors:
            self._thread.start()

    def stop(self) -> None:
        """The mailbox must be closed first: the thread may wait for room in it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and self._cursors:
                if not self._pull():
                    self._session.wait(POLL_SECONDS)
        except Closed:
            return
        except BaseException as error:
            self._failed(error)

    def _pull(self) -> bool:
        """One round over the ports; True if anything was there."""
        found = False
        for receiver in list(self._cursors):
            try:
                events = self._session.fetch(
                    receiver, self._cursors[receiver], max_events=FETCH_EVENTS, max_bytes=FETCH_BYTES
                )
            except LogUnavailable:
                return False  # the committer reports an outage that lasts; the channel only waits
            for logged in events:
                self._hand_over(receiver, logged)
                found = True
        return found

    def _hand_over(self, receiver: Port, logged: LoggedEvent) -> None:
        event = logged.event
        self._mailbox.put_input((receiver, unpacked(event)), len(event.body or b""))
        self._cursors[receiver] = event.event_id
        if event.kind is Kind.END:
            del self._cursors[receiver]


def unpacked(event: Event) -> Event:
    """The event with its records as an Arrow table; raises `LogInconsistent` if its body is damaged."""
    if event.kind is not Kind.DATA:
        return event
    return replace(event, payload=decode(f"event {event.event_id} of {event.sender}", event.body or b""))
