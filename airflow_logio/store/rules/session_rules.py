"""What a session of a group does on every log: how long it waits for its database (hole H10), how much it reads at once.

Waiting is bounded retries with back-off, then the last error; a payload store is waited for in the same way. What is read at
once is bounded (design D5): of what waits in the log, and of the Input Sets that bodies are made of again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import tenacity

from airflow_logio.errors import LogInconsistent, LogUnavailable
from airflow_logio.protocol.liveness import Outage
from airflow_logio.protocol.values import Port

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a driver waits for its database before it gives up, and how often it asks."""

    total_seconds: float = 900.0
    first_wait_seconds: float = 0.05
    longest_wait_seconds: float = 2.0
    waits_for: str = "the log database"
    """What is said to be unavailable meanwhile."""

    def call(
        self,
        what: str,
        action: Callable[[], T],
        *,
        still_wanted: Callable[[], bool] = lambda: True,
        told: Callable[[str], object] = lambda _: None,
    ) -> T:
        """Run `action` until it does not raise `LogUnavailable`. When patience with this `Outage` or interest ends, raise
        the last error. `told` is called with each error that is waited out."""
        outage, begun = Outage(self.total_seconds), 0.0

        def attempt() -> T:
            nonlocal begun
            begun = time.monotonic()
            return action()

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(LogUnavailable),
            wait=tenacity.wait_exponential(self.first_wait_seconds, self.longest_wait_seconds)
            + tenacity.wait_random(0, self.first_wait_seconds),
            stop=lambda _: outage.failed(begun, time.monotonic()) or not still_wanted(),
            before_sleep=self._reporting(what, told),
            reraise=True,
        )
        return retrying(attempt)

    def _reporting(self, what: str, told: Callable[[str], object]) -> Callable[[tenacity.RetryCallState], None]:
        def report(state: tenacity.RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            told(str(error))
            if state.attempt_number in (1, 10) or state.attempt_number % 30 == 0:
                log.warning("%s: waiting for %s (attempt %d): %s", what, self.waits_for, state.attempt_number, error)

        return report


def share(waiting: Mapping[Port, Sequence[tuple[int, int]]], max_bytes: int) -> dict[Port, int]:
    """Receiver port → id of the last event that is delivered now, such that all of them fit into `max_bytes`.

    `waiting` has (event id, size) of each port, in order. The ports take turns, one event each. The first event always
    fits. A port whose next event does not fit gets no more turns: large events of one port do not set the pace of the
    others.
    """
    last: dict[Port, int] = {}
    total = 0
    taking = {port: iter(events) for port, events in waiting.items()}
    while taking:
        for port, events in list(taking.items()):
            event_id, size = next(events, (None, 0))
            if event_id is None or (last and total + size > max_bytes):
                del taking[port]
                continue
            last[port] = event_id
            total += size
    return last


def is_all(waiting: Mapping[Port, Sequence[tuple[int, int]]], last: Mapping[Port, int], max_events: int) -> bool:
    """Whether what is delivered now is all that waits. `waiting` has at most `max_events` of each port."""
    return all(
        not events or (len(events) < max_events and last.get(port) == events[-1][0]) for port, events in waiting.items()
    )


def fitting(operator: str, inset_ids: Sequence[str], sizes: Mapping[str, int], max_bytes: int) -> Sequence[str]:
    """The first ones that fit, and the very first in any case. `sizes` has those that are in the log, in bytes.

    Only the first is needed for sure: of others, what was made may be done meanwhile. Raises `LogInconsistent` without it.
    """
    if inset_ids[0] not in sizes:
        raise gone(operator, inset_ids[0])
    chosen, total = [inset_ids[0]], sizes[inset_ids[0]]
    for inset_id in inset_ids[1:]:
        total += sizes.get(inset_id, 0)
        if total > max_bytes:
            break
        if inset_id in sizes:
            chosen.append(inset_id)
    return chosen


def gone(operator: str, inset_id: str) -> LogInconsistent:
    """The error where something undone was made of an Input Set that is not in the log."""
    return LogInconsistent(
        f"what Input Set {inset_id!r} of replay operator {operator!r} is made of is not in the log, and an event that was "
        "made of it is not done"
    )
