"""Recoveries as the drivers' records tell them: what happened when, and how long each step took.

A recovery is the claim of a dead group's next incarnation, at the cost of its budget. A person's retry is not a
recovery: between the end of the old driver and the new claim lies the time that the person took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_logio.store.records.driver_records import DriverRecord


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
