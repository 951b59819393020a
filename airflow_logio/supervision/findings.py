"""Finding failed groups: many runs, one look (design D10). Recovery tasks learn here what failed and why.

The same look finds requests to scale a group whose next step can be taken: the recovery task also launches
replicas.

A group has failed when it is *dead*, in the words of design D8: its driver's process has ended without the log
saying that it finished, its lease has run out, or it is stuck in a launch state. While the log database is unreachable,
no group is considered dead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.protocol.replicas import SlotsSight, replicated_group
from airflow_logio.protocol.states import ALIVE, ENDED, OPEN_SCALING, RunState
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import KilledTask
from airflow_logio.store.records.run_records import Run, Supervision
from airflow_logio.store.records.status_records import GroupStatus, RunSight, ScalingRequest
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.supervision.look import Observation, Watcher
from airflow_logio.supervision.scaling import in_question, is_due
from airflow_logio.supervision.task_notes import is_to_be_asked

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedGroup:
    """One failure of one group: plain data, which goes from a sensor to a recovery task."""

    run_uid: str
    pipeline: str
    dag_run_id: str
    group: str
    incarnation: int
    """Incarnation of the driver that failed; a later incarnation is another failure."""
    cause: str
    detected_at: float
    """When the log learned of it: seconds since the epoch by the database's clock."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Any) -> FailedGroup:
        """From `as_dict`, which may have gone through JSON. Raises `ConfigurationError`."""
        names = {"run_uid": str, "pipeline": str, "dag_run_id": str, "group": str, "incarnation": int, "cause": str}
        try:
            values = {name: kind(data[name]) for name, kind in names.items()}
            return cls(**values, detected_at=float(data["detected_at"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a failed group is expected as LogioFailedGroupSensor returns it (one item of its list), got {data!r:.200}"
            ) from error

    @property
    def key(self) -> str:
        """What tells it from other findings."""
        return f"{self.run_uid} {self.group} {self.incarnation}"

    def __str__(self) -> str:
        return f"group {self.group} of {self.dag_run_id} ({self.pipeline}), incarnation {self.incarnation}"


@dataclass(frozen=True, slots=True)
class DueScaling:
    """A request to scale a group whose next step can be taken: plain data, which goes from a sensor to a recovery task."""

    run_uid: str
    pipeline: str
    dag_run_id: str
    group: str
    request_id: int
    replicas: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, data: Any) -> DueScaling:
        """From `as_dict`, which may have gone through JSON. Raises `ConfigurationError`."""
        names = {"run_uid": str, "pipeline": str, "dag_run_id": str, "group": str, "request_id": int, "replicas": int}
        try:
            return cls(**{name: kind(data[name]) for name, kind in names.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a request to scale is expected as LogioFailedGroupSensor returns it, got {data!r:.200}"
            ) from error

    @property
    def key(self) -> str:
        """What tells it from other findings."""
        return f"{self.run_uid} {self.group} scaling {self.request_id}"

    def __str__(self) -> str:
        return f"group {self.group} of {self.dag_run_id} ({self.pipeline}), scaling to {self.replicas}"


@dataclass(frozen=True, slots=True)
class UnexplainedKill:
    """A task was killed that watched a group, and it is not known why: plain data, for a task that can ask Airflow."""

    run_uid: str
    pipeline: str
    dag_run_id: str
    group: str
    killed: Mapping[str, Any]
    """As of `KilledTask`."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def task(self) -> KilledTask:
        return KilledTask(**self.killed)

    @classmethod
    def of(cls, data: Any) -> UnexplainedKill:
        """From `as_dict`, which may have gone through JSON. Raises `ConfigurationError`."""
        try:
            values = {name: str(data[name]) for name in ("run_uid", "pipeline", "dag_run_id", "group")}
            return cls(**values, killed=asdict(KilledTask(**data["killed"])))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a killed task is expected as LogioFailedGroupSensor returns it, got {data!r:.200}"
            ) from error

    def __str__(self) -> str:
        return f"group {self.group} of {self.dag_run_id} ({self.pipeline}), whose task was killed"


Finding = FailedGroup | DueScaling | UnexplainedKill


def finding_of(data: Any) -> Finding:
    """One item of what a look has found, from its `as_dict`. Raises `ConfigurationError`."""
    if isinstance(data, Mapping) and "killed" in data:
        return UnexplainedKill.of(data)
    return DueScaling.of(data) if isinstance(data, Mapping) and "request_id" in data else FailedGroup.of(data)


@dataclass(frozen=True, slots=True)
class Findings:
    """What one look has found: `failed` groups, and requests to scale that are `due`.

    `failed` is None if the log could not be asked: then nothing is known.
    """

    failed: tuple[FailedGroup, ...] | None
    going_on: int = 0
    """Groups that have not ended, and requests that are open: while there are any, another look is needed."""
    due: tuple[DueScaling, ...] = ()
    killed: tuple[UnexplainedKill, ...] = ()
    """Tasks that were killed, of groups that have not ended."""
    unavailable: str | None = None
    """Why the log could not be asked, or not about all groups."""

    @property
    def items(self) -> list[Finding]:
        """What needs action, by a task of Airflow."""
        return [*self.work, *self.killed]

    @property
    def work(self) -> list[FailedGroup | DueScaling]:
        """What needs action that any supervisor can take."""
        return [*(self.failed or ()), *self.due]


class FailureFinder:
    """Looks after one run, the runs of one pipeline, or all runs of a log. Call `look` about once per second.

    Runs that a process of its own supervises (`logio run`) are left to it, unless one is named. `end_old_drivers` is off
    only in tests of zombies.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        pipeline: str | None = None,
        run_uid: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        end_old_drivers: bool = True,
    ) -> None:
        self._store = store
        self._pipeline = pipeline
        self._run_uid = run_uid
        self._clock = clock
        self._end_old_drivers = end_old_drivers
        self._watchers: dict[int, Watcher] = {}
        self._suspects = False
        self._damaged = set[str]()
        """Runs that were said to be damaged."""

    def look(self) -> Findings:
        """Look once at every group; those that are dead are declared so in the log (compare-and-set)."""
        asked_at = self._clock()
        try:
            return self.judge(self._store.sight(None if self._run_uid is None else [self._run_uid]), asked_at)
        except LogUnavailable as error:
            return self.not_answered(str(error))

    def not_answered(self, why: str) -> Findings:
        """The log could not be asked."""
        for watcher in self._watchers.values():
            watcher.not_answered(why)
        return Findings(None, unavailable=why)

    def suspects(self) -> bool:
        """Whether a driver was silent at the last look for longer than its lease, and may be found dead by looking on."""
        return self._suspects

    def judge(
        self, sights: Sequence[RunSight], asked_at: float, slots: Mapping[tuple[int, str], SlotsSight] | None = None
    ) -> Findings:
        """What follows from runs that were asked for at `asked_at` on this finder's clock; as `look`.

        `slots` is what was asked of groups that sleep, for several finders together (`look_after`). It takes no notice of
        runs that it does not look after. Raises `LogUnavailable`, and `LogInconsistent` if the one run that it looks after is
        damaged in the log; damaged ones among many are left out.
        """
        sights = [one for one in self._whole(sights) if self._is_ours(one.run)]
        if slots is None:
            asked = [one for sight in sights for one in in_question(sight)]
            slots = self._store.slots_sight(asked) if asked else {}
        self._forget_ended(sights)
        self._suspects = any(
            status.state in ALIVE and (status.silent_seconds or 0.0) > sight.run.spec.lease.seconds
            for sight in sights
            for status in sight.groups
        )
        failed: list[FailedGroup] = []
        due: list[DueScaling] = []
        killed: list[UnexplainedKill] = []
        going_on = 0
        unavailable: str | None = None
        for sight in sights:
            look = self._watcher(sight.run).judge(sight, asked_at, slots)
            unavailable = unavailable or look.unavailable
            failed += filter(None, (_failure(sight.run, one) for one in look.observations.values()))
            killed += _unexplained(sight)
            going_on += sum(status.state not in ENDED for status in sight.groups) + len(look.requests)
            due += [_due(sight.run, one) for one in look.requests if self._is_due(sight.run, sight.groups, one)]
        if unavailable is not None and not (failed or due or killed):
            return Findings(None, unavailable=unavailable)
        return Findings(tuple(failed), going_on, tuple(due), tuple(killed), unavailable)

    def _whole(self, sights: Sequence[RunSight]) -> list[RunSight]:
        """Runs that are damaged are said once, while they continue."""
        for one in sights:
            is_over = one.run.state is not RunState.RUNNING
            if one.run.damage is None or is_over or self._pipeline not in (None, one.run.spec.key.pipeline):
                continue
            if one.run.uid == self._run_uid:
                check_whole(one.run)
            if one.run.uid not in self._damaged:
                self._damaged.add(one.run.uid)
                log.error("its failed groups are not recovered: %s", one.run.damage)
        return [one for one in sights if one.run.damage is None]

    def _is_ours(self, run: Run) -> bool:
        if run.state is not RunState.RUNNING or self._pipeline not in (None, run.spec.key.pipeline):
            return False
        if self._run_uid is not None:
            return run.uid == self._run_uid
        return run.spec.supervision is not Supervision.PROCESS

    def _is_due(self, run: Run, groups: Sequence[GroupStatus], request: ScalingRequest) -> bool:
        found = {status.group: status for status in groups}
        return is_due(self._store, request, [found[name] for name in run.spec.replicated[request.group].replicas])

    def _watcher(self, run: Run) -> Watcher:
        if run.run_id not in self._watchers:
            self._watchers[run.run_id] = Watcher(
                self._store, run, supervises=True, end_old_drivers=self._end_old_drivers, clock=self._clock
            )
        return self._watchers[run.run_id]

    def _forget_ended(self, sights: Sequence[RunSight]) -> None:
        known = {one.run.run_id for one in sights}
        self._watchers = {run_id: watcher for run_id, watcher in self._watchers.items() if run_id in known}


def only_watched(sight: RunSight | None) -> Findings:
    """What a look finds for a process that recovers nothing: whether groups of the run are still to end.

    Raises `LogInconsistent` if the run is damaged in the log.
    """
    if sight is None or sight.run.state is not RunState.RUNNING:
        return Findings(())
    check_whole(sight.run)
    going_on = sum(one.state not in ENDED for one in sight.groups)
    return Findings((), going_on + sum(one.state in OPEN_SCALING for one in sight.requests))


def _failure(run: Run, observation: Observation) -> FailedGroup | None:
    if not observation.is_dead or observation.status is None or observation.status.own_place:
        return None
    dead, named = observation.status, run.spec.key
    cause = observation.cause or dead.error or "dead"
    return FailedGroup(
        run.uid, named.pipeline, named.dag_run_id, dead.group, dead.incarnation, cause, detected_at=dead.since
    )


def _unexplained(sight: RunSight) -> Iterator[UnexplainedKill]:
    """The killed tasks that are to be asked after now, of groups that have not ended."""
    for status in sight.groups:
        if status.killed is None or not is_to_be_asked(status.killed):
            continue
        kill = _kill(sight.run, status.group, status.killed)
        # The note is with the first replica, which may end before the others.
        watched = members_of(sight.run, kill.group)
        if any(one.state not in ENDED for one in sight.groups if one.group in watched):
            yield kill


def _kill(run: Run, group: str, task: KilledTask) -> UnexplainedKill:
    key = run.spec.key
    watched = group if task.of_replica else replicated_group(group)
    return UnexplainedKill(run.uid, key.pipeline, key.dag_run_id, watched, asdict(task))


def _due(run: Run, request: ScalingRequest) -> DueScaling:
    key = run.spec.key
    return DueScaling(run.uid, key.pipeline, key.dag_run_id, request.group, request.request_id, request.replicas)
