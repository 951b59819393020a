"""Whether Spark has computed a stage of an evaluation twice, which it may not find out itself (ADR-199).

A launch lets a lost shuffle fail its job (`session_safety.ONE_ATTEMPT`). But adaptive execution runs each stage as a job of
its own: a shuffle that is lost between two of them is made again by the next, in a new stage, and no job fails. Spark 4.2
compares checksums of what tasks make again, and does nothing about it in the first attempt of a stage; earlier versions do
not compare. So when an evaluation has ended, Spark's store for its UI is asked which stages ran. That store gets its events
later, may lose some, and forgets what is old; it says so by two jobs without tasks, one on each side of the evaluation.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from airflow_logio.errors import LogUnavailable

ANSWER_SECONDS = 60.0
"""How long the store is waited for: its events come through a queue."""
_LOOK_SECONDS = 0.02
_DROPPED = "queue.appStatus.numDroppedEvents"
_MORE = (
    "if executors were not lost, let Spark keep more of what has ended (spark.ui.retainedJobs, spark.ui.retainedStages) or "
    "queue more events (spark.scheduler.listenerbus.eventqueue.capacity), and let functions leave the tags of jobs alone"
)


@dataclass(frozen=True, slots=True)
class Stage:
    """What is known of a stage."""

    attempt: int
    """The number of its last attempt, from 0."""
    data: frozenset[str] | None
    """Numbers what its tasks compute, the same for each stage that computes the same shuffle; None if none of them ran."""


def computed_twice(jobs: Mapping[int, Sequence[int]], stages: Mapping[int, Stage | None]) -> str:
    """What was computed twice, or may have been, in words; empty if nothing was.

    `jobs` are those of an evaluation, each with the numbers of its stages: the last one is its result, or the shuffle that it
    was started for. `stages` has all of these, None for one that Spark does not know any more.
    """
    first: dict[frozenset[str], int] = {}
    for number, stage in sorted(stages.items()):
        if stage is None:
            return f"Spark does not know stage {number} any more, which may have run again ({_MORE})"
        if stage.attempt > 0:
            return f"stage {number} was attempted {stage.attempt + 1} times"
        if stage.data is not None:
            first.setdefault(stage.data, number)
    for job, numbers in sorted(jobs.items()):
        for number in sorted(numbers)[:-1]:  # a result may be asked for in parts, a job for each
            stage = stages[number]
            if stage is not None and stage.data is not None and first[stage.data] != number:
                return f"stage {number} of job {job} has made records again that stage {first[stage.data]} had made"
    return ""


@contextmanager
def computed_once(session: Any, check_wanted: Callable[[], None]) -> Iterator[None]:
    """Within the block, this thread starts the jobs of an evaluation in an application of the driver's own.

    Raises `LogUnavailable` behind the block if Spark has computed a stage of them twice, or if that is not known, so that the
    evaluation has to be done again; and what Spark and `check_wanted` raise.
    """
    context = session.sparkContext
    dropped = _dropped(context)
    name = f"logio-{uuid.uuid4().hex}"
    before, behind = f"{name}-before", f"{name}-behind"
    _mark(context, before)
    context.addJobTag(name)
    try:
        yield
        is_tagged = name in context.getJobTags()  # a function can remove it
    finally:
        context.removeJobTag(name)
    _mark(context, behind)
    deadline = time.monotonic() + ANSWER_SECONDS
    while not (is_known := _has_ended(context, behind)) and time.monotonic() < deadline:
        check_wanted()
        time.sleep(_LOOK_SECONDS)
    jobs, stages = _seen(context, name)
    # What ends first is forgotten first: if that is there, all jobs are.
    is_whole = is_known and is_tagged and _has_ended(context, before) and _dropped(context) == dropped
    said = computed_twice(jobs, stages) if is_whole else f"Spark does not tell which of its stages have run ({_MORE})"
    if said:
        raise LogUnavailable(
            f"{said}: records of two computations could be mixed, so what was made is not used (Spark {session.version})"
        )


def _mark(context: Any, tag: str) -> None:
    """Run a job without tasks. What has heard of its end has heard of all before it."""
    context.addJobTag(tag)
    try:
        context._jsc.emptyRDD().count()
    finally:
        context.removeJobTag(tag)


def _has_ended(context: Any, tag: str) -> bool:
    tracker = context._jsc.sc().statusTracker()
    infos = [tracker.getJobInfo(job) for job in tracker.getJobIdsForTag(tag)]
    return any(info.isDefined() and info.get().status().toString() == "SUCCEEDED" for info in infos)


def _dropped(context: Any) -> int:
    """How many events the store has not got, because its queue was full."""
    counters = context._jsc.sc().listenerBus().metrics().metricRegistry().getCounters()
    return int(counters.get(_DROPPED).getCount())


def _seen(context: Any, tag: str) -> tuple[dict[int, list[int]], dict[int, Stage | None]]:
    """The jobs that have a tag, and their stages, as `computed_twice` takes them."""
    spark = context._jsc.sc()
    tracker, store = spark.statusTracker(), spark.statusStore()
    jobs: dict[int, list[int]] = {}
    for job in tracker.getJobIdsForTag(tag):
        info = tracker.getJobInfo(job)
        jobs[job] = list(info.get().stageIds()) if info.isDefined() else []
    numbers = {number for stages in jobs.values() for number in stages}
    return jobs, {number: _stage(store, number) for number in numbers}


def _stage(store: Any, number: int) -> Stage | None:
    from py4j.protocol import Py4JJavaError

    try:
        found = store.lastStageAttempt(number)
    except Py4JJavaError as error:
        if "NoSuchElementException" not in str(error.java_exception):
            raise
        return None
    counts = (found.numCompleteTasks, found.numActiveTasks, found.numFailedTasks, found.numKilledTasks)
    ran = any(count() for count in counts)
    return Stage(found.attemptId(), frozenset(found.rddIds().mkString(",").split(",")) if ran else None)
