"""The thread of a source that clears up: discards stored effects, and tells the source what it may forget.

It is not the one that reads, which may be blocked in the external system for as long as that likes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from airflow_logio.authored_frames import authored_frames
from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.sources.ranges import END
from airflow_logio.dataflow.unavailability import advice
from airflow_logio.driver.mailbox import Closed, Mailbox
from airflow_logio.driver.sources.read_results import Discarded, Forgotten
from airflow_logio.driver.sources.source_access import SourceAccess
from airflow_logio.errors import ConfigurationError, FailurePoint, LogioError, OperatorFailed
from airflow_logio.protocol.commit_queue import DiscardOrder, ForgetOrder
from airflow_logio.systems.connections import replay
from airflow_logio.systems.payloads.payload_store import EpochPayloads
from airflow_logio.systems.payloads.roots import HOW_TO_CONFIGURE


class SourceClearing:
    """`start` runs a function on a thread of the source, and reports what it raises; `stopping` is set before `stop`."""

    def __init__(
        self,
        access: SourceAccess,
        payloads: EpochPayloads | None,
        mailbox: Mailbox,
        failed: Callable[[BaseException], None],
        start: Callable[[str, Callable[[], None]], threading.Thread],
        stopping: threading.Event,
    ) -> None:
        self._access = access
        self._payloads = payloads
        self._mailbox = mailbox
        self._failed = failed
        self._start = start
        self._stopping = stopping
        self._refs: dict[int, str] = {}
        self._orders: queue.SimpleQueue[tuple[DiscardOrder | ForgetOrder, threading.Event] | None] = queue.SimpleQueue()
        self.last_discard = threading.Event()
        """Set when every store that had to be discarded so far is gone."""
        self.last_discard.set()
        self.thread: threading.Thread | None = None
        """None until there is something to clear."""

    def ask(self, order: DiscardOrder | ForgetOrder) -> None:
        if self.thread is None:
            self.thread = self._start("clear", self._clear_all)
        cleared = threading.Event()
        if isinstance(order, DiscardOrder):
            self.last_discard = cleared
        self._orders.put((order, cleared))

    def remember(self, action_id: int, ref: str) -> None:
        """The stored effect of a read action, for the order to discard it."""
        self._refs[action_id] = ref

    def stop(self) -> None:
        """Nothing further is cleared. The thread is the caller's to join."""
        self._orders.put(None)

    def _clear_all(self) -> None:
        while (asked := self._orders.get()) is not None and not self._stopping.is_set():
            order, cleared = asked
            if isinstance(order, DiscardOrder):
                self._discard(order)
            else:
                self._forget(order)
            cleared.set()

    def _discard(self, order: DiscardOrder) -> None:
        name = self._access.name
        ref = self._refs.pop(order.action_id, None) if order.ref is None else order.ref
        if ref is None:
            raise OperatorFailed(f"source {name!r} knows no store of read action {order.action_id}")
        crash_here(CrashPoint.BEFORE_DROP)
        point = FailurePoint(name, action=f"discarding the stored effect of read action {order.action_id}")
        with self._access.connections.calls.call("remove", point, limited=False):
            needed_payloads(name, self._payloads).remove([ref])
        crash_here(CrashPoint.AFTER_DROP)
        self._mailbox.put(Discarded(name, order.action_id))

    def _forget(self, order: ForgetOrder) -> None:
        access = self._access
        point = FailurePoint(access.name, action=f"forget() of read action {order.action_id}")
        crash_here(CrashPoint.BEFORE_FORGET)
        what, seconds = f"telling source {access.name} what it may forget", access.connections.replay_seconds
        try:
            replay(
                what,
                lambda: access.forget(order.action[END], point),
                seconds,
                self._stopping,
                access.operator.unavailable,
            )
        except Exception as error:
            if self._stopping.is_set():
                raise Closed from None
            if isinstance(error, LogioError):
                raise
            cause = f"{type(error).__name__}: {error}{advice(error, f'source {access.name!r}')}{authored_frames(error)}"
            failure = OperatorFailed(cause, point, place=f"pipeline {access.connections.pipeline!r}, {point}")
            failure.__cause__ = error
            self._failed(failure)  # here: its place is not the one that is being read
            raise Closed from error
        crash_here(CrashPoint.AFTER_FORGET)
        self._mailbox.put(Forgotten(access.name, order.action_id))


def needed_payloads(source: str, payloads: EpochPayloads | None) -> EpochPayloads:
    """Raises `ConfigurationError` where the deployment has no payload store."""
    if payloads is None:
        raise ConfigurationError(
            f"source {source!r} cannot be replayed, so its effect must be stored, and the deployment has no payload "
            f"store: {HOW_TO_CONFIGURE}"
        )
    return payloads
