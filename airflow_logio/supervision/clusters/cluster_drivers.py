"""What a look concludes about a driver on a cluster (design, "Drivers on a cluster").

A manager proves little: it writes nodes off that are only cut off, forgets drivers when it is restarted, and may be asked by
a process without a way to it. So of a driver that has registered only its exit counts, as an agent on its node has seen it,
and only if no heartbeat has come since: a heartbeat after the answer outweighs the answer. All else is left to the lease. Of
one that has not registered, what the manager says decides whether the deadline counts: not while it waits for room, and not
for a while if the manager does not answer. Time that has counted stays counted.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_logio.launch.managers.cluster_manager import DriverSight
from airflow_logio.protocol.liveness import BEAT_SECONDS, Lease
from airflow_logio.store.records.driver_records import NAMED, ManagerSaid
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.clusters.manager_answers import NO_ANSWER, Answer

SILENT_SECONDS = 3 * BEAT_SECONDS
"""For so long a driver must give no heartbeat after its manager has said that it has exited."""
FRESH_SECONDS = 30.0
"""What another observer has heard of a manager holds for so long."""
SAY_AGAIN_SECONDS = 10.0
NO_REASON = "its manager does not say why"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What an answer means for one driver. `exited`: why it is dead, if it is; it has not registered, or is silent."""

    exited: str | None = None
    holds: bool = False
    """The launch deadline stands still."""
    was_taken: bool = False
    """Should it be dead: its manager took its room, or lost its node."""
    says: ManagerSaid | None = None
    """What is to be noted in the log, for observers without a way to the manager, and for people."""


class ClusterDriver:
    """One observer's view of the drivers of one group on a cluster. All times are on the clock of the answers."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._incarnation = 0
        self._unknown_seconds = 0.0
        self._last_at: float | None = None
        self._exited_at: float | None = None

    def before_it_registers(self, status: GroupStatus, answer: Answer, now: float) -> Judgement:
        """Whether its launch deadline counts, or it is known to have exited."""
        self._is_about(status)
        passed = 0.0 if self._last_at is None else min(now - self._last_at, self._lease.seconds / 4)
        self._last_at = now
        seen = answer.sighting
        if answer is NO_ANSWER:
            return Judgement(holds=True)
        if seen.state is DriverSight.UNKNOWN:
            return self._not_answered(status, seen.why, passed)
        says = ManagerSaid(seen.state.value, seen.why, seen.since)
        noted = says if says != status.manager_said or (status.said_age_seconds or 0.0) > SAY_AGAIN_SECONDS else None
        if seen.state in (
            DriverSight.EXITED,
            DriverSight.LOST,
        ):  # one that comes after all is refused, and costs a launch
            what = "has ended" if seen.state is DriverSight.EXITED else "was written off by its manager"
            why = f"the driver {what} before it registered: {seen.why or NO_REASON}"
            return Judgement(exited=why, was_taken=seen.was_taken, says=noted)
        was_known = status.submission is not None and bool(status.submission.id)
        was_taken = seen.was_taken or (seen.state is DriverSight.GONE and was_known)
        return Judgement(holds=seen.state is DriverSight.QUEUED, was_taken=was_taken, says=noted)

    def after_it_registered(self, status: GroupStatus, answer: Answer, stood_still: float, now: float) -> Judgement:
        """`stood_still`: for how many seconds up to `now` every look has found the same heartbeat."""
        self._is_about(status)
        seen, reported = answer.sighting, status.reported
        if reported is None or not (reported.id or reported.manager == NAMED):  # which one it is, only the lease knows
            return Judgement()
        was_taken = seen.was_taken or (seen.state is DriverSight.GONE and reported.manager == NAMED)
        if seen.state is not DriverSight.EXITED:
            return Judgement(was_taken=was_taken)
        if self._exited_at is None or now - stood_still > self._exited_at:  # a heartbeat has come since
            self._exited_at = answer.asked_at
        if min(now - self._exited_at, stood_still) < SILENT_SECONDS:
            return Judgement(was_taken=was_taken)
        return Judgement(f"the driver has ended without saying so: {seen.why or NO_REASON}", was_taken=was_taken)

    def _is_about(self, status: GroupStatus) -> None:
        if status.incarnation != self._incarnation:
            self._incarnation, self._unknown_seconds = status.incarnation, 0.0
            self._last_at = self._exited_at = None

    def _not_answered(self, status: GroupStatus, why: str, passed: float) -> Judgement:
        """What another observer has heard counts; without that, the deadline stands still once for as long as it is."""
        said, age = status.manager_said, status.said_age_seconds
        if said is not None and said.state != DriverSight.UNKNOWN.value and age is not None and age < FRESH_SECONDS:
            return Judgement(holds=said.state == DriverSight.QUEUED.value)
        self._unknown_seconds += passed
        is_new = said is None or said.state != DriverSight.UNKNOWN.value or age is None or age > SAY_AGAIN_SECONDS
        says = ManagerSaid(DriverSight.UNKNOWN.value, why) if is_new else None
        return Judgement(holds=self._unknown_seconds < self._lease.launch_seconds, says=says)
