"""The series of experiments of Section 9, as the paper states them, and what it has measured.

Not among them: events of 5 MB in the series with 5,000 events. They would be 50 GB of log at factor 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

KB, MB = 10**3, 10**6


class Shape(StrEnum):
    """The graphs of the three use cases; of the second one, with and without synchronized inputs of OP4."""

    LINEAR = "linear"
    """OP1, OP2, OP3, OP4, OP5."""
    SYNCHRONIZED = "synchronized"
    """OP1 feeds OP2 and OP3, both feed OP4; OP5."""
    UNSYNCHRONIZED = "unsynchronized"
    REPLICAS = "replicas"
    """OP1, OP2 (Dispatcher), two replicas of OP3, OP4 (Merger), OP5 (writes), OP6."""


@dataclass(frozen=True, slots=True)
class Published:
    """What the paper says: percent of the baseline, as it writes them; "-" where it says nothing."""

    baseline_minutes: float
    normal: str
    failures: tuple[str, str, str]
    abs_normal: str
    abs_failures: tuple[str, str, str]
    """For the snapshot interval that the text gives percentages of."""
    lineage: str = "-"
    """More than without lineage."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series. `trigger` is how many events the writing operator accumulates, `op2_trigger` how many of OP2 beside."""

    name: str
    title: str
    shape: Shape
    events: int
    every_ms: int
    """OP1 generates an event so often."""
    op3_ms: int
    """Processing time."""
    trigger: int
    fails: str
    """The operator that is killed."""
    points: tuple[int, int, int]
    """After how many of its events it is killed; in use case 3 the replicas take turns, and each counts its own."""
    published: Published
    op2_trigger: int = 0
    op2_ms: int = 50
    snapshot_seconds: float = 15.0
    """The interval of ABS for which the paper's text gives percentages."""
    event_bytes: int = 10 * KB


_ONE_B = Published(5.12, "6", ("18.9", "25", "36.5"), "2.8", ("24.6", "42.5", "63.6"), "1.2")
_TWO = Published(5.10, "8.43", ("18.2", "24.1", "32"), "4", ("16.6", "32", "51.3"))

SERIES = (
    Series(
        name="1a",
        title="use case 1, 100 events, OP4 fails",
        shape=Shape.LINEAR,
        events=100,
        every_ms=500,
        op3_ms=5_000,
        trigger=10,
        fails="op4",
        points=(1, 23, 45),
        published=Published(5.14, "< 1", ("< 1", "3.5", "12"), "2 to 3", ("21.2", "59", "88.4")),
    ),
    Series(
        name="1b",
        title="use case 1, 1,000 events, OP4 fails",
        shape=Shape.LINEAR,
        events=1_000,
        every_ms=100,
        op3_ms=500,
        trigger=100,
        fails="op4",
        points=(10, 148, 375),
        published=_ONE_B,
    ),
    Series(
        name="1b-OP3",
        title="use case 1, 1,000 events, OP3 fails",
        shape=Shape.LINEAR,
        events=1_000,
        every_ms=100,
        op3_ms=500,
        trigger=100,
        fails="op3",
        points=(10, 295, 745),
        snapshot_seconds=30.0,
        published=Published(5.12, "6.4", ("32", "47", "50"), "3", ("21", "39", "56"), "1.2"),
    ),
    Series(
        name="1c",
        title="use case 1, 5,000 events, OP4 fails",
        shape=Shape.LINEAR,
        events=5_000,
        every_ms=30,
        op3_ms=100,
        trigger=250,
        fails="op4",
        points=(10, 495, 1_750),
        published=Published(5.26, "42.5", ("51", "68", "71"), "3", ("24.5", "42", "58.5"), "0.4"),
    ),
    Series(
        name="2",
        title="use case 2, synchronized, OP2 fails",
        shape=Shape.SYNCHRONIZED,
        events=1_000,
        every_ms=100,
        op3_ms=500,
        trigger=100,
        op2_trigger=50,
        fails="op2",
        points=(147, 457, 825),
        published=_TWO,
    ),
    Series(
        name="2-free",
        title="use case 2, not synchronized, OP2 fails",
        shape=Shape.UNSYNCHRONIZED,
        events=1_000,
        every_ms=100,
        op3_ms=500,
        trigger=100,
        fails="op2",
        points=(147, 457, 825),
        published=_TWO,
    ),
    Series(
        name="3a",
        title="use case 3, 1,000 events, replicas of OP3 fail",
        shape=Shape.REPLICAS,
        events=1_000,
        every_ms=100,
        op3_ms=500,
        trigger=100,
        fails="op3",
        points=(20, 220, 330),
        published=Published(5.35, "2.48", ("7.1", "11.6", "43.7"), "1.5", ("19.2", "36.4", "56")),
    ),
    Series(
        name="3b",
        title="use case 3, 5,000 events, replicas of OP3 fail",
        shape=Shape.REPLICAS,
        events=5_000,
        every_ms=30,
        op3_ms=100,
        trigger=200,
        fails="op3",
        points=(10, 495, 1_620),
        published=Published(5.28, "25", ("49", "50.5", "67.2"), "3.2", ("19", "38.4", "51.1")),
    ),
)
"""The paper gives use case 2 one set of figures, and does not say for which form of OP4."""
BY_NAME = {series.name: series for series in SERIES}

SIZES = {1 * MB: "1.5", 5 * MB: "6", 10 * MB: "10.6"}
"""Bytes of an event in series 1a → the paper's overhead of LOG.io in percent."""
