"""Places for drivers: how many may be alive at once of all runs of a pipeline (`drivers_at_once`; design, "Days").

A run has a place while a group of it is alive and none waits for a person; nothing is recorded. Only the first claim of a
run is asked. All others pass, recoveries among them: groups of a run wait for each other, so a run that has begun must
be able to end. The same for every adapter of the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_logio.commands import counted
from airflow_logio.errors import NoPlace
from airflow_logio.protocol.states import ALIVE, CONCLUDED, WAITING, GroupState
from airflow_logio.store.records.run_records import Run

GroupCounts = Mapping[GroupState, int]
"""State → how many groups of a run are in it."""


def asks_for_place(run: Run, *, by_user: bool, request_id: int | None) -> bool:
    """Whether a first claim of a group may be the first one of a run that is bounded; not by a person, and not of scaling."""
    return run.spec.drivers_at_once is not None and not by_user and request_id is None


def has_place(groups: GroupCounts) -> bool:
    """Whether a run with these groups has a place. One that is red gives its place to others."""
    return not ALIVE.isdisjoint(groups) and WAITING.isdisjoint(groups)


def why_no_place(run: Run, runs: Mapping[int, GroupCounts]) -> str | None:
    """Why a run that was never claimed does not begin now, by all unfinished runs of its pipeline; None if it may.

    A run that needs more places than there are begins alone.
    """
    bound = run.spec.drivers_at_once
    taken = _taken(run, runs)
    own = _drivers(runs.get(run.run_id, {}))
    if bound is None or not taken or sum(taken.values()) + own <= bound:
        return None
    return (
        f"run {run.spec.key}, uid {run.uid[:8]}, waits for a place: it needs {counted(own, 'driver')}, "
        f"{counted(len(taken), 'other run')} of the pipeline have {sum(taken.values())}, and drivers_at_once is {bound}"
    )


def check_place(run: Run, runs: Mapping[int, GroupCounts], *, was_claimed: bool) -> None:
    """Raises `NoPlace` if the first claim of the run must wait."""
    if not was_claimed and (why := why_no_place(run, runs)) is not None:
        raise NoPlace(why)


def runs_ahead(run: Run, runs: Mapping[int, GroupCounts], *, was_claimed: bool) -> int | None:
    """How many runs that wait began before this one and have no place beside it, if there is a place for it; None if there
    is none, or the run was given up. So as many as fit have none ahead.

    It says who asks first, so that not all that wait ask for one place at once. It blocks no run: one whose DAG run was
    deleted waits, too, and never asks.
    """
    if was_claimed:
        return 0
    if run.run_id not in runs or why_no_place(run, runs) is not None:
        return None
    taken, bound = sum(_taken(run, runs).values()), run.spec.drivers_at_once
    if bound is None:
        return 0
    left, passed = bound - taken - _drivers(runs.get(run.run_id, {})), 0
    for of in sorted(of for of, groups in runs.items() if of < run.run_id and _UNCLAIMED.issuperset(groups)):
        needed = _drivers(runs[of])
        if needed <= left:
            left -= needed
        elif not taken or taken + needed <= bound:  # else there is no place for it, with or without this one
            passed += 1
    return passed


_UNCLAIMED = frozenset({GroupState.NEW, GroupState.RETIRED})


def _taken(run: Run, runs: Mapping[int, GroupCounts]) -> dict[int, int]:
    """Each other run that has a place → its drivers."""
    return {of: _drivers(groups) for of, groups in runs.items() if of != run.run_id and has_place(groups)}


def _drivers(groups: GroupCounts) -> int:
    """How many a run has by now, or will have."""
    return sum(count for state, count in groups.items() if state not in CONCLUDED)
