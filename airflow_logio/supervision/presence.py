"""Whether a supervisor looks for the failed groups of a run: the owner of a run can see that it has one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from airflow_logio.errors import LogUnavailable
from airflow_logio.status.condition import MISSING_SECONDS, is_left
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.status_records import SupervisorRecord

ASK_SECONDS = 10.0
WARN_SECONDS = 120.0
LEFT_SECONDS = 10.0
"""A group that has been dead for so long under a supervisor that is missing is left to its own task."""


def last_look(supervisors: Sequence[SupervisorRecord], run: Run) -> SupervisorRecord | None:
    """The latest look of any supervisor of this run."""
    return next((one for one in supervisors if one.covers(run)), None)


def missing(run: Run, seen: SupervisorRecord | None) -> str | None:
    """What is wrong if no supervisor looks after a run, in words for its owner; None if one does."""
    if run.spec.supervision is Supervision.PROCESS:
        return _left(run, seen) if is_left(run, seen, time.time()) else None
    if seen is not None and seen.age_seconds < MISSING_SECONDS:
        return None
    last = _last(seen)
    if run.spec.supervision is Supervision.DAG:
        return (
            f"no supervisor looks for failed groups of this run ({last}): the recovery DAG is paused, missing or has "
            "no triggerer; unpause it, or groups that die stay dead"
        )
    return (
        f"no supervisor looks for failed groups of this run ({last}): the supervising task of its DAG run has ended or waits "
        "for a worker, the DAG is paused, or there is no triggerer. A group that dies is recovered by its own task after a "
        "while"
    )


def paused(run: Run) -> str:
    """What follows if the DAG of a run is paused, in words for its owner."""
    said = f"DAG {run.spec.key.dag_id} is paused: its drivers keep running, but Airflow starts no task of it"
    waits = "what is cleared or retried is not launched, and the run is not marked as finished, until it is unpaused"
    if run.spec.supervision is Supervision.DAG:
        return f"{said}. The recovery DAG recovers groups that die, but {waits}"
    return (
        f"{said}. Groups that die stay dead, unless they ran beside the triggerer, requests to scale wait, {waits}. "
        f"`logio tend {run.uid[:8]}` recovers and scales meanwhile"
    )


def _left(run: Run, seen: SupervisorRecord | None) -> str:
    return (
        f"no process supervises this run ({_last(seen)}): its `logio run` is gone. Drivers that live keep running, those "
        f"that die stay dead, and the run is not finished; `logio retry {run.uid[:8]}` supervises it again"
    )


def _last(seen: SupervisorRecord | None) -> str:
    return "none ever has" if seen is None else f"{seen.name} did so {seen.age_seconds:.0f} s ago, and not since"


class SupervisionWatch:
    """One observer of one run's supervisors. Call its methods once per poll; `ask` is called every few seconds."""

    def __init__(
        self, ask: Callable[[], Sequence[SupervisorRecord]], run: Run, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`ask` is `LogStore.supervisors`."""
        self._ask_who_looks = ask
        self._run = run
        self._clock = clock
        self._missing: str | None = None
        self._asked_at = clock()  # a run that has just begun is given time
        self._warned_at = float("-inf")
        self._dead_since: float | None = None

    def warning(self, supervisors: Sequence[SupervisorRecord] | None = None) -> str | None:
        """What is wrong, now and then; None if nothing is, or it was said a moment ago.

        With `supervisors`, those that another observer has just asked for: then nothing is asked here.
        """
        self._ask(supervisors)
        if self._missing is None or self._clock() - self._warned_at < WARN_SECONDS:
            return None
        self._warned_at = self._clock()
        return self._missing

    def is_left(self, *, dead: bool) -> bool:
        """Whether a dead group is left to its own task: it counts on a task of its own DAG run, and that is gone.

        A recovery DAG that is paused is paused on purpose: then the group stays dead, and a warning says so.
        """
        if not dead or self._missing is None or self._run.spec.supervision is not Supervision.TASK:
            self._dead_since = None
            return False
        if self._dead_since is None:
            self._dead_since = self._clock()
        return self._clock() - self._dead_since >= LEFT_SECONDS

    def _ask(self, supervisors: Sequence[SupervisorRecord] | None) -> None:
        if self._clock() - self._asked_at < ASK_SECONDS:
            return
        self._asked_at = self._clock()
        try:
            seen = self._ask_who_looks() if supervisors is None else supervisors
            self._missing = missing(self._run, last_look(seen, self._run))
        except LogUnavailable:
            self._missing = None
