"""Notices: what callbacks are told of a run, found from what the log says (ADR-102).

The process that looks keeps what was told, as plain data (`Seen`), and hands it on. So each occurrence is told once,
whichever process looks; one that was not told yet is found again by the next look, as long as the log says it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import structs

from airflow_logio.errors import ConfigurationError
from airflow_logio.protocol.states import OPEN_SCALING, GroupState, ScalingState
from airflow_logio.status.condition import queued_seconds, waits_for_room
from airflow_logio.status.recoveries import Recovery, budget_left, recoveries

if TYPE_CHECKING:
    from airflow_logio.store.records.driver_records import DriverRecord
    from airflow_logio.store.records.run_records import Run
    from airflow_logio.store.records.status_records import RunFigures, RunSight, ScalingRequest
    from airflow_logio.store.records.upkeep_records import QuarantineCount

QUARANTINE_SECONDS = 600.0
"""Least time between two notices of Input Sets that were set aside in one group; each has the number by then."""
NEARLY_SPENT = 1
"""A recovery after which no more than this many are left in the window has nearly spent the budget; so has one after which
none is left at the same place of an operator's code."""
_LONGEST = 4000
"""Characters of an error that a notice has; `logio status` has all of it."""

Seen = Mapping[str, Mapping[str, Any]]
"""Kind → group → what was told last: the incarnation, the number of the request, or, of Input Sets, (how many, since when the
latest was set aside, when that was told), and of a queue, (incarnation, how often the time in it had doubled)."""


