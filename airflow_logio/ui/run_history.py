"""What has happened in a run, with causes, the newest first; and the drivers of one group, for its panel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_logio.commands import counted
from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import GroupState, ScalingState
from airflow_logio.run_report.causes import HIDDEN, brief, cause_of
from airflow_logio.run_report.report import Report
from airflow_logio.status.cluster_news import manager_page
from airflow_logio.status.recoveries import is_budget_spent
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.status.whole_group import members_of
from airflow_logio.store.records.driver_records import DriverRecord
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest
from airflow_logio.ui.access import DATA_HIDDEN, error_text, names_input_set

MOST = 300
"""Happenings that a look has."""
LONGEST_CAUSE = 300
ROOM_FOR_STOP = 100
"""Characters of it for what came of an error, where a group stood still."""
_STOPPED = {GroupState.PARKED: "parked", GroupState.HALTED: "halted"}


def happenings(report: Report, *, shown: bool) -> dict[str, Any]:
    """``total`` of them, and the latest: each has ``at``, ``kind``, ``group``, ``incarnation`` and ``text``.

    A stop that is over is told as far as the records of drivers say it (`ended_stops`). `shown`: with the texts of errors.
    """
    found = [
        *_of_groups(report, shown=shown),
        *_of_scaling(report, shown=shown),
        *_of_drivers(report, shown=shown),
        *_of_run(report),
    ]
    found.sort(key=lambda one: one["at"], reverse=True)
    return {"total": len(found), "latest": found[:MOST]}


def _happening(
    at: float, kind: str, text: str, group: str | None = None, incarnation: int | None = None
) -> dict[str, Any]:
    cut = _cut(text, LONGEST_CAUSE)
    return {"at": at, "kind": kind, "group": group, "incarnation": incarnation, "text": cut}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _of_run(report: Report) -> Iterator[dict[str, Any]]:
    run = report.run
    yield _happening(run.created_at, "run", "the run was started")
    if run.ended_at is not None:
        yield _happening(run.ended_at, "run", f"the run has ended: {run.state.value}")
    for one in report.code_changes:
        yield _happening(one.taken_at, "code", f"{one.taken_by} gave it the code {one.digest[:8]}", one.group)


def _of_drivers(report: Report, *, shown: bool) -> Iterator[dict[str, Any]]:
    stopped = {
        (view.name, view.status.incarnation, view.status.error)
        for view in report.snapshot.groups
        if view.status.state in _STOPPED
    }
    stops = ended_stops(report.drivers, report.run.spec.budget)
    for driver in report.drivers:
        cause = _cause(driver, shown=shown)
        yield _happening(driver.claimed_at, "launch", cause, driver.group, driver.incarnation)
        is_said = (driver.group, driver.incarnation, driver.error) in stopped  # as what has parked the group
        stop = stops.get((driver.group, driver.incarnation))
        if driver.ended_at is not None and (driver.error or stop) and not is_said:
            kind, why = _end(_brief(driver.error, shown=shown), stop)
            yield _happening(driver.ended_at, kind, why, driver.group, driver.incarnation)
    for one in report.recoveries:
        if one.first_commit_at is not None:
            text = f"recovered: first commit {one.seconds or 0.0:.1f} s after the death was seen"
            yield _happening(one.first_commit_at, "recovery", text, one.group, one.incarnation)


def _end(why: str | None, stop: EndedStop | None) -> tuple[str, str]:
    """Kind and text of a driver's end. The error is cut, not what came of it."""
    if stop is None:
        return "death", why or ""
    # Without an error nothing was wrong: it was asked to halt, had finished, or was a replica too many.
    return "stopped" if why else "ended", stop.told(why and _cut(why, LONGEST_CAUSE - ROOM_FOR_STOP))


def _brief(error: str | None, *, shown: bool) -> str | None:
    """What was raised and the author's line: the panel of the group has all of the error."""
    return str(brief(error)) if error and shown else error_text(error, shown=shown)


def _cause(driver: DriverRecord, *, shown: bool) -> str:
    """Why a driver was launched: a recovery has the error of the driver before it as its cause."""
    if not driver.is_recovery:
        return driver.reason
    return str(brief(driver.reason)) if shown else HIDDEN


def noted(request: ScalingRequest, *, shown: bool) -> str:
    """The outcome of a request to scale: a refusal may have the error of a launch."""
    return request.note if shown or request.state is not ScalingState.REFUSED else HIDDEN


def _of_groups(report: Report, *, shown: bool) -> Iterator[dict[str, Any]]:
    for view in report.snapshot.groups:
        status = view.status
        if (kind := _STOPPED.get(status.state)) is not None:
            text = str(cause_of(status, shown=shown))
            yield _happening(status.since, kind, text, status.group, status.incarnation or None)


