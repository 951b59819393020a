"""The invariant of a drain: sources read no further."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from airflow_logio.testing.simulator.plan import Read, UpTo
from airflow_logio.testing.simulator.violation import Violation


class SourceProgress(NamedTuple):
    """What the log says of a source. 0 if it has begun no read action; with the reference of a stored effect, if any."""

    action_id: int
    offset: int
    stored: str | None

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> SourceProgress:
        return cls(state["action_id"], state["offset"], state["stored"]) if state else NOTHING


NOTHING = SourceProgress(0, 0, None)


class DrainWatch:
    """How far each source has read by its stored state, and which drivers must have heard that it is to drain."""

    def __init__(self) -> None:
        self._progress: dict[str, SourceProgress] = {}
        self._obeys: dict[str, int] = {}
        """Group → its first incarnation that registers after it was asked to drain."""

    def asked_to_drain(self, group: str, incarnation: int) -> None:
        """From this incarnation on, drivers of the group know the wish before they read."""
        self._obeys.setdefault(group, incarnation)

    def read(self, sources: Sequence[str]) -> Read:
        """How far every source was read, by its stored state."""
        found = {name: self._progress.get(name, NOTHING) for name in sources}
        return {name: UpTo(max(at.action_id - 1, 0), at.offset) for name, at in found.items()}

    def what_is_to_drain_reads_no_further(
        self, group: str, incarnation: int, operator: str, state: Mapping[str, Any]
    ) -> None:
        """A driver from before the wish may not have heard of it. Any later one uses what is stored, and nothing else."""
        before, now = self._progress.get(operator, NOTHING), SourceProgress.of(state)
        self._progress[operator] = now
        if incarnation < self._obeys.get(group, incarnation + 1):
            return
        begins = now.action_id != before.action_id
        stores = now.stored is not None and now.stored != before.stored
        if begins or stores or (now.offset != before.offset and before.stored is None):
            raise Violation(
                "what_is_to_drain_reads_no_further",
                f"incarnation {incarnation} of {group} was asked to drain before its first read, and {operator} went from "
                f"{before} to {now}",
            )
