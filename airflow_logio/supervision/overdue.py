"""Partitions that are not there when they should be: `Days("day", due="08:00")`. What a person is told who asks, or is woken.

A partition is there if one of its runs has finished, also if it is computed again now, or was removed since. The one that no
run has begun for is the important case: no task of its own can tell. So whatever looks asks the log: `logio status --due`,
`logio tend`, and the DAG of `build_due_dag`. The log knows when partitions are due from the youngest run of each pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_logio.dataflow.pipeline.days import Partitioning, PartitionKey, partitioning_due
from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.states import CONCLUDED, RunState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import RemovedRun

LOOKED_BACK = timedelta(days=7)
"""Partitions that were due earlier are left to the calendar of the page: this is an alert."""
SURELY_BEFORE = timedelta(days=2)
LATEST_RUNS = 1_000
MOST_RUNS = 10_000


@dataclass(frozen=True, slots=True)
class Overdue:
    """A partition that is not there."""

    pipeline: str
    partition: str
    what: str
    """What a partition is called: a day, an hour."""
    due: datetime
    why: str
    """Why it is not there, as far as the log knows, and what to do."""

    def __str__(self) -> str:
        return (
            f"{self.what} {self.partition} of pipeline {self.pipeline} is not there, and was due at "
            f"{self.due.strftime('%Y-%m-%d %H:%M')} UTC: {self.why}"
        )


def overdue(
    store: LogStore,
    *,
    pipeline: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> list[Overdue]:
    """The partitions that came due after `since` (by default, `LOOKED_BACK` ago) and not after `until` (by default, now), and
    are not there now; of all pipelines, or of one.

    A pipeline's first partition that the log knows of is the first that is expected. Raises `LogUnavailable`, and
    `ConfigurationError` for a promise of a later version.
    """
    now = datetime.now(UTC)
    until = now if until is None else min(until, now)
    since = until - LOOKED_BACK if since is None else since
    found = list[Overdue]()
    for name, promise in store.pipelines_due().items():
        if pipeline in (None, name):
            found += _of_pipeline(store, name, partitioning_due(promise), since, until)
    return found


def _of_pipeline(
    store: LogStore, pipeline: str, partitioning: Partitioning, since: datetime, until: datetime
) -> Iterator[Overdue]:
    first = _first(store, pipeline, partitioning)
    keys = [] if first is None else list(_due_between(partitioning, first, since, until))
    if not keys:
        return
    span = (keys[0][0].text, keys[-1][0].text)
    runs = _by_partition(store.list_runs(pipeline=pipeline, partitions=span, limit=MOST_RUNS))
    removed = store.removed_runs(pipeline=pipeline, partitions=span, limit=MOST_RUNS)
    done = {one.partition for one in removed if one.state is RunState.FINISHED}
    gone = {str(one.partition): one for one in reversed(removed)}
    for key, due in keys:
        mine = runs.get(key.text, [])
        if key.text in done or any(_has_finished(store, run) for run in mine):
            continue
        yield Overdue(pipeline, key.text, partitioning.what, due, _why(mine, gone.get(key.text), key.text))


def _first(store: LogStore, pipeline: str, partitioning: Partitioning) -> PartitionKey | None:
    """The first partition that is expected. If the pipeline was divided otherwise before, that of its latest runs."""
    text = store.first_partition(pipeline)
    try:
        return None if text is None else partitioning.key_of(text)
    except ConfigurationError:
        keys = []
    for run in store.list_runs(pipeline=pipeline, limit=LATEST_RUNS):
        with suppress(ConfigurationError):
            keys.append(partitioning.key_of(run.partition))
    return min(keys, key=lambda key: key.start, default=None)


def _due_between(
    partitioning: Partitioning, first: PartitionKey, since: datetime, until: datetime
) -> Iterator[tuple[PartitionKey, datetime]]:
    """Partitions from `first` on, but for those that were due long before."""
    key = _start(partitioning, first, since)
    while (due := partitioning.due_at(key)) is not None and due <= until:
        if due > since:
            yield key, due
        key = partitioning.following(key)


def _start(partitioning: Partitioning, first: PartitionKey, since: datetime) -> PartitionKey:
    """`first`, or a later one that was due before `since`: years of hours are not stepped over. How long after its end a
    partition is due changes by hours only, with the clock."""
    due = partitioning.due_at(first)
    if due is None:
        return first
    before = partitioning.containing(max(first.start, since - (due - first.end) - SURELY_BEFORE))
    return max(first, before, key=lambda key: key.start)


def _by_partition(runs: Sequence[Run]) -> Mapping[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(str(run.partition), []).append(run)
    return found


def _has_finished(store: LogStore, run: Run) -> bool:
    """Also one that was given up after it had finished: what it wrote is there until the next one replaces it."""
    if run.state is not RunState.SUPERSEDED:
        return run.state is RunState.FINISHED
    groups = store.groups(run.run_id)
    return bool(groups) and all(group.state in CONCLUDED for group in groups)


def _why(runs: list[Run], removed: RemovedRun | None, partition: str) -> str:
    newest = max(runs, key=lambda run: run.ordinal, default=None)
    if newest is None:
        before = "" if removed is None else f" since run {removed.uid[:8]} of it, which had not finished, was removed"
        return (
            f"no run of it has begun{before}. Is its DAG paused, or does it wait for its input? `logio run --partition "
            f"{partition}` begins one"
        )
    uid = newest.uid[:8]
    match newest.state:
        case RunState.SUPERSEDED:
            return f"run {uid} of it was given up, and none has begun in its place"
        case RunState.QUARANTINED:
            return f"run {uid} of it has finished with quarantine: `logio status {uid}`"
        case RunState.RUNNING:
            return f"run {uid} of it has not finished: `logio status {uid}`"
        case _:
            return f"run {uid} of it is {newest.state.value}"
