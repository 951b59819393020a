"""Recoveries as the drivers' records tell them: what happened when, how long each step took, what is left of the budget.

A recovery is the claim of a dead group's next incarnation, at the cost of its budget. A person's retry is not a
recovery: between the end of the old driver and the new claim lies the time that the person took. The log decides whether
a group is parked (`LogStore.claim`), by the rule that is used here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_logio.protocol.liveness import TAKEN_BUDGET, RecoveryBudget
from airflow_logio.protocol.states import ENDED
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverRecord
from airflow_logio.store.records.status_records import GroupStatus


@dataclass(frozen=True, slots=True)
class Recovery:
    """From a dead driver to the first commit of the next. Times are seconds since the epoch, by the database's clock."""

    group: str
    incarnation: int
    """The new incarnation."""
    cause: str
    last_beat_at: float | None
    """Last sign of life of the old driver; None if it gave none."""
    detected_at: float
    """The old driver was declared dead."""
    fenced_at: float
    """The new incarnation was claimed: from then on the old driver could commit nothing."""
    launched_at: float | None
    running_at: float | None
    """The new driver registered."""
    first_commit_at: float | None
    ended_at: float | None
    """The new driver has ended, for whatever reason."""

    @property
    def steps(self) -> tuple[tuple[str, float | None], ...]:
        """The steps in their order, with their times."""
        return (
            ("detected", self.detected_at),
            ("fenced", self.fenced_at),
            ("launched", self.launched_at),
            ("running", self.running_at),
            ("first commit", self.first_commit_at),
        )

    @property
    def seconds_of_steps(self) -> dict[str, float]:
        """Step → seconds since the step before it that was reached; steps that were not reached are left out."""
        seconds: dict[str, float] = {}
        before = self.detected_at
        for step, at in self.steps[1:]:
            if at is not None:
                # The driver may be quicker than the note that it was launched.
                seconds[step] = max(0.0, at - before)
                before = max(before, at)
        return seconds

    @property
    def detection_seconds(self) -> float | None:
        """From the old driver's last sign of life; at most one heartbeat more than it took to see the death."""
        return None if self.last_beat_at is None else max(0.0, self.detected_at - self.last_beat_at)

    @property
    def seconds(self) -> float | None:
        """From the detected death to the first commit; None until then."""
        return None if self.first_commit_at is None else max(0.0, self.first_commit_at - self.detected_at)


def recoveries(drivers: Iterable[DriverRecord]) -> Sequence[Recovery]:
    """All recoveries of a run, in the order in which they were claimed."""
    last: dict[str, DriverRecord] = {}
    found = []
    for driver in sorted(drivers, key=lambda one: (one.claimed_at, one.group, one.incarnation)):
        old = last.get(driver.group)
        last[driver.group] = driver
        if driver.is_recovery and old is not None:
            found.append(_recovery(old, driver))
    return found


def _recovery(old: DriverRecord, new: DriverRecord) -> Recovery:
    return Recovery(
        group=new.group,
        incarnation=new.incarnation,
        cause=new.reason,
        last_beat_at=old.last_beat_at,
        detected_at=new.claimed_at if old.ended_at is None else old.ended_at,
        fenced_at=new.claimed_at,
        launched_at=new.submitted_at,
        running_at=new.registered_at,
        first_commit_at=new.first_commit_at,
        ended_at=new.ended_at,
    )


class RecoveryNews:
    """Reports each recovery twice: when it begins, and when it has made its first commit.

    Shown the drivers' records again and again. What the first look finds is old, except for incarnations above `after`
    of the groups that it names: a watcher that begins behind a launch names the incarnation before. Forgets everything
    with its process.
    """

    def __init__(self, after: dict[str, int] | None = None) -> None:
        self._after = dict(after or {})
        self._begun: set[tuple[str, int]] = set()
        self._committed: set[tuple[str, int]] = set()
        self._has_looked = False

    def of(self, drivers: Iterable[DriverRecord]) -> tuple[Sequence[Recovery], Sequence[Recovery]]:
        """(recoveries that have begun, recoveries that have committed first) since the last call."""
        found = recoveries(drivers)
        begun = list(self._new(found, self._begun))
        committed = list(self._new([one for one in found if one.first_commit_at is not None], self._committed))
        self._has_looked = True
        return begun, committed

    def _new(self, found: Sequence[Recovery], seen: set[tuple[str, int]]) -> Iterator[Recovery]:
        for one in found:
            key = (one.group, one.incarnation)
            if key in seen:
                continue
            seen.add(key)
            if self._has_looked or one.incarnation > self._after.get(one.group, one.incarnation):
                yield one