def _of_scaling(report: Report, *, shown: bool) -> Iterator[dict[str, Any]]:
    for one in report.replicated:
        for request in one.requests:
            yield _happening(request.requested_at, "scaling", _asked(request), one.group)
            if request.ended_at is not None:
                note = noted(request, shown=shown)
                outcome = f"{request.state.value}: {note or counted(request.replicas, 'replica')}"
                yield _happening(request.ended_at, "scaling", outcome, one.group)


def _asked(request: ScalingRequest) -> str:
    reason = f" ({request.reason})" if request.reason else ""
    return f"{request.by} asks for {counted(request.replicas, 'replica')}{reason}"


# --- stops that are over ----------------------------------------------------------------------------------------------


class EndedStop(NamedTuple):
    """A driver has ended, and the next one was no recovery."""

    is_budget_spent: bool
    """So that it was parked, or would have been when it was to be recovered. Others have parked themselves, or were dead and
    not recovered: the log does not say which."""
    seconds: float
    """How long the group stood still."""

    def told(self, error: str | None) -> str:
        """Why it stood still, and how that ended. Without an error, it had ended by itself."""
        after = f"launched again on request after {_lasting(self.seconds)}"
        if not error:
            return f"halted, or had finished, or was not needed as a replica; {after}"
        which = "its recovery budget was spent" if self.is_budget_spent else "parked, or dead and not recovered"
        return f"{error.rstrip('. ')} ({which}; {after})"


def ended_stops(drivers: Iterable[DriverRecord], budget: RecoveryBudget) -> Mapping[tuple[str, int], EndedStop]:
    """(group, incarnation that has ended) → the stop. `drivers` are those of a run, in the order of their claims."""
    of_group: dict[str, list[DriverRecord]] = {}
    found: dict[tuple[str, int], EndedStop] = {}
    for driver in drivers:
        before = of_group.setdefault(driver.group, [])
        if before and not driver.is_recovery and (stop := _stop(before, driver, budget)) is not None:
            found[driver.group, before[-1].incarnation] = stop
        before.append(driver)
    return found


def _stop(before: Sequence[DriverRecord], driver: DriverRecord, budget: RecoveryBudget) -> EndedStop | None:
    last = before[-1]
    if last.ended_at is None:
        return None
    is_spent = bool(last.error) and is_budget_spent(budget, before, last.ended_at)
    return EndedStop(is_spent, max(0.0, driver.claimed_at - last.ended_at))


def _lasting(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


# --- the panel of a group ---------------------------------------------------------------------------------------------

MOST_DRIVERS = 50


def panel_document(
    report: Report, group: str, history_url: str, *, errors_shown: bool, ids_shown: Callable[[], bool]
) -> dict[str, Any]:
    """A group, a replica, or a replicated group as a whole: then with the drivers of all its replicas.

    `ids_shown` is asked if a driver has failed at an Input Set: its id is data. Raises `UnknownRun` for a group that the run
    does not have.
    """
    run = report.run
    if report.snapshot.group(group) is None:
        raise UnknownRun("the run has no such group")
    names = set(members_of(run, group)) if group in run.spec.replicated else {group}
    statuses = [one.status for one in report.snapshot.groups if one.name in names]
    drivers = [one for one in report.drivers if one.group in names]
    shown = drivers[: -MOST_DRIVERS - 1 : -1]
    hides_ids = any(names_input_set(one.failed_at) for one in shown) and not ids_shown()
    return {
        "group": group,
        "whole": replicated_group(group),
        "drivers": [
            {"group": one.group, **driver_document(one, shown=errors_shown, ids_shown=not hides_ids)} for one in shown
        ],
        "drivers_in_all": len(drivers),
        "spark_ui": SparkUi(history_url).address(statuses),
        "manager_page": manager_page(statuses),
    }


def driver_document(driver: DriverRecord, *, shown: bool, ids_shown: bool) -> dict[str, Any]:
    """One incarnation, for the panel of its group; `shown`: with the text of its error. `ids_shown`: with
    the id of an Input Set at which it has failed."""
    return {
        "incarnation": driver.incarnation,
        "reason": _cause(driver, shown=shown),
        "claimed_at": driver.claimed_at,
        "registered_at": driver.registered_at,
        "first_commit_at": driver.first_commit_at,
        "ended_at": driver.ended_at,
        "error": error_text(driver.error, shown=shown),
        "failed_at": driver.failed_at if ids_shown or not names_input_set(driver.failed_at) else DATA_HIDDEN,
        "process": None if driver.pid is None else f"{driver.pid} on {driver.host}",
    }


def printing(report: Report, group: str) -> GroupStatus | None:
    """The group, if a driver of its own prints: a replicated group as a whole has none."""
    view = None if group in report.run.spec.replicated else report.snapshot.group(group)
    return None if view is None else view.status
