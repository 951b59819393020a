"""The runs of a pipeline's days or hours, as a calendar of them needs them: what columns say, without descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from airflow_logio.protocol.folder_rules import DAYS_READ, DayAsRead
from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Run, RunSpec


class PartitionRun(NamedTuple):
    """A run of a partition. Its description is not read, so that thousands of them are one cheap statement."""

    run_id: int
    uid: str
    dag_id: str
    dag_run_id: str
    generation: int
    partition: str
    """The key of its partition."""
    ordinal: int
    state: RunState
    created_at: float
    ended_at: float | None
    superseded_by: str | None
    because: str | None

    @classmethod
    def of(cls, run: Run) -> PartitionRun:
        """As the columns of a run that has a partition say."""
        key, ended = run.spec.key, (run.ended_at, run.superseded_by, run.because)
        names = (run.run_id, run.uid, key.dag_id, key.dag_run_id, key.generation)
        return cls(*names, run.partition or "", run.ordinal, run.state, run.created_at, *ended)


class Standing(StrEnum):
    """What has become of a day since a run has read it, as far as this log knows."""

    AS_READ = "as it was read"
    """No later run of it is in the log. A run of another log, or another pipeline that took it over, is not known."""
    AGAIN = "is being computed again"
    """The run that had left it so was given up, or a later one has begun and not finished."""
    REPLACED = "was replaced"
    """A later run of it has finished."""
    ELSEWHERE = "is of another log"
    """The run that had left it so is none of this log: not known."""


class DayRead(NamedTuple):
    """A day that a run has read, and as which run had left it."""

    operator: str
    place: str
    """The folder."""
    scope: str
    """As ``day=2026-03-01``."""
    live_run: str
    """The uid of the run that had left it as it was read."""
    standing: Standing
    by: str | None = None
    """The uid of the later run."""

    @property
    def is_stale(self) -> bool:
        return self.standing in (Standing.AGAIN, Standing.REPLACED)

    def __str__(self) -> str:
        """Half a sentence, behind "computed from"."""
        said = f"{self.scope} of {self.place} as run {self.live_run[:8]} had left it, which {self.standing.value}"
        return said if self.by is None else f"{said} by run {self.by[:8]}"


def days_read_by(spec: RunSpec) -> Sequence[tuple[str, DayAsRead]]:
    """(source, day), as a run found them when it was started: it reads these, or nothing.

    A plan is what its source makes it: that of a `ParquetSource` is a list.
    """
    plans = ((source, action.get("plan")) for source, action in spec.actions.items())
    return [
        (source, DayAsRead(*one))
        for source, plan in plans
        if isinstance(plan, Mapping)
        for one in plan.get(DAYS_READ, ())
    ]


def standing_of(state: RunState | None, later: Sequence[tuple[int, str, bool]]) -> tuple[Standing, str | None]:
    """From the state of the run that had left the day so (None: it is of another log), and the runs of that day since:
    (ordinal, uid, whether it has finished, be it given up afterwards)."""
    if state is None:
        return Standing.ELSEWHERE, None
    if finished := [one for one in later if one[2]]:
        return Standing.REPLACED, max(finished)[1]
    if later:
        return Standing.AGAIN, max(later)[1]
    return (Standing.AGAIN if state is RunState.SUPERSEDED else Standing.AS_READ), None


class PartitionBounds(NamedTuple):
    """The keys of the first and of the last partition of which the log has a run."""

    first: str
    last: str
