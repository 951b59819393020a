"""`DS2`: the number of replicas from their true processing rates (Kalavri et al., OSDI 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from airflow_logio.supervision.policies.policy import Decision, Figures, Policy, above_zero, at_least_zero

HARDLY_BUSY = 0.5
"""A share of one replica's time: a group without a backlog that is busy for less needs no second replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DS2(Policy):
    """As many replicas as the target rate needs, in one step.

    The true processing rate of a replica is what it has processed, divided by the time for which it was busy; the time in
    which it waited for input or was held up does not count. The target rate is what arrives, and what works off the backlog
    in time. The group is to have target rate / mean true rate replicas, rounded up.

    A sender that is held up by back-pressure sends less than it could: then the backlog, which is at its bound, drives the
    target up.

    :param work_off_seconds: in how many seconds a backlog is to be worked off.
    :param cool_down_seconds: nothing is changed so soon after a change; in any case not before a whole window of figures lies
        behind it.
    :param minimum_busy_seconds: the window of a replica that was busy for less tells nothing of its rate.
    :param minimum_records: neither does one with fewer records.
    :param tolerance: share by which the target may grow before a smaller group would be too small again; it keeps a target
        close to a whole number of replicas from changing the group again and again.
    """

    work_off_seconds: float = 60.0
    cool_down_seconds: float = 30.0
    minimum_busy_seconds: float = 0.2
    minimum_records: int = 1
    tolerance: float = 0.05

    def check(self) -> None:
        Policy.check(self)
        above_zero(self, "work_off_seconds", "minimum_busy_seconds", "minimum_records")
        at_least_zero(self, "cool_down_seconds", "tolerance")

    def wanted(self, figures: Figures) -> Decision:
        now = figures.replicas
        if now == 0:
            return Decision(0, "no replica is in use")
        if (early := self._too_early(figures)) is not None:
            return Decision(now, early)
        arrivals = figures.arrivals or 0.0
        target = arrivals + figures.backlog / self.work_off_seconds
        said = f"{arrivals:,.1f} records/s arrive and {figures.backlog:,} wait, target {target:,.1f} records/s"
        if not figures.has_work:
            return Decision(0, f"{said}: nothing to do")
        rates = self.true_rates(figures)
        if not rates:
            return self._without_rates(figures, said)
        rate = sum(rates.values()) / len(rates)
        exact = target / rate
        said = f"{said}; a busy replica processes {rate:,.1f} records/s, so {exact:.2f} replica(s)"
        wanted = max(1, math.ceil(exact))
        careful = max(1, math.ceil(exact * (1 + self.tolerance)))
        if wanted < min(careful, now):
            return Decision(min(careful, now), f"{said}, and {self.tolerance:.0%} to spare")
        return Decision(wanted, said)

    def true_rates(self, figures: Figures) -> dict[str, float]:
        """Replica → records per busy second, of those windows that tell enough."""
        return {
            name: load.records_in / (load.busy * load.seconds)
            for name, load in figures.known.items()
            if load.busy * load.seconds >= self.minimum_busy_seconds and load.records_in >= self.minimum_records
        }

    def _too_early(self, figures: Figures) -> str | None:
        """Why nothing can be said yet; None if it can."""
        settle = max([self.cool_down_seconds, *(load.seconds for load in figures.known.values())])
        if figures.since_change() < settle:
            return f"changed {figures.since_change():.0f} s ago, which settles for {settle:.0f} s"
        return "it is not known yet how many records arrive" if figures.arrivals is None else None

    def _without_rates(self, figures: Figures, said: str) -> Decision:
        """Replicas that are hardly busy tell nothing of their rates, and all the same that one of them is enough."""
        known, busy = figures.known, sum(load.busy for load in figures.known.values())
        if len(known) == figures.replicas and not figures.events and busy < HARDLY_BUSY:
            return Decision(1, f"{said}: together they are busy for {busy:.1%} of the time of one")
        return Decision(figures.replicas, f"{said}: no replica was busy for long enough to know its rate")
