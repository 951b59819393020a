"""What garbage collection has removed, which runs were, and Input Sets that are set aside (quarantine)."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import RunKey


@dataclass(frozen=True, slots=True)
class Collected:
    """What one effect of garbage collection has done."""

    rows: int = 0
    """Rows removed."""
    examined: int = 0
    """Rows looked at."""
    more: bool = False
    """The batch was full: there may be more."""
    after: int = 0
    """Where a sweep resumes: behind this event_id, or at the beginning if it is 0."""
    refs: tuple[str, ...] = ()
    """Payloads that no row names any more. Remove them after the commit; the sweep of the run finds what is forgotten."""


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


BY_PERSON = "by a person"
BY_GC = "by `logio gc`"
"""Why a run was removed, as half a sentence."""


@dataclass(frozen=True, slots=True)
class RemovedRun:
    """What the log keeps of a run that was removed, or is being removed. Times are in seconds since 1970."""

    uid: str
    key: RunKey
    partition: str | None
    ordinal: int
    state: RunState
    """The one that it was in. `SUPERSEDED` also if a person has given it up since."""
    created_at: float
    ended_at: float | None
    removed_at: float
    reason: str
    """What has removed it, as half a sentence: ``by keep_runs='90d'``."""
