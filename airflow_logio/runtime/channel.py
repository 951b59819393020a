"""The log as the channel (DESIGN decision 5): pulls undone, unassigned events of the group's input ports.

The cursors of its lanes are volatile and start at the marks; they bound every scan. What is fetched waits in the mailbox,
which bounds memory, however far the receiver lags.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.recovery import LoggedEvent
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.lanes import Lane
from airflow_logio.runtime.mailbox import Closed, Mailbox
from airflow_logio.runtime.payloads.bodies import Bodies, size_of
from airflow_logio.store.port import GroupSession

POLL_SECONDS = 0.25
FETCH_EVENTS = 64
FETCH_BYTES = 8 * 2**20


class Channel:
    """One thread for all input ports of a group that are fed from the log. `may_move`: the group is a replica."""

    def __init__(
        self,
        session: GroupSession,
        lanes: Sequence[Lane],
        bodies: Bodies,
        mailbox: Mailbox,
        failed: Callable[[BaseException], None],
        *,
        may_move: bool = False,
    ) -> None:
        self._session = session
        self._lanes = [lane for lane in lanes if not lane.has_ended()]
        self._bodies = bodies
        self._mailbox = mailbox
        self._failed = failed
        self._may_move = may_move
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-channel", daemon=True)

    def start(self) -> None:
        if self._lanes:
            self._thread.start()

    def stop(self) -> None:
        """The mailbox must be closed first: the thread may wait for room in it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and self._lanes:
                if not self._pull():
                    self._session.wait(POLL_SECONDS)
                    self._notice_moves()
        except Closed:
            return
        except BaseException as error:
            self._failed(error)

    def _pull(self) -> bool:
        """One round over the lanes; True if anything was there."""
        try:
            found = [lane.pull(self._fetch, self._hand_over) for lane in self._lanes]
        except LogUnavailable:
            return False  # the committer reports an outage that lasts; the channel only waits
        self._lanes = [lane for lane in self._lanes if not lane.has_ended()]
        return any(found)

    def _notice_moves(self) -> None:
        """A replica that commits nothing would not learn that slots came or went: moves raise its epoch."""
        if not self._may_move:
            return
        try:
            self._session.check()
        except LogUnavailable:
            return

    def _fetch(self, receiver: Port, after: int) -> Sequence[LoggedEvent]:
        return self._session.fetch(receiver, after, max_events=FETCH_EVENTS, max_bytes=FETCH_BYTES)

    def _hand_over(self, receiver: Port, logged: LoggedEvent) -> None:
        event = logged.event
        self._mailbox.put_input((receiver, self._bodies.unpacked(event)), size_of(event))
