"""The days or hours of a pipeline, one beside the other: done, running, red and why, replaced, missing.

`logio days` and the page show the same. However many runs there were, the log is asked with the same few statements, each
by an index. A partition is as its youngest run is; those before it are its history.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from itertools import chain, groupby
from typing import Any
from zoneinfo import ZoneInfo

from airflow_logio.dataflow.functions.own_partition import BEFORE, BEHIND, OTHER
from airflow_logio.dataflow.pipeline.days import Partitioning, PartitionKey, partitioning_of_graph
from airflow_logio.errors import ConfigurationError, UnknownRun
from airflow_logio.protocol.replicas import base_operator
from airflow_logio.protocol.states import GroupState, RunState
from airflow_logio.protocol.values import Port
from airflow_logio.run_report.causes import HIDDEN, Cause, cause_of, most_pressing
from airflow_logio.run_report.report import IsPaused, condition_seen, not_known
from airflow_logio.status.condition import WAITING, RunCondition, awaits_airflow
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.day_records import DayRead, LateArrival, PartitionBounds, PartitionRun, told_late
from airflow_logio.store.records.run_records import Allowed, RunSpec
from airflow_logio.store.records.status_records import RunSight
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.store.rules.allowed_rules import options_in
from airflow_logio.store.rules.removed_rules import when_and_why
from airflow_logio.supervision.presence import last_look

MOST_SHOWN = 1_500
"""Partitions of one answer: four years of days, two months of hours."""
MOST_RUNS = 20_000
"""Runs of them that are read: each may have been computed again many times."""
MOST_EXPECTED = 48
"""Partitions that have ended since the last one with a run are shown as well, if they are no more than that."""
_RED = frozenset({"parked", "halted", "damaged", WAITING})
"""Conditions of unfinished runs in which nothing continues by itself."""


_UNKNOWN = RunCondition("")
SENT, WRITE = "out", "write"


class DayState(StrEnum):
    """What has become of a partition: of its youngest run, if it has one."""

    DONE = "done"
    RUNNING = "running"
    RED = "red"
    """It has stopped, or set Input Sets aside."""
    GIVEN_UP = "given up"
    """The next run of it has not begun; what the runs before have written stands."""
    REMOVED = "removed"
    """Its runs were removed from the log: what they have written may be there."""
    MISSING = "missing"
    """It has no run, and lies between partitions that have one."""
    NO_RUN_YET = "no run yet"
    """It has ended, and so far neither it nor a later one has a run."""


@dataclass(frozen=True, slots=True)
class Day:
    """One partition."""

    key: PartitionKey
    state: DayState
    runs: Sequence[PartitionRun] = ()
    """The youngest first."""
    condition: RunCondition = _UNKNOWN
    cause: Cause | None = None
    """Why it is red, of the most pressing of its groups."""
    is_error: bool = False
    """Whether the cause is from an error text, which not everyone may read."""
    stale: Sequence[DayRead] = ()
    """What its youngest run was computed from, and was replaced since, or is being computed again."""
    removed: RemovedRun | None = None
    """Its youngest run, if that is no longer in the log."""
    options: Sequence[Allowed] = ()
    """What the refusal that has stopped it says only a person can let the next run do."""
    late: int | None = None
    """Records of other partitions that came with the youngest run; None if that is not counted."""
    came: Sequence[LateArrival] = ()
    """Records of it that came with runs of other partitions, so late that no run of it could have had them. A run that has
    been replaced brings none."""

    @property
    def youngest(self) -> PartitionRun | None:
        return self.runs[0] if self.runs else None

    @property
    def came_for_it(self) -> int:
        """How many records `came`."""
        return sum(one.records for one in self.came)

    @property
    def replaced(self) -> int:
        """How many runs of it came before the youngest one."""
        return max(0, len(self.runs) - 1)

    @property
    def because(self) -> str | None:
        """Why it was computed again, as it was said last."""
        return next((run.because for run in self.runs if run.because), None)


@dataclass(frozen=True, slots=True)
class Calendar:
    """Partitions of a pipeline that follow each other. `at` is the clock of this machine, in seconds since the epoch."""

    at: float
    pipeline: str
    partitioning: Partitioning
    days: Sequence[Day]
    known: PartitionBounds
    """The first and the last partition with a run in the log; `days` may begin later, or end earlier."""
    counts_late: bool
    """Whether the log counts what port `other` of an `OwnPartition` gets: records of other partitions."""
    others: int = 0
    """Runs whose partition is none of the pipeline as it is now: it had hours, and has days."""

    @property
    def has_earlier(self) -> bool:
        return bool(self.days) and self.days[0].key.text > self.known.first

    @property
    def has_later(self) -> bool:
        return bool(self.days) and self.days[-1].key.text < self.known.last

    @property
    def dag_ids(self) -> frozenset[str]:
        """The DAGs whose runs are in it."""
        runs = (run.dag_id for day in self.days for run in day.runs)
        return frozenset(chain(runs, (one.dag_id for day in self.days for one in day.came)))

    @property
    def totals(self) -> Mapping[str, int]:
        """State → how many partitions have it."""
        return Counter(day.state.value for day in self.days)

    def rows(self) -> Iterator[CalendarRow]:
        """A row for each month, or, of hours, for each day of the zone."""
        for name, days in groupby(self.days, key=lambda day: self._row_of(day.key)):
            found = list(days)
            yield CalendarRow(name, self._before(found[0].key), found)

    def _row_of(self, key: PartitionKey) -> str:
        if self.partitioning.what == "day":
            return key.text[:7]
        return key.start.astimezone(ZoneInfo(self.partitioning.zone)).date().isoformat()

    def _before(self, key: PartitionKey) -> int:
        if self.partitioning.what == "day":
            return int(key.text[8:]) - 1
        begun = self.partitioning.day_of(key)
        return round((key.start - begun).total_seconds() / self.partitioning.seconds)


@dataclass(frozen=True, slots=True)
class CalendarRow:
    name: str
    before: int
    """Places of the row in front of its first partition."""
    days: Sequence[Day]


@dataclass(slots=True)
class CalendarReader:
    """`log` is the connection id of the log, for commands in sentences; `is_paused` asks Airflow about a DAG."""

    store: LogStore
    log: str | None = None
    is_paused: IsPaused = not_known
    clock: Callable[[], float] = field(default=time.time)

    def read(self, pipeline: str, first: str | None = None, last: str | None = None) -> Calendar:
        """The calendar up to `last`, or to the last partition known; from `first`, or as many as are shown at once.

        Raises `UnknownRun` if the log has no run of a partition of the pipeline, and `ConfigurationError` for an end that is
        no partition, or for ends the wrong way round.
        """
        at, known = self.clock(), self.store.partition_bounds(pipeline)
        if known is None:
            raise UnknownRun(
                f"no run of a day or hour of pipeline {pipeline!r} is in the log; `logio status` lists the runs"
            )
        newest = self.store.list_runs(pipeline=pipeline, partition=known.last, limit=1)
        if not newest:
            raise UnknownRun(f"the run of {known.last} of pipeline {pipeline!r} is being removed from the log")
        spec = newest[0].spec
        partitioning = _partitioning(spec, known.last)
        asked = [None if end is None else partitioning.key_of(end) for end in (first, last)]
        shown = _shown(partitioning, known, *asked, until=datetime.fromtimestamp(at, UTC))
        within = PartitionBounds(shown[0].text, shown[-1].text)
        runs = self.store.partition_runs(pipeline, within, most=MOST_RUNS)
        if len(runs) == MOST_RUNS:  # the first partition of them is perhaps not whole
            shown = [key for key in shown if key.text > runs[-1].partition] or shown[-1:]
        gone = self.store.removed_runs(pipeline=pipeline, partitions=within, limit=MOST_RUNS)
        removed = {str(run.partition): run for run in reversed(gone)}  # the youngest stays
        late = LateRecords.of(spec)
        counted = self.store.partition_records(pipeline, within, late.operators)
        came = self._came(pipeline, partitioning, shown, late.dividing)
        sights = self._sights(runs, at)
        read = self.store.days_read([next(found).run_id for _, found in groupby(runs, key=lambda run: run.partition)])
        of_key = {key: list(found) for key, found in groupby(runs, key=lambda run: run.partition)}
        names = {key.text for key in shown}
        late_of = {run_id: late.of_run(found) for run_id, found in counted.items()}
        return Calendar(
            at,
            pipeline,
            partitioning,
            [
                _day(key, of_key[key.text], sights, late_of, read, came.get(key.text, ()))
                if key.text in of_key
                else _without_run(key, removed.get(key.text), came.get(key.text, ()), is_last=key.text > known.last)
                for key in shown
            ],
            known,
            bool(late.ports or late.writers),
            sum(len(found) for key, found in of_key.items() if key > shown[0].text and key not in names),
        )

    def _came(
        self, pipeline: str, partitioning: Partitioning, shown: Sequence[PartitionKey], operators: frozenset[str]
    ) -> Mapping[str, Sequence[LateArrival]]:
        """Partition → what came for it, before or after its run, with runs of partitions that are near it."""
        reach = timedelta(seconds=partitioning.seconds)
        ends = shown[0].start - (BEHIND + 1) * reach, shown[-1].end + (BEFORE + 1) * reach
        bounds = PartitionBounds(*(partitioning.containing(end).text for end in ends))
        within = PartitionBounds(shown[0].text, shown[-1].text)
        found = self.store.late_arrivals(pipeline, within, bounds, operators)
        return {key: list(of_key) for key, of_key in groupby(found, key=lambda one: one.partition)}

    def _sights(self, runs: Sequence[PartitionRun], at: float) -> Mapping[str, tuple[RunSight, RunCondition]]:
        """What is known of the runs that have not ended well, by uid: of each partition, its youngest."""
        youngest = [next(found) for _, found in groupby(runs, key=lambda run: run.partition)]
        open_ = [run.uid for run in youngest if run.state in (RunState.RUNNING, RunState.QUARANTINED)]
        if not open_:
            return {}
        looks, seen = self.store.supervisors(), self.store.sight(open_)
        dags = {one.run.spec.key.dag_id for one in seen if awaits_airflow(one.run)}
        paused = {dag for dag in dags if self.is_paused(dag)}
        return {
            one.run.uid: (
                one,
                condition_seen(
                    one.run,
                    one.groups,
                    at,
                    last_look(looks, one.run),
                    self.log,
                    is_paused=one.run.spec.key.dag_id in paused,
                ),
            )
            for one in seen
        }


def _partitioning(spec: RunSpec, key: str) -> Partitioning:
    """How the pipeline divides time, as the run has kept it; for a run that has kept no graph, as its key looks like."""
    return partitioning_of_graph(spec.graph.get("partition"), key)


def _shown(
    partitioning: Partitioning,
    known: PartitionBounds,
    first: PartitionKey | None,
    last: PartitionKey | None,
    *,
    until: datetime,
) -> list[PartitionKey]:
    """The partitions of an answer: at least one, at most `MOST_SHOWN`. Raises `ConfigurationError` as `read`."""
    oldest, newest = _oldest(partitioning, known), partitioning.key_of(known.last)
    latest = newest
    if partitioning.containing(until).start - newest.end <= MOST_EXPECTED * timedelta(seconds=partitioning.seconds):
        while (following := partitioning.following(latest)).end <= until:
            latest = following
    end = latest if last is None else min(last, latest, key=_start)
    begin = oldest if first is None else max(first, oldest, key=_start)
    if begin.start > end.start:
        asked = f"{'' if first is None else first.text}..{'' if last is None else last.text}"
        raise ConfigurationError(f"of {asked} there is nothing: the log has runs from {known.first} to {known.last}")
    reach = timedelta(seconds=(MOST_SHOWN - 1) * partitioning.seconds)
    found = [max(begin, partitioning.containing(end.start - reach), key=_start)]
    while found[-1].start < end.start:
        found.append(partitioning.following(found[-1]))
    return found[-MOST_SHOWN:]


def _start(key: PartitionKey) -> datetime:
    return key.start


def _oldest(partitioning: Partitioning, known: PartitionBounds) -> PartitionKey:
    """The first one known. If the pipeline had other partitions then, those are not shown: the last one stands for it."""
    try:
        return partitioning.key_of(known.first)
    except ConfigurationError:
        return partitioning.key_of(known.last)


def _without_run(key: PartitionKey, removed: RemovedRun | None, came: Sequence[LateArrival], *, is_last: bool) -> Day:
    """What came for a partition is told unless its first run is still expected, which is to find its records anyway."""
    if removed is not None:
        later = [one for one in told_late(came, ()) if one.ordinal > removed.ordinal]
        return Day(key, DayState.REMOVED, removed=removed, came=later)
    return Day(key, DayState.NO_RUN_YET) if is_last else Day(key, DayState.MISSING, came=told_late(came, ()))


_STATES = {RunState.FINISHED: DayState.DONE, RunState.SUPERSEDED: DayState.GIVEN_UP}


def _day(
    key: PartitionKey,
    runs: Sequence[PartitionRun],
    sights: Mapping[str, tuple[RunSight, RunCondition]],
    late_of: Mapping[int, int | None],
    read: Mapping[int, Sequence[DayRead]],
    came: Sequence[LateArrival],
) -> Day:
    run = runs[0]
    day = Day(
        key,
        _STATES.get(run.state, DayState.RUNNING),
        runs,
        RunCondition(run.state.value),
        late=late_of.get(run.run_id),
        came=told_late(came, runs),
        stale=[one for one in read.get(run.run_id, ()) if one.is_stale],
    )
    if run.uid not in sights:
        return day
    sight, condition = sights[run.uid]
    stopped = most_pressing([group for group in sight.groups if group.state is not GroupState.RETIRED])
    is_red = (
        sight.run.state is RunState.QUARANTINED
        or condition.word in _RED
        or any(group.state is GroupState.PARKED for group in stopped)
    )
    if not is_red:
        return replace(day, state=_STATES.get(sight.run.state, DayState.RUNNING), condition=condition)
    options = [one for group in stopped for one in options_in(group.error or "")]
    first = stopped[0] if stopped else None
    return replace(
        day,
        state=DayState.RED,
        condition=condition,
        cause=None if first is None else cause_of(first),
        is_error=first is not None and bool(first.error),
        options=list(dict.fromkeys(options)),
    )


# --- late records -----------------------------------------------------------------------------------------------------

Counted = Mapping[tuple[Port, str], int]
"""(port, direction) → records that a run has sent, or written."""
_DIVIDING = "functions.own_partition."
_IN_PLANS = f"{_DIVIDING}_OwnFrame"
"""In mode ``dataframe`` what it sends is only part of a plan, and is not counted before a writer has it."""


@dataclass(frozen=True, slots=True)
class LateRecords:
    """Where the log counts records that are of other partitions than the run: behind port `OTHER` of `OwnPartition`."""

    dividing: frozenset[str]
    """Operators that are an `OwnPartition`. If a run has counted nothing of theirs, it had none of that name."""
    ports: frozenset[Port]
    """Ports `OTHER` that count what they send."""
    writers: frozenset[str]
    """Writers that get nothing but what came from a port `OTHER`, for those that do not."""

    @classmethod
    def of(cls, spec: RunSpec) -> LateRecords:
        """For runs with the graph of this one."""
        shapes: Mapping[str, Any] = spec.graph.get("operators", {})
        functions = {name: str(shape.get("settings", {}).get("function")) for name, shape in shapes.items()}
        dividing = {name for name in spec.operators if _DIVIDING in functions.get(base_operator(name), "")}
        in_plans = {name for name in dividing if _IN_PLANS in functions[base_operator(name)]}
        behind: dict[str, bool] = {}
        for name, shape in spec.operators.items():  # in topological order
            senders = [Port(*sender.split(".", 1)) for sender in shape.inputs.values()]
            from_other = (one.name == OTHER if one.operator in in_plans else behind[one.operator] for one in senders)
            behind[name] = bool(senders) and all(from_other)
        writers = {name for name, is_behind in behind.items() if is_behind and not spec.operators[name].outputs}
        if in_plans and not writers:
            return cls(frozenset(dividing), frozenset(), frozenset())
        counting = dividing - in_plans
        return cls(
            frozenset(dividing),
            frozenset(Port(name, OTHER) for name in counting),
            frozenset(writers if in_plans else ()),
        )

    @property
    def operators(self) -> frozenset[str]:
        return self.dividing | self.writers

    def of_run(self, counted: Counted) -> int | None:
        """How many came with a run; None if it has counted nothing: no operator of these names, or nothing read."""
        if not counted or not (self.ports or self.writers):
            return None
        return sum(
            many
            for (port, direction), many in counted.items()
            if (direction == WRITE and port.operator in self.writers) or (direction == SENT and port in self.ports)
        )


# --- as JSON ----------------------------------------------------------------------------------------------------------

HIDDEN_STATE = "hidden"
"""Of a partition whose youngest run is of a DAG that the reader may not see."""


def calendar_document(
    calendar: Calendar,
    may_read: Callable[[str], bool] = lambda _dag_id: True,
    may_read_errors: Callable[[str], bool] = lambda _dag_id: True,
) -> dict[str, Any]:
    """For programs, and for the page. What a partition has nothing of is left out. `may_read`, `may_read_errors` say of a DAG
    what the reader may see."""
    seen = {dag for dag in calendar.dag_ids if may_read(dag)}
    with_errors = {dag for dag in seen if may_read_errors(dag)}

    def came_for(day: Day) -> dict[str, Any]:
        came = {one.came_with: one.records for one in day.came if one.dag_id in seen}
        return {"came": came} if came else {}

    def of_day(day: Day) -> dict[str, Any]:
        run = day.youngest
        if run is None:
            document: dict[str, Any] = {"key": day.key.text, "state": day.state.value}
            if day.removed is not None and not may_read(day.removed.key.dag_id):
                return {**document, "state": HIDDEN_STATE}
            if day.removed is not None:
                document["condition"] = when_and_why(day.removed)
            return document | came_for(day)
        if run.dag_id not in seen:
            return {"key": day.key.text, "state": HIDDEN_STATE}
        cause = None if day.cause is None else str(day.cause)
        if day.is_error and run.dag_id not in with_errors:
            cause = HIDDEN
        said = {
            "condition": day.condition.word,
            "next_step": day.condition.next_step,
            "cause": cause,
            "because": day.because,
            "replaced": day.replaced,
            "late": day.late,
            "stale": [str(one) for one in day.stale],
            "options": [one.value for one in day.options],
        }
        document = {
            "key": day.key.text,
            "state": day.state.value,
            "uid": run.uid,
            "dag_id": run.dag_id,
            "run_id": run.dag_run_id,
        }
        told = {name: value for name, value in said.items() if value or (name == "late" and value is not None)}
        return document | told | came_for(day)

    return {
        "at": calendar.at,
        "pipeline": calendar.pipeline,
        "what": calendar.partitioning.what,
        "zone": calendar.partitioning.zone,
        "first_known": calendar.known.first,
        "last_known": calendar.known.last,
        "has_earlier": calendar.has_earlier,
        "has_later": calendar.has_later,
        "counts_late": calendar.counts_late,
        "others": calendar.others,
        "rows": [
            {"name": row.name, "before": row.before, "cells": [of_day(day) for day in row.days]}
            for row in calendar.rows()
        ],
    }
