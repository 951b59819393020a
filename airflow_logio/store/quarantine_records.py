"""Records of Input Sets that were set aside (quarantine)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuarantinedInputSet:
    """An Input Set whose generation raised and that was set aside; `since` is in seconds since the epoch."""

    group: str
    operator: str
    inset_id: str
    error: str
    since: float


@dataclass(frozen=True, slots=True)
class QuarantineCount:
    """How many Input Sets of a group are set aside, and since when the latest is (seconds since the epoch)."""

    input_sets: int
    latest: float


@dataclass(frozen=True, slots=True)
class Retried:
    """What a retry of quarantined Input Sets has put back, and the groups that must be launched for it."""

    input_sets: tuple[QuarantinedInputSet, ...]
    to_launch: tuple[str, ...]
