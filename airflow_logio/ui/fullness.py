"""How full a connection is: which of a sender's connections may hold it up, where the sender says that something does."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_logio.protocol.values import Port
from airflow_logio.status.snapshot import ConnectionView, Snapshot


class Fullness:
    """Of one snapshot: lags as shares of the run's bound (`BacklogBound`), at which their senders wait.

    The bound is one of events and one of bytes. The log does not count the bytes that wait; events that wait are taken to be
    as large as their port's are on average.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._bound = snapshot.run.spec.backlog
        self._event_bytes = {
            row.port: row.bytes / row.events for row in snapshot.ports if row.direction == "out" and row.events
        }

    def of(self, connections: Iterable[ConnectionView]) -> float | None:
        """Of the fullest of these connections of the log: slots fill up on their own. None inside a group, where no bound
        holds a sender up."""
        shares = [self._share(one.lag.events, one.sender) for one in connections if not one.inside_group]
        return max(shares, default=None)

    def _share(self, events: int, sender: Port) -> float:
        size = events * self._event_bytes.get(sender, 0.0)
        return max(events / self._bound.events, size / self._bound.bytes)