class NoticeKind(StrEnum):
    RECOVERY = "recovery"
    """A dead group was relaunched."""
    BUDGET = "budget"
    """After a recovery, the group's budget is nearly spent."""
    SCALING = "scaling"
    """A request to scale a group was carried out or refused."""
    QUARANTINE = "quarantine"
    """Input Sets were set aside."""
    QUEUED = "queued"
    """A driver waits for room on its cluster for longer than a launch may take."""
    HALTED = "halted"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Notice:
    """One occurrence, as callbacks get it: plain data. Errors are as the log has them."""

    kind: NoticeKind
    run_uid: str
    pipeline: str
    dag_run_id: str
    group: str
    """As the log names it: a replica, where it is about one of them."""
    incarnation: int | None
    """The incarnation of its driver; None where it is about no driver."""
    why: str
    at: float | None
    """When it occurred: seconds since the epoch by the database's clock, where the log says so."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """By kind: see docs/how-to/recover.md."""
    mark: Any = None
    """What is remembered once it is told; None if nothing needs to be."""

    @property
    def key(self) -> str:
        """Names the occurrence: the same if it is told again."""
        if self.mark is None:  # of a recovery that has parked the group instead
            told = [self.incarnation, self.figures.get("outcome")]
        else:
            told = self.mark[:2] if isinstance(self.mark, list) else [self.mark]
        return "/".join([self.run_uid, self.group, str(self.kind), *map(str, told)])

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "kind": str(self.kind)}

    @classmethod
    def of(cls, data: Any) -> Notice:
        """From `as_dict`, which may have gone through JSON. Raises `ConfigurationError`."""
        try:
            return cls(**{**data, "kind": NoticeKind(data["kind"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a notice is expected as LogioFailedGroupTrigger sends it, got {data!r:.200}"
            ) from error


def remembered(seen: Seen, notice: Notice) -> dict[str, dict[str, Any]]:
    """`seen`, and this notice. Of two that are told in any order, the later one counts."""
    kept = {kind: dict(groups) for kind, groups in seen.items()}
    if notice.mark is not None:
        of_kind = kept.setdefault(str(notice.kind), {})
        before = of_kind.get(notice.group)
        is_number = isinstance(before, int) and isinstance(notice.mark, int)
        of_kind[notice.group] = max(before, notice.mark) if is_number else notice.mark
    return kept


def notices(
    sight: RunSight,
    figures: RunFigures | None,
    seen: Seen,
    *,
    kinds: Collection[str],
    now: float,
    all_requests: Callable[[], Sequence[ScalingRequest]],
    is_last: bool = False,
) -> list[Notice]:
    """What has to be told of a run, of these kinds, and was not told yet.

    Without `figures`, recoveries, budgets and quarantine wait for the next look. Where nothing was told of a group before,
    only its latest recovery and request are. `now` is in seconds since the epoch, by the looking process; `all_requests`
    reads what `LogStore.scalings` returns, where a request has been settled. `is_last`: no other look follows, so nothing is
    held back.
    """
    told = {kind: seen.get(kind, {}) for kind in NoticeKind}
    found: list[Notice] = []
    if figures is not None:
        found += _recovered(sight.run, figures.drivers, told[NoticeKind.RECOVERY])
        found += _nearly_spent(sight.run, figures.drivers, told[NoticeKind.BUDGET])
    if NoticeKind.SCALING in kinds:
        found += _scaled(sight, told[NoticeKind.SCALING], all_requests)
    if figures is not None:
        found += _set_aside(sight.run, figures.quarantined, told[NoticeKind.QUARANTINE], now, is_last=is_last)
    found += _queued(sight, told[NoticeKind.QUEUED])
    found += _stopped(sight, GroupState.HALTED, NoticeKind.HALTED, told[NoticeKind.HALTED])
    found += _stopped(sight, GroupState.PARKED, NoticeKind.PARKED, told[NoticeKind.PARKED])
    return [one for one in found if one.kind in kinds]


def recovery_notice(recovery: Mapping[str, Any]) -> Notice:
    """The notice of a recovery, launched or parked, from what its task has reported."""
    launched = recovery["launched_incarnation"]
    return Notice(
        NoticeKind.RECOVERY,
        recovery["run_uid"],
        recovery["pipeline"],
        recovery["dag_run_id"],
        recovery["group"],
        recovery["incarnation"] if launched is None else launched,
        _shortened(recovery["why"]),
        recovery["fenced_at"],
        {**recovery, "cause": _shortened(recovery["cause"]), "why": _shortened(recovery["why"])},
        launched,
    )


def _notice(run: Run, kind: NoticeKind, group: str, incarnation: int | None, why: str | None, **more: Any) -> Notice:
    key = run.spec.key
    return Notice(kind, run.uid, key.pipeline, key.dag_run_id, group, incarnation, _shortened(why or ""), **more)


def _shortened(why: str) -> str:
    return why if len(why) <= _LONGEST else f"{why[:_LONGEST]}\n... (`logio status` shows all of it)"


def _stopped(sight: RunSight, state: GroupState, kind: NoticeKind, told: Mapping[str, int]) -> Iterator[Notice]:
    for one in sight.groups:
        if state is GroupState.HALTED and one.desired is not GroupState.HALTED and one.error is None:
            continue  # it had finished, and has work again: a retry of its Input Sets is about to launch it
        if one.state is state and told.get(one.group) != one.incarnation:
            why = one.error or ("it was asked to halt" if state is GroupState.HALTED else state.value)
            figures = {"recoveries": one.recoveries}
            yield _notice(
                sight.run, kind, one.group, one.incarnation, why, at=one.since, figures=figures, mark=one.incarnation
            )


def _queued(sight: RunSight, told: Mapping[str, Sequence[int]]) -> Iterator[Notice]:
    """When it has waited for `launch_seconds`, then each time that this has doubled: a queue may last for days."""
    launch_seconds = sight.run.spec.lease.launch_seconds
    for one in sight.groups:
        waited = queued_seconds(one)
        if waited is None or waited < launch_seconds:
            continue
        mark = [one.incarnation, int(math.log2(waited / launch_seconds))]
        if mark <= list(told.get(one.group, ())):
            continue
        figures = {"seconds": waited, "launch_seconds": launch_seconds}
        why = waits_for_room(one)
        yield _notice(
            sight.run, NoticeKind.QUEUED, one.group, one.incarnation, why, at=one.since, figures=figures, mark=mark
        )


def _untold(run: Run, drivers: Sequence[DriverRecord], told: Mapping[str, int]) -> list[Recovery]:
    """Recoveries that were not told: all after the last one that was; of a group without any, the latest."""
    found = recoveries(drivers)
    newest = {one.group: one.incarnation for one in found}
    return [one for one in found if one.incarnation > told.get(one.group, newest[one.group] - 1)]


def _recovered(run: Run, drivers: Sequence[DriverRecord], told: Mapping[str, int]) -> Iterator[Notice]:
    for one in _untold(run, drivers, told):
        figures = {
            "run_uid": run.uid,
            "pipeline": run.spec.key.pipeline,
            "dag_run_id": run.spec.key.dag_run_id,
            "group": one.group,
            "incarnation": one.incarnation - 1,
            "cause": one.cause,
            "detected_at": one.detected_at,
            "outcome": "launched",
            "why": one.cause,
            "launched_incarnation": one.incarnation,
            "fenced_at": one.fenced_at,
            "launched_at": one.launched_at,
        }
        yield recovery_notice(figures)


def _nearly_spent(run: Run, drivers: Sequence[DriverRecord], told: Mapping[str, int]) -> Iterator[Notice]:
    budget = run.spec.budget
    for one in _untold(run, drivers, told):
        until = [driver for driver in drivers if driver.group == one.group and driver.incarnation <= one.incarnation]
        then = [*until[:-1], structs.replace(until[-1], ended_at=None, failed_at=None)]  # it had just been launched
        found = budget_left(budget, then, one.fenced_at)
        if found.in_window > NEARLY_SPENT and found.at_point != 0:
            continue
        if found.at_point != 0:
            why = f"{found.used} of {budget.recoveries} recoveries within {budget.window_seconds:g} s are spent"
        else:
            why = f"it has failed at {found.point} again, and is parked if it does so once more"
        figures = {
            "left": found.left,
            "used": found.used,
            "recoveries": budget.recoveries,
            "window_seconds": budget.window_seconds,
            "failed_at": found.point,
        }
        yield _notice(
            run,
            NoticeKind.BUDGET,
            one.group,
            one.incarnation,
            f"{why}; last cause: {one.cause}",
            at=one.fenced_at,
            figures=figures,
            mark=one.incarnation,
        )


def _scaled(
    sight: RunSight, told: Mapping[str, int], all_requests: Callable[[], Sequence[ScalingRequest]]
) -> Iterator[Notice]:
    settled = {one.group: one.request_id for one in sight.requests if one.state not in OPEN_SCALING}
    if all(number <= told.get(group, 0) for group, number in settled.items()):
        return
    for one in sorted(all_requests(), key=lambda request: request.request_id):
        last = told.get(one.group, settled.get(one.group, one.request_id) - 1)
        if one.state in OPEN_SCALING or one.group not in settled or one.request_id <= last:
            continue
        what = f"{one.replicas} replicas, asked for by {one.by}" + (f" ({one.reason})" if one.reason else "")
        refused = one.state is ScalingState.REFUSED
        why = f"{what}: {one.note}" if refused and one.note else what
        figures = {
            "replicas": one.replicas,
            "outcome": one.state.value,
            "by": one.by,
            "request_id": one.request_id,
            "seconds": None if one.ended_at is None else max(0.0, one.ended_at - one.requested_at),
        }
        yield _notice(
            sight.run,
            NoticeKind.SCALING,
            one.group,
            None,
            why,
            at=one.ended_at,
            figures=figures,
            mark=one.request_id,
        )


def _set_aside(
    run: Run,
    quarantined: Mapping[str, QuarantineCount],
    told: Mapping[str, Sequence[float]],
    now: float,
    *,
    is_last: bool,
) -> Iterator[Notice]:
    for group, found in sorted(quarantined.items()):
        count, latest, at = told.get(group, (0, 0.0, -QUARANTINE_SECONDS))
        is_new = found.input_sets > count or found.latest > latest
        if not is_new or (now - at < QUARANTINE_SECONDS and not is_last):
            continue
        yield _notice(
            run,
            NoticeKind.QUARANTINE,
            group,
            None,
            f"{found.input_sets} Input Sets are set aside; `logio status {run.uid[:8]}` shows them",
            at=found.latest,
            figures={"input_sets": found.input_sets},
            mark=[found.input_sets, found.latest, now],
        )
