"""The runs of a pipeline's days or hours, as a calendar of them needs them: what columns say, without descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from airflow_logio.protocol.run_writers import Together
from airflow_logio.protocol.scope_rules import DAYS_READ, DayAsRead, table_of
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


class LateArrival(NamedTuple):
    """Records of one partition that came with a run of another one, in the order of the log."""

    partition: str
    """Which they are of."""
    records: int
    came_with: str
    """The partition of the run that they came with."""
    dag_id: str
    ordinal: int
    """Of that run."""
    ended_at: float | None
    """When that run has ended: until then more may come."""
    stands: bool
    """Whether that run is the youngest one of its partition."""

    def is_before(self, run: PartitionRun) -> bool:
        """Whether they came before a run of their partition began, which has not been given up: so it could have had them.

        The order of runs in the log decides. Of two that were at work at once nothing is known, so that they count as having
        come later.
        """
        if run.state is RunState.SUPERSEDED or run.ordinal <= self.ordinal:
            return False
        return self.ended_at is not None and self.ended_at <= run.created_at


def told_late(arrivals: Iterable[LateArrival], runs: Sequence[PartitionRun]) -> Sequence[LateArrival]:
    """What came for a partition with the runs of others that stand, and that none of its own `runs` could have had.

    Of a run that was computed again: what it brought more than the one before it, where that was known in time. By count: a
    log does not know which records they are.
    """
    known: dict[str, LateArrival] = {}
    last: dict[str, LateArrival] = {}
    for one in sorted(arrivals, key=lambda one: one.ordinal):
        last[one.came_with] = one
        if any(one.is_before(run) for run in runs):
            known[one.came_with] = one
    more = ((one, one.records - (known[name].records if name in known else 0)) for name, one in last.items())
    return [one._replace(records=records) for one, records in more if one.stands and records > 0]


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
    """The folder; of a table, `table_place`."""
    scope: str
    """As ``day=2026-03-01``."""
    live_run: str
    """The uid of the run that had left it as it was read; empty if none was known."""
    standing: Standing
    by: str | None = None
    """The uid of the later run."""
    is_whole: bool = True
    """Whether all was there that `live_run` was to have there. If not, that run itself has changed the day since."""

    @property
    def is_stale(self) -> bool:
        return self.standing in (Standing.AGAIN, Standing.REPLACED)

    def __str__(self) -> str:
        """Half a sentence, behind "computed from"."""
        run, by = self.live_run[:8], "" if self.by is None else f" by run {self.by[:8]}"
        when = f"as run {run} had left it" if self.is_whole else f"before run {run} had finished it"
        if not self.live_run:
            when = "before a run was known to have it"
        elif self.by == self.live_run:
            done = "has done" if self.standing is Standing.REPLACED else "has not done"
            return f"{self.scope} of {self.place} {when}, which it {done} since"
        return f"{self.scope} of {self.place} {when}, which {self.standing.value}{by}"


def days_read_by(spec: RunSpec) -> Sequence[tuple[str, DayAsRead]]:
    """(source, day), as a run found them before it began: those of folders, and of tables.

    A plan is what its source makes it: that of a `ParquetSource` is a list.
    """
    plans = ((source, action.get("plan")) for source, action in spec.actions.items())
    of_folders = [
        (source, DayAsRead(*one))
        for source, plan in plans
        if isinstance(plan, Mapping)
        for one in plan.get(DAYS_READ, ())
    ]
    return [*of_folders, *((source, day) for source, days in spec.days_read.items() for day in days)]


Since = tuple[int, str, bool]
"""A run of a day: its ordinal, its uid, and whether it has finished, be it given up afterwards."""


def standing_of(state: RunState | None, later: Sequence[Since]) -> tuple[Standing, str | None]:
    """From the state of the run that had left the day so (None: it is of another log), and the runs that have changed the
    day since: later ones, and that one itself if it had not left it whole."""
    if state is None:
        return Standing.ELSEWHERE, None
    if finished := [one for one in later if one[2]]:
        return Standing.REPLACED, max(finished)[1]
    if later:
        return Standing.AGAIN, max(later)[1]
    return (Standing.AGAIN if state is RunState.SUPERSEDED else Standing.AS_READ), None


def owns(spec: RunSpec, place: str, scope: str) -> bool:
    """Whether a run owns, by value, a day of a table of that name.

    For a day that was of no run that was known. The table may be one of another database: that makes a mark too many. Of
    folders the log knows too little.
    """
    table, (name, _, key) = table_of(place), scope.partition("=")
    if table is None or spec.partition != key or spec.graph.get("partition", {}).get("name") != name:
        return False
    return any(
        writer.together is Together.BY_PARTITION and _may_be(table.casefold(), *writer.place[1:])
        for writer in spec.writers or ()
    )


def _may_be(wanted: str, table: str = "", schema: str = "") -> bool:
    """Whether a writer's table may be the one of a note. One without a schema is in one that its database chooses."""
    if schema:
        return wanted in (table, f"{schema}.{table}")
    return bool(table) and (wanted == table or wanted.endswith(f".{table}"))


class PartitionBounds(NamedTuple):
    """The keys of the first and of the last partition of which the log has a run."""

    first: str
    last: str
