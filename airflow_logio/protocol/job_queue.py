"""Which triggered Input Sets go into which Spark job, and when (design D7). Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_logio.protocol.group import GroupProtocol


@dataclass(frozen=True, slots=True)
class JobBounds:
    """Bounds of jobs, in records, bytes and seconds."""

    target_records: int = 300_000
    """A job starts at once when this many records wait: memory stays bounded, and they are worth the start-up of a job."""
    first_records: int = 20_000
    """The first job of a driver is small: a recovered group shows its next Output Set before it works through its backlog."""
    linger_seconds: float = 1.0
    """Otherwise it starts when the oldest triggered Input Set has waited this long, or nothing more can come."""
    most_records: int = 400_000
    """Most records in one job."""
    waiting_bytes: int = 256 * 2**20
    """At most this much waits in memory, and no more records than two jobs take."""


class JobQueue:
    """The triggered Input Sets of a group's asynchronous operators. `extent` gives records and bytes of an event state."""

    def __init__(
        self,
        protocol: GroupProtocol,
        operators: Collection[str],
        extent: Callable[[Any], tuple[int, int]],
        bounds: JobBounds | None = None,
    ) -> None:
        self._protocol = protocol
        self._extent = extent
        self._bounds = bounds or JobBounds()
        self._waiting: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in operators}
        self._together: dict[str, tuple[int, int]] = dict.fromkeys(self._waiting, (0, 0))
        """Records and bytes of all that waits: it is asked for with every event."""
        self._oldest: dict[str, float] = {}
        self._begun: set[str] = set()
        """Operators that have had their first job."""

    def is_full(self) -> bool:
        """Enough is triggered for the next job and the one after it: take no more events into memory for now."""
        return any(
            records >= 2 * self._bounds.most_records or size >= self._bounds.waiting_bytes
            for records, size in self._together.values()
        )

    def note(self, operator: str, now: float) -> None:
        """Take in what was triggered since the last look."""
        waiting = self._waiting[operator]
        protocol = self._protocol.operators[operator]
        for inset_id in protocol.next_triggered():
            if inset_id not in waiting:
                records, size = waiting[inset_id] = self._extent(protocol.triggered[inset_id].held)
                all_records, all_bytes = self._together[operator]
                self._together[operator] = all_records + records, all_bytes + size
                self._oldest.setdefault(operator, now)

    def is_due(self, operator: str, now: float) -> bool:
        """Whether the next job of the operator should start now, if none is running."""
        waiting = self._waiting[operator]
        if not waiting:
            return False
        if self._protocol.operators[operator].inputs_ended():
            return True
        records, _ = self._together[operator]
        target = self._bounds.target_records if operator in self._begun else self._bounds.first_records
        return records >= target or now - self._oldest[operator] >= self._bounds.linger_seconds

    def due_at(self, operator: str, now: float) -> float | None:
        """The latest time for a job to start; None if nothing waits."""
        if not self._waiting[operator]:
            return None
        return now if self.is_due(operator, now) else self._oldest[operator] + self._bounds.linger_seconds

    def take(self, operator: str, now: float, most_records: int | None = None) -> Sequence[str]:
        """The Input Sets of the job that starts now, in the order triggered."""
        waiting = self._waiting[operator]
        limit = self._bounds.most_records if operator in self._begun else self._bounds.first_records
        self._begun.add(operator)
        held = [(inset_id, count) for inset_id, (count, _) in waiting.items()]
        chosen = batch_of(held, limit if most_records is None else min(limit, most_records))
        for inset_id in chosen:
            records, size = waiting.pop(inset_id)
            all_records, all_bytes = self._together[operator]
            self._together[operator] = all_records - records, all_bytes - size
        self._oldest.pop(operator, None)
        if waiting:
            self._oldest[operator] = now
        return chosen


def batch_of(held: Sequence[tuple[str, int]], limit: int) -> list[str]:
    """As many Input Sets, in order, as fit into `limit` records; at least one."""
    chosen: list[str] = []
    total = 0
    for inset_id, records in held:
        if chosen and total + records > limit:
            break
        chosen.append(inset_id)
        total += records
    return chosen
