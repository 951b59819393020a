"""Stops of a group that runs again, from the records of its drivers: the log keeps the state of a group only as it is now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from airflow_logio.protocol.liveness import RecoveryBudget
from airflow_logio.status.recoveries import is_budget_spent
from airflow_logio.store.records.driver_records import DriverRecord


class PastStop(NamedTuple):
    """A driver has ended, and the next one was no recovery."""

    is_budget_spent: bool
    """So that it was parked, or would have been when it was to be recovered. Others have parked themselves, or were dead and
    not recovered: the log does not say which."""
    seconds: float
    """So long the group stood still."""

    def told(self, error: str | None) -> str:
        """Why it stood still, and how that ended. Without an error, it had ended by itself."""
        after = f"launched again on request after {_lasting(self.seconds)}"
        if not error:
            return f"halted, or had finished, or was not needed as a replica; {after}"
        which = "its recovery budget was spent" if self.is_budget_spent else "parked, or dead and not recovered"
        return f"{error.rstrip('. ')} ({which}; {after})"


def past_stops(drivers: Iterable[DriverRecord], budget: RecoveryBudget) -> Mapping[tuple[str, int], PastStop]:
    """(group, incarnation that has ended) → the stop. `drivers` are those of a run, in the order of their claims."""
    of_group: dict[str, list[DriverRecord]] = {}
    found: dict[tuple[str, int], PastStop] = {}
    for driver in drivers:
        before = of_group.setdefault(driver.group, [])
        if before and not driver.is_recovery and (stop := _stop(before, driver, budget)) is not None:
            found[driver.group, before[-1].incarnation] = stop
        before.append(driver)
    return found


def _stop(before: Sequence[DriverRecord], driver: DriverRecord, budget: RecoveryBudget) -> PastStop | None:
    last = before[-1]
    if last.ended_at is None:
        return None
    is_spent = bool(last.error) and is_budget_spent(budget, before, last.ended_at)
    return PastStop(is_spent, max(0.0, driver.claimed_at - last.ended_at))


def _lasting(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:,.0f} min"
