"""`Threshold`: more replicas when the group lags or is busy, fewer when it does neither."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_logio.supervision.policies.policy import Decision, Figures, Policy, above_zero, at_least_zero

SPARE = 0.95
"""A smaller group is chosen only if it would be less busy than this part of the upper limit. At the limit itself the next
measurement, or rounding alone, would make it larger again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold(Policy):
    """Goes up by `step` while the group lags or is busy, and down by at most `step` while it is neither.

    Between the upper and the lower limits nothing changes. A smaller group is not chosen either if the same work would keep
    it about as busy as `up_busy` (95 % of it), or busier: so a constant load makes it go neither up and down, nor down and
    up, for ever.

    :param up_lag_seconds: more replicas when the backlog takes longer than this at the rate of the last seconds.
    :param down_lag_seconds: fewer only if it takes less than this.
    :param up_busy: more replicas when they are busy for a larger share of their time, on average.
    :param down_busy: fewer only if they are busy for less.
    :param step: by how many replicas at a time.
    :param cool_down_seconds: nothing is changed so soon after a change.
    """

    up_lag_seconds: float = 30.0
    down_lag_seconds: float = 5.0
    up_busy: float = 0.8
    down_busy: float = 0.4
    step: int = 1
    cool_down_seconds: float = 60.0

    def check(self) -> None:
        Policy.check(self)
        at_least_zero(self, "down_lag_seconds", "down_busy", "cool_down_seconds")
        above_zero(self, "up_lag_seconds", "up_busy")
        if self.down_lag_seconds >= self.up_lag_seconds:
            self.refuse(
                f"down_lag_seconds is {self.down_lag_seconds:g}, not below up_lag_seconds {self.up_lag_seconds:g}"
            )
        if not self.down_busy < self.up_busy < 1:
            self.refuse(f"up_busy is {self.up_busy:g}; it must be above down_busy ({self.down_busy:g}) and below 1")
        if not isinstance(self.step, int) or isinstance(self.step, bool) or self.step < 1:
            self.refuse(f"step is {self.step!r}; give a number of replicas, at least 1")

    def wanted(self, figures: Figures) -> Decision:
        now = figures.replicas
        if now == 0:
            return Decision(0, "no replica is in use")
        if (early := self._too_early(figures)) is not None:
            return Decision(now, early)
        busy = sum(load.busy for load in figures.known.values()) / now
        lag = _lag_seconds(figures)
        said = f"lag {lag:.1f} s ({figures.backlog:,} records), busy {busy:.0%}"
        if busy > self.up_busy:
            return Decision(now + self.step, f"{said}: busy above {self.up_busy:.0%}")
        if lag > self.up_lag_seconds:
            return self._larger(now, busy, said)
        if lag < self.down_lag_seconds and busy < self.down_busy:
            return self._smaller(figures, busy, said)
        return Decision(now, f"{said}: within the limits")

    def _too_early(self, figures: Figures) -> str | None:
        """Why nothing can be said yet; None if it can."""
        since = figures.since_change()
        if since < self.cool_down_seconds:
            return f"changed {since:.0f} s ago, which cools down for {self.cool_down_seconds:g} s"
        missing = sorted(set(figures.loads) - set(figures.known))
        return f"nothing is known yet of the load of {', '.join(missing)}" if missing else None

    def _larger(self, now: int, busy: float, said: str) -> Decision:
        """More replicas for a lag, unless those in use do not work on it: then a receiver holds them up, or one is dead."""
        if busy < self.down_busy:
            return Decision(now, f"{said}: they wait for something else, which more replicas would not help")
        return Decision(now + self.step, f"{said}: lag above {self.up_lag_seconds:g} s")

    def _smaller(self, figures: Figures, busy: float, said: str) -> Decision:
        now = figures.replicas
        calm = f"{said}: lag below {self.down_lag_seconds:g} s, busy below {self.down_busy:.0%}"
        for fewer in range(max(0, now - self.step), now):
            if fewer == 0:
                if figures.arrivals == 0 and not figures.has_work:
                    return Decision(0, f"{calm}, nothing arrives and nothing waits")
            elif busy * now / fewer < self.up_busy * SPARE:
                return Decision(fewer, calm)
        return Decision(now, f"{said}: low, but fewer replicas would be too busy, or leave work without one")


def _lag_seconds(figures: Figures) -> float:
    """How long the backlog takes at the rate of the last seconds."""
    if figures.backlog == 0:
        return 0.0
    rate = sum(load.records_in / load.seconds for load in figures.known.values())
    return figures.backlog / rate if rate > 0 else float("inf")
