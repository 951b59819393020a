"""A series divided: counts, triggers, failure points and epochs of ABS by the factor; rates and processing times are kept.

The end count follows from them: OP5 ends with the last event that OP4 makes, and there are at least five.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.paper.series import Series, Shape

LEAST_OUTPUTS = 5
OP3_WINDOW = 2
"""Events that OP3 accumulates, where it is stateful."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """What one run does; times in seconds. The pipeline is built from it in every process."""

    shape: str
    events: int
    every: float
    event_bytes: int
    op2_seconds: float
    op3_seconds: float
    trigger: int
    op2_trigger: int
    end: int
    """Events after which the last operator has seen all."""
    fails: str
    points: tuple[int, ...]
    """Increasing."""
    snapshot_seconds: float = 15.0
    """Between two snapshots of ABS. Divided, too: so a failure is where it is within its epoch in the paper."""

    @property
    def seconds(self) -> float:
        """The least that a run can take, by its slowest operator."""
        slowest = max(self.every, 0.0 if self.shape == Shape.REPLICAS else self.op2_seconds)
        share = 2 if self.shape == Shape.REPLICAS else OP3_WINDOW
        return self.events * max(slowest, self.op3_seconds / share)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def scaled(series: Series, factor: float, *, event_bytes: int | None = None) -> Scaled:
    """The series times `factor`, in whole numbers that make at least five events of OP4."""
    trigger = max(1, round(series.trigger * factor))
    op2_trigger = max(1, round(series.op2_trigger * factor)) if series.op2_trigger else 0
    events = _events(series, round(series.events * factor), trigger)
    return Scaled(
        shape=series.shape,
        events=events,
        every=series.every_ms / 1e3,
        event_bytes=series.event_bytes if event_bytes is None else event_bytes,
        op2_seconds=series.op2_ms / 1e3,
        op3_seconds=series.op3_ms / 1e3,
        trigger=trigger,
        op2_trigger=op2_trigger,
        end=_accumulated(series.shape, events) // trigger,
        fails=series.fails,
        points=_points(series.points, factor),
        snapshot_seconds=series.snapshot_seconds * factor,
    )


def _accumulated(shape: Shape, events: int) -> int:
    """Events that count for the trigger of the writing operator; of synchronized inputs, those of OP3."""
    match shape:
        case Shape.LINEAR | Shape.SYNCHRONIZED:
            return events // OP3_WINDOW
        case Shape.UNSYNCHRONIZED:
            return events + events // OP3_WINDOW
    return events


def _events(series: Series, wanted: int, trigger: int) -> int:
    """As wanted, or the next larger number of which the writing operator leaves nothing over, and makes enough."""
    events = max(wanted, OP3_WINDOW)
    while (
        events % OP3_WINDOW
        or _accumulated(series.shape, events) % trigger
        or _accumulated(series.shape, events) < LEAST_OUTPUTS * trigger
    ):
        events += 1
    return events


def _points(points: tuple[int, ...], factor: float) -> tuple[int, ...]:
    """Each once: what happens at one event happens once."""
    found: list[int] = []
    for point in points:
        found.append(max(round(point * factor), found[-1] + 1 if found else 1))
    return tuple(found)
