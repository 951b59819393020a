"""When is a driver dead, and may it be recovered once more? Pure decisions over observations (design D8)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from airflow_logio.errors import ConfigurationError

BEAT_SECONDS = 0.5
"""Time between two heartbeats of a driver."""
SHORTEST_LEASE = 4 * BEAT_SECONDS


@dataclass(frozen=True, slots=True)
class Lease:
    """`seconds` without a new heartbeat mean death; `launch_seconds` is the deadline of the launch states."""

    seconds: float = 10.0
    launch_seconds: float = 120.0


def lease_of(seconds: float | None, launch_seconds: float | None) -> Lease:
    """The lease of a run's drivers; None is the default of `Lease`. Raises `ConfigurationError`.

    A watcher looks about once per second, and a busy machine delays heartbeats: a lease of only a few heartbeats would
    end drivers that are alive.
    """
    default = Lease()
    given = {
        "lease_seconds": (seconds, default.seconds, "a driver without a heartbeat for that long is dead"),
        "launch_seconds": (
            launch_seconds,
            default.launch_seconds,
            "a driver must register within that time after its launch",
        ),
    }
    values = []
    for name, (value, usual, meaning) in given.items():
        if value is None:
            values.append(usual)
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not SHORTEST_LEASE <= value < math.inf:
            raise ConfigurationError(
                f"{name} is {value!r}; give seconds, {SHORTEST_LEASE:g} or more ({usual:g} by default): {meaning}"
            )
        values.append(float(value))
    return Lease(*values)


@dataclass(slots=True)
class LeaseObserver:
    """One observer's view of one driver.

    Dead by lease means: the *same* heartbeat number for a whole lease while every poll in between succeeded. A failed
    poll restarts the observation, so a log outage does not look like the death of every driver. Between two polls, at most
    a quarter of the lease counts, so an observer that was itself stopped for a while does not declare drivers dead.
    Times are the observer's own monotonic seconds, taken before each question.
    """

    lease: Lease
    _incarnation: int = 0
    _beat: int = -2
    _last: float = field(default=0.0)
    _still: float = field(default=0.0)
    _fresh: bool = True

    def observe(self, incarnation: int, beat: int, now: float) -> float:
        """A poll succeeded. Returns for how many seconds this heartbeat has been seen unchanged."""
        if self._fresh or incarnation != self._incarnation or beat != self._beat:
            self._incarnation, self._beat, self._still, self._fresh = incarnation, beat, 0.0, False
        else:
            self._still += min(now - self._last, self.lease.seconds / 4)
        self._last = now
        return self._still

    def poll_failed(self) -> None:
        self._fresh = True

    def hold(self, incarnation: int, now: float) -> None:
        """Time passes that does not count; what has counted before does."""
        if incarnation == self._incarnation:
            self._last = now

    def is_expired(self, stood_still: float, *, launching: bool) -> bool:
        return stood_still > (self.lease.launch_seconds if launching else self.lease.seconds)


MOST_LONG_ATTEMPTS = 3
"""What ends its server each time after an hour would do so for ever."""


@dataclass(slots=True)
class Outage:
    """How long something is tried again that failed because another system is unavailable.

    `seconds` count from the first failure: until then the system was there, and the attempt may rightly have taken its time.
    They count anew after an attempt that took longer than they are, but there are only `MOST_LONG_ATTEMPTS` of those. Times
    are the caller's monotonic seconds.
    """

    seconds: float
    long_attempts: int = 0
    """How many have failed after longer than `seconds`."""
    _since: float = math.inf

    def failed(self, begun: float, ended: float) -> bool:
        """An attempt has failed. Returns whether to give up."""
        is_long = ended - begun > self.seconds
        self.long_attempts += is_long
        if self._since == math.inf or (is_long and self.long_attempts < MOST_LONG_ATTEMPTS):
            self._since = ended
        return ended - self._since >= self.seconds

    def is_over(self) -> None:
        """The other system is there after all: `seconds` count from the next failure."""
        self._since = math.inf


@dataclass(frozen=True, slots=True)
class RecoveryBudget:
    """At most `recoveries` claims after the first within `window_seconds`. Claims count, whatever process makes them.

    At most `same_event` of them may run into an error of an operator's code at the same event or Input Set: an error that
    recurs there is not an accident of the machine, and more recoveries would not fix it.
    """

    recoveries: int = 5
    window_seconds: float = 600.0
    same_event: int = 2

    def __post_init__(self) -> None:
        if self.recoveries < 0 or self.window_seconds <= 0 or self.same_event < 0:
            raise ValueError(
                f"a recovery budget needs recoveries >= 0, same_event >= 0 and window_seconds > 0, got {self}"
            )

    def left_at(self, points: Sequence[str | None]) -> int | None:
        """How many more failures at the place of the last one are recovered; below 0, that one is not. None if no
        operator's code was to blame for it.

        `points` are where the drivers of the group failed, oldest first; None where no operator's code was to blame.
        """
        if not points or points[-1] is None:
            return None
        again = 0
        for point in reversed(points):
            if point != points[-1]:
                break
            again += 1
        return self.same_event - again

    def is_spent_at(self, points: Sequence[str | None]) -> bool:
        """`points` as in `left_at`."""
        left = self.left_at(points)
        return left is not None and left < 0

    def left(self, ages: Sequence[float]) -> int:
        """How many recoveries are left in the window; `ages` are the seconds since each earlier recovery of the group."""
        return max(0, self.recoveries - sum(age <= self.window_seconds for age in ages))

    def is_spent(self, ages: Sequence[float]) -> bool:
        """`ages` as in `left`."""
        return self.left(ages) == 0


TAKEN_BUDGET = RecoveryBudget(recoveries=20, window_seconds=86_400.0)
"""For recoveries after drivers whose room their cluster manager took, or whose node it lost. They spend nothing of a run's
budget; without a bound of their own, what is evicted each time would be launched for ever."""
