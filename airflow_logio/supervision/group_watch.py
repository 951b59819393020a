"""Watching a group over its incarnations: what the log and this machine's processes say (design D8 and D10).

Three answers: it is running, it has ended, it is dead. When the log cannot be asked the answer is *unknown*, and no
process acts on that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from airflow_logio.errors import HeartbeatsHeld, LogUnavailable
from airflow_logio.launch import processes
from airflow_logio.protocol.liveness import BEAT_SECONDS, Lease, LeaseObserver
from airflow_logio.protocol.states import ALIVE, LAUNCHING, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.status_records import GroupStatus

_LATE_SECONDS = 3 * BEAT_SECONDS
STANDBY_SECONDS = 3.0
"""For so long after a death, and after the driver's last heartbeat, others leave the recovery to its standby. It needs a
tenth of that."""


@dataclass(frozen=True, slots=True)
class Observation:
    """`status` is None if the log could not be asked, for the reason that is in `unavailable`; `cause` is set if the group is
    dead."""

    status: GroupStatus | None
    cause: str | None = None
    unavailable: str | None = None
    left_to_standby: bool = False
    """It is dead, and a process that stands by is about to take its driver's place."""

    @property
    def is_dead(self) -> bool:
        """Whether it is to be recovered."""
        return self.status is not None and self.status.state is GroupState.DEAD and not self.left_to_standby

    @property
    def state(self) -> GroupState | None:
        return self.status.state if self.status else None


class GroupWatcher:
    """One observer of one group. Call `poll`, or `judge` with what was read, about once per second.

    `end_old_drivers` is off only in tests of zombies. `is_standby`: it watches for the standby, to which others leave the
    group.
    """

    def __init__(
        self,
        store: LogStore,
        run_id: int,
        group: str,
        lease: Lease,
        *,
        end_old_drivers: bool = True,
        is_standby: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._group = group
        self._observer = LeaseObserver(lease)
        self._end_old_drivers = end_old_drivers
        self._is_standby = is_standby
        self._clock = clock

    def poll(self) -> Observation:
        """Look once; declares the group dead in the log if it is (compare-and-set on the incarnation)."""
        asked_at = self._clock()  # what the answer says held then, however late it comes
        try:
            return self.judge(self._store.group(self._run_id, self._group), asked_at)
        except LogUnavailable as error:
            return self.not_answered(str(error))

    def not_answered(self, why: str) -> Observation:
        """The log could not be asked, or takes no heartbeats."""
        self._observer.poll_failed()
        return Observation(None, unavailable=why)

    def judge(self, status: GroupStatus, asked_at: float) -> Observation:
        """As `poll`, for a status that was asked for at `asked_at` on this watcher's clock.

        Raises `LogUnavailable`.
        """
        if status.state is GroupState.DEAD:
            return self._dead(status, "dead")
        if status.state not in ALIVE:
            return Observation(status)
        try:
            cause = self._cause_of_death(status, asked_at)
        except HeartbeatsHeld as error:  # by another group's driver, perhaps, which its own watcher has to judge
            return self.not_answered(str(error))
        if cause is None:
            return Observation(status)
        # What was read before the process was seen gone may be old: in between it may have finished, or said why it ends.
        ref = GroupRef(self._run_id, self._group, status.incarnation)
        if self._store.ends_old_driver_first and self._end_old_drivers and status.identity is not None:
            processes.end(status.identity)  # a stopped writer shuts everyone out, this declaration included
        self._store.declare_dead(ref, cause)
        status = self._store.group(self._run_id, self._group)
        return self._dead(status, cause) if status.state is GroupState.DEAD else Observation(status)

    def _dead(self, status: GroupStatus, cause: str) -> Observation:
        left = not self._is_standby and _has_standby(status)
        return Observation(status, None if left else status.error or cause, left_to_standby=left)

    def _cause_of_death(self, status: GroupStatus, asked_at: float) -> str | None:
        if status.identity is not None and processes.is_gone(status.identity):
            pid = status.identity.pid or status.identity.parent_pid
            return f"the driver's process {pid} on {status.identity.host} has ended without saying so"
        launching = status.state in LAUNCHING
        # A driver that has just registered has a whole lease for its first heartbeat: launching counts separately.
        beat = -1 if launching else status.beat
        stood_still = self._observer.observe(status.incarnation, beat, asked_at)
        if stood_still > _LATE_SECONDS and not launching:
            # Drivers cannot say that they live if the log takes no heartbeats; then nothing is known of any of them.
            self._check_heartbeats(status)
        if self._observer.is_expired(stood_still, launching=launching):
            what = (
                f"did not register within {stood_still:.0f} s"
                if launching
                else f"gave no heartbeat for {stood_still:.0f} s"
            )
            return f"the driver of incarnation {status.incarnation} {what}"
        return None

    def _check_heartbeats(self, status: GroupStatus) -> None:
        """Raises `LogUnavailable`, unless it is this very driver that keeps the others from writing, because it is stopped.

        One that runs may be waiting for its disk, which is no reason to end it.
        """
        try:
            self._store.check_heartbeats()
        except HeartbeatsHeld as error:
            own = status.identity
            if own is None or error.pid != own.pid or not processes.is_stopped(own):
                raise


def poll_all(store: LogStore, run_id: int, watchers: Mapping[str, GroupWatcher]) -> Iterator[tuple[str, Observation]]:
    """Look at these groups of a run once, with one query; each is judged when its turn comes. One alone is asked about alone.

    What is done about one before the next is judged makes its status older, not wrong: launches and declarations of death are
    compare-and-set on the incarnation.
    """
    asked_at = time.monotonic()
    try:
        found = {} if len(watchers) == 1 else {status.group: status for status in store.groups(run_id)}
    except LogUnavailable as error:
        yield from [(group, watcher.not_answered(str(error))) for group, watcher in watchers.items()]
        return
    for group, watcher in watchers.items():
        try:
            observation = watcher.judge(found[group], asked_at) if group in found else watcher.poll()
        except LogUnavailable as error:
            observation = watcher.not_answered(str(error))
        yield group, observation


def _has_standby(status: GroupStatus) -> bool:
    """Whether its driver had a standby that was ready, died just now, and did not vanish with the whole machine before.

    By the log's clock alone: who asks may be a process that has seen nothing before. A driver that has said itself that it
    fails may still give heartbeats.
    """
    standby = None if status.load is None else status.load.standby
    if standby is None or not standby.is_ready or status.beat_at is None or status.beat_age_seconds is None:
        return False
    now = status.beat_at + status.beat_age_seconds
    return max(status.beat_age_seconds, now - status.since) < STANDBY_SECONDS
