"""What is left of a group's recovery budget, from the records of its drivers.

The log decides whether a group is parked (`LogStore.claim`), by the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.store.records.driver_records import DriverRecord


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
    return budget.is_spent_at(failed) or budget.is_spent(ages)


def _unforgiven(drivers: Sequence[DriverRecord], now: float) -> tuple[list[float], list[str | None]]:
    """Ages of recoveries, and where drivers have failed."""
    forgiven = max((one.incarnation for one in drivers if one.incarnation > 1 and not one.is_recovery), default=0)
    ages = [now - one.claimed_at for one in drivers if one.is_recovery and one.incarnation > forgiven]
    failed = [one.failed_at for one in drivers if one.incarnation >= forgiven and one.ended_at is not None]
    return ages, failed


def latest_time(drivers: Sequence[DriverRecord]) -> float:
    """The latest moment of which the records know, by the database's clock: seconds ago, while a driver lives. 0 if there
    are none."""
    return max((max(one.claimed_at, one.last_beat_at or 0.0, one.ended_at or 0.0) for one in drivers), default=0.0)