@dataclass(frozen=True, slots=True)
class EndOfRecovery:
    """`seconds` from the detected death to the first commit; None if there was none, and `why` says why."""

    why: str
    seconds: float | None


def end_of_recovery(store: LogStore, run_id: int, status: GroupStatus, incarnation: int) -> EndOfRecovery | None:
    """How the recovery ended that launched `incarnation`; None while it has not. `status` is that of its group, just read.

    Raises `LogUnavailable`.
    """
    for one in recoveries(store.drivers(run_id)):
        if (one.group, one.incarnation) == (status.group, incarnation) and one.first_commit_at is not None:
            return EndOfRecovery(one.cause, one.seconds)
    if status.incarnation > incarnation:
        return EndOfRecovery(f"incarnation {incarnation} was replaced before it had committed anything", None)
    if status.state in ENDED:
        return EndOfRecovery(f"the group is {status.state.value}: {status.error or 'no error'}", None)
    return None


@dataclass(frozen=True, slots=True)
class BudgetLeft:
    """How many more failures of one group would be recovered, at one moment."""

    in_window: int
    """Recoveries left within the window."""
    used: int
    """Recoveries within the window."""
    at_point: int | None = None
    """Recoveries left at the place where operators' code has failed last; None if it did not."""
    point: str | None = None
    """That place."""

    @property
    def left(self) -> int:
        """If it fails again at the same place."""
        return self.in_window if self.at_point is None else min(self.in_window, self.at_point)


def budget_left(budget: RecoveryBudget, drivers: Sequence[DriverRecord], now: float) -> BudgetLeft:
    """`drivers` are all of one group, in their order; `now` is in seconds since the epoch by the database's clock.

    What happened before a person's last restart is forgiven.
    """
    ages, failed = _unforgiven(drivers, now)
    used = sum(age <= budget.window_seconds for age in ages)
    there = budget.left_at(failed)
    if there is None:
        return BudgetLeft(budget.left(ages), used)
    return BudgetLeft(budget.left(ages), used, max(0, there), failed[-1])


def is_budget_spent(budget: RecoveryBudget, drivers: Sequence[DriverRecord], now: float) -> bool:
    """Whether the end of the last driver was one more than the budget allows. Arguments as of `budget_left`."""
    ages, failed = _unforgiven(drivers, now)
    if budget.is_spent_at(failed):
        return True
    taken = [now - one.claimed_at for one in drivers if one.was_taken]
    if drivers and drivers[-1].was_taken:  # by its cluster manager: that has a budget of its own
        return TAKEN_BUDGET.is_spent(taken[:-1])
    return budget.is_spent(ages)


def _unforgiven(drivers: Sequence[DriverRecord], now: float) -> tuple[list[float], list[str | None]]:
    """Ages of recoveries that have spent budget, and where drivers have failed."""
    forgiven = max((one.incarnation for one in drivers if one.incarnation > 1 and not one.is_recovery), default=0)
    taken = {one.incarnation for one in drivers if one.was_taken}
    spent = [one for one in drivers if one.is_recovery and one.incarnation - 1 not in taken]
    ages = [now - one.claimed_at for one in spent if one.incarnation > forgiven]
    failed = [one.failed_at for one in drivers if one.incarnation >= forgiven and one.ended_at is not None]
    return ages, failed


def latest_time(drivers: Sequence[DriverRecord]) -> float:
    """The latest moment that the records tell of, by the database's clock: seconds ago, while a driver lives. 0 without any
    record."""
    return max((max(one.claimed_at, one.last_beat_at or 0.0, one.ended_at or 0.0) for one in drivers), default=0.0)
