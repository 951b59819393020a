"""Back-pressure's second bound (DESIGN decision 5): how many unacknowledged events a sender may have in the log.

From numbers that both sides keep anyway: event ids are gapless, so a receiver's counter of acknowledged events says which
are not; nothing is counted in the log. Acknowledged events do not count, so a window larger than the bound cannot
deadlock: it acknowledges as it fills.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from airflow_logio.errors import LogUnavailable
from airflow_logio.protocol.values import Port
from airflow_logio.store.records import BacklogBound

ASK_EVERY_SECONDS = 0.1


class Backlog:
    """One output port and its receivers in other groups. Not thread-safe: it belongs to the group's loop.

    `ask` reads the receivers' counters, `last_sent` is the id of the last event that was produced.
    """

    def __init__(
        self,
        receivers: Sequence[Port],
        ask: Callable[[Sequence[Port]], Mapping[Port, tuple[int, int]]],
        bound: BacklogBound,
        last_sent: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._receivers = tuple(receivers)
        self._ask = ask
        self._bound = bound
        self._clock = clock
        self._last_sent = last_sent
        self._acknowledged = 0
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._asked_at = float("-inf")

    def note_size(self, event_id: int, size: int) -> None:
        """An event of this incarnation is on its way to the log; earlier ones are bounded by their number alone."""
        self._sizes.append((event_id, size))
        self._bytes += size

    def is_full(self) -> bool:
        """True while the slowest receiver lags by the bound; asks the log at most every tenth of a second."""
        if not self._is_over():
            return False
        if self._clock() - self._asked_at >= ASK_EVERY_SECONDS:
            self._refresh()
        return self._is_over()

    def _is_over(self) -> bool:
        return self._last_sent() - self._acknowledged >= self._bound.events or self._bytes >= self._bound.bytes

    def _refresh(self) -> None:
        self._asked_at = self._clock()
        try:
            counters = self._ask(self._receivers)
        except LogUnavailable:
            return  # still full as far as anybody knows; the committer waits for the log as well
        self._acknowledged = min(counters.get(port, (0, 0))[0] for port in self._receivers)
        while self._sizes and self._sizes[0][0] <= self._acknowledged:
            self._bytes -= self._sizes.popleft()[1]
