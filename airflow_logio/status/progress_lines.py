"""The progress of a group, on one line for a task log, and when such a line is due."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_logio.status.snapshot import Amount, GroupView

EVERY_SECONDS = 30.0


def progress_line(view: GroupView) -> str:
    """Such as ``hourly, incarnation 2: in 1,234 events (45,678 records), out 120 events, lag 12 events, 56 commits``.

    A replicated group says how many replicas are in use instead of its incarnation. A source group has no input from
    others: what it has read stands there.
    """
    status = view.status
    parts = []
    if view.is_source:
        share = "" if view.done is None else f", {view.done:.0%} of the input"
        parts.append(f"read {_amount(view.measured)}{share}")
    else:
        parts.append(f"in {_amount(view.received)}")
    if view.sent.events:
        parts.append(f"out {view.sent.events:,} events")
    if view.writes:
        parts.append(f"{view.writes:,} writes")
    if view.lag.events:
        parts.append(f"lag {view.lag.events:,} events")
    parts.append(f"{status.commits:,} commits")
    if status.rss_bytes:
        parts.append(f"{status.rss_bytes / 2**20:,.0f} MB")
    who = f"incarnation {status.incarnation}" if view.replicas is None else f"{view.replicas} replica(s)"
    return f"{view.name}, {who}: {', '.join(parts)}"


def _amount(amount: Amount) -> str:
    return f"{amount.events:,} events ({amount.records:,} records)"


class ProgressLines:
    """The lines of one group: one every `every_seconds` at most, and only if the group has moved on since the last."""

    def __init__(self, every_seconds: float = EVERY_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every_seconds
        self._clock = clock
        self._asked_at = float("-inf")
        self._last: object = None

    def is_due(self) -> bool:
        """Whether it is time to look again: a look reads the log."""
        return self._clock() - self._asked_at >= self._every

    def line(self, view: GroupView) -> str | None:
        """The line for this look, None if nothing has changed since the last one (its memory does not count)."""
        self._asked_at = self._clock()
        figures = (
            view.status.incarnation,
            view.replicas,
            view.status.commits,
            view.measured,
            view.sent,
            view.writes,
            view.lag,
        )
        if figures == self._last:
            return None
        self._last = figures
        return progress_line(view)
