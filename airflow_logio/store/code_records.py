"""What the log knows of the code of a run (ADR-63)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KeptCode:
    """The code that a driver of a run gets, by its number."""

    number: int
    digest: str | None
    """None if an earlier version began the run."""
    archive: bytes | None = field(default=None, repr=False)
    """As `CodeBundle` packs it; None if drivers find the code installed."""


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A person took other code for a group. `taken_at` is in seconds since the epoch, by the database's clock."""

    number: int
    """From 1, in the order of the run's changes."""
    group: str
    """The replicated group as a whole, for replicas."""
    digest: str
    fingerprint: str
    """Of the source text of the pipeline's functions."""
    taken_by: str
    taken_at: float
