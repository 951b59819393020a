"""How old the lag of a connection is: since when its oldest event waits that the receiver has not acknowledged."""

from __future__ import annotations

from collections import deque

from airflow_logio.protocol.values import Port
from airflow_logio.runtime.figures.snapshot import ConnectionView

MOST_LOOKS = 900
"""Looks that are remembered of a connection that lags."""


class LagAges:
    """Found from looks at one run: what had been sent by an earlier one, and is not acknowledged by now, is at least so old.

    The log counts events, and does not say when each was sent. So an age is exact to the time between two looks, and what
    lagged at the first look counts from there.
    """

    def __init__(self) -> None:
        self._sent: dict[tuple[Port, Port], deque[tuple[float, int]]] = {}

    def seen(self, one: ConnectionView, at: float) -> float | None:
        """The age in seconds at a look at time `at`, in seconds since the epoch; None where nothing lags."""
        looks = self._sent.setdefault((one.sender, one.receiver), deque(maxlen=MOST_LOOKS))
        acknowledged = one.acknowledged.events
        while looks and looks[0][1] <= acknowledged:
            looks.popleft()
        if not one.lag.events:
            return None
        if not looks or one.sent.events > looks[-1][1]:
            looks.append((at, one.sent.events))
        return max(0.0, at - looks[0][0])
