"""What a driver reports about itself with its heartbeats: its load, its Spark application, its standby."""

from __future__ import annotations

from dataclasses import dataclass

LOAD_SECONDS = 10.0
"""The load of a driver covers this many seconds, or the time since it began."""


@dataclass(frozen=True, slots=True)
class SparkApplication:
    """The Spark application of a driver, as people look it up."""

    id: str
    ui_url: str | None
    """Where the driver shows it while it lives; None if its UI is turned off."""
    keeps_events: bool
    """Whether it writes an event log, which a history server shows when the driver has ended."""


@dataclass(frozen=True, slots=True)
class Standby:
    """A process that stands by to take a driver's place, on the driver's machine (ADR-108)."""

    pid: int
    is_ready: bool
    """It has imported everything, and made its Spark session: it would take over now."""
    rss_bytes: int
    """Memory of its Python and its JVM."""


@dataclass(frozen=True, slots=True)
class Load:
    """How a driver has spent the last seconds, and what passed through it meanwhile. Fractions are of the time, 0 to
    1."""

    seconds: float
    """How long the window is."""
    busy: float
    idle: float
    """The share of the time in which it waited for input."""
    blocked: float
    """The share of the time in which a receiver, an external system or the log held it up."""
    events_in: int
    records_in: int
    events_out: int
    records_out: int
    queued: int = 0
    """Events in its memory that no step has used yet."""
    lag_seconds: float = 0.0
    """How long the oldest of these events has been there."""
    call: str = ""
    """The call of the author's code that has run longest among those under way; empty if there is none."""
    call_seconds: float = 0.0
    """How long it has run."""
    application: SparkApplication | None = None
    """None before the Spark session is made, and in a group without Spark."""
    standby: Standby | None = None
    """The process that stands by to take its place, if there is one."""
