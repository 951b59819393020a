"""The one look that finds the dead: what the log and this machine's processes say of groups of a run (design D8 and D10).

`logio run`, `logio tend`, the triggerer, the task of a group and a standby are its hosts. Each has a `Watcher`, calls it at
its own pace, and acts on the `Look` that it returns, through the one `recover_group` (tend.py). Three answers: a group
runs, it has ended, it is dead. While the log database is unreachable the answer is *unknown*, and no group is considered
dead. A driver is dead

- by process: its process was on this machine, and has ended without saying so in the log;
- by lease: its heartbeat number was the same for a whole lease while every look in between succeeded. A look that fails
  begins the lease anew, and between two looks at most a quarter of the lease counts, so an observer that was stopped itself
  accuses no driver (`LeaseObserver`);
- by deadline: it was claimed or submitted, and has not registered in time. While its cluster manager says that it waits for
  room, no time passes;
- by its cluster manager: that has seen its exit, and it gives no heartbeat any more (`clusters/cluster_drivers.py`).

A look reads the log in one statement, outside any transaction, and then writes at most one thing per dead group: that it is
dead (`LogStore.declare_dead`), a compare-and-set on the incarnation in a transaction of its own. A host may die

- before it: nothing is known. The next observer finds the same, after a whole lease of its own if only the lease shows it;
- in it: the database rolls it back, as if before;
- after it: every host reads in the log that the group is dead, and any of them recovers it.

Two observers of one death are harmless. The second declaration changes nothing, and its observer reads what the log says
instead; of two recoveries, one claim fails. A driver that is declared dead and lives may still finish, until the claim of
its successor fences it. On SQLite, a process that is stopped inside a transaction shuts all others out, so a process of this
machine ends before it is declared dead. If the observer dies between the two, the process is gone, which the next look sees.

For a supervisor (`supervises`), a look also finds the open requests to scale, and makes one for a group that sleeps and has
work (`scaling.look_after`): a transaction per request, whose repetition the log refuses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_logio.errors import HeartbeatsHeld, LogUnavailable, ProtocolViolation, UnknownRun
from airflow_logio.launch import processes
from airflow_logio.protocol.liveness import BEAT_SECONDS, LeaseObserver
from airflow_logio.protocol.replicas import SlotsSight, replicated_group
from airflow_logio.protocol.states import ALIVE, CONCLUDED, LAUNCHING, GroupState
from airflow_logio.status.condition import saying
from airflow_logio.status.whole_group import deciding, members_of
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, RunSight, ScalingRequest
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.supervision.clusters.cluster_drivers import ClusterDriver, Judgement
from airflow_logio.supervision.clusters.manager_answers import NO_ANSWER, Answer, ManagerAnswers, shared_answers
from airflow_logio.supervision.scaling import look_after

log = logging.getLogger(__name__)

_LATE_SECONDS = 3 * BEAT_SECONDS
STANDBY_SECONDS = 3.0
"""For so long after a death, and after the driver's last heartbeat, others leave the recovery to its standby. It needs a
tenth of that."""


@dataclass(frozen=True, slots=True)
class Death:
    """Why a driver is dead. `was_taken`: its cluster manager took its room, or lost its node."""

    cause: str
    was_taken: bool = False


@dataclass(frozen=True, slots=True)
class Observation:
    """One group, in one look. `status` is None if it could not be seen, `unavailable` says why; `cause` is set if the
    group is dead."""

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


@dataclass(frozen=True, slots=True)
class Look:
    """What one look has seen of the groups that its watcher observes."""

    observations: Mapping[str, Observation] = field(default_factory=dict)
    """Name in the log → what was seen."""
    requests: Sequence[ScalingRequest] = ()
    """For a supervisor: requests to scale that are open, the oldest first."""
    unavailable: str | None = None
    """Why the log could not be asked, or not about everything."""
    done: bool = True
    """False while a replicated group has slots left that no replica works on."""

    @property
    def statuses(self) -> list[GroupStatus]:
        return [one.status for one in self.observations.values() if one.status is not None]

    @property
    def is_dead(self) -> bool:
        """Whether a driver is to be recovered, whatever the others are."""
        return any(one.is_dead for one in self.observations.values())

    @property
    def left_to_standby(self) -> bool:
        """Whether a driver is dead whose standby is about to take its place."""
        return any(one.left_to_standby for one in self.observations.values())

    @property
    def incarnations(self) -> dict[str, int]:
        return {status.group: status.incarnation for status in self.statuses}

    # --- of a group with all its replicas (`Watcher.of_group`) --------------------------------------------------------

    @property
    def decides(self) -> Observation | None:
        """The observation that stands for all; None if nothing is known."""
        return self.observations[deciding(self.statuses).group] if self.statuses else None

    @property
    def state(self) -> GroupState | None:
        """State of the group as a whole: `FINISHED` if all its work is done, `RETIRED` while it is scaled to zero."""
        one = self.decides
        if one is None or one.state not in CONCLUDED:
            return None if one is None else one.state
        return GroupState.FINISHED if self.done else GroupState.RETIRED


class Watcher:
    """One observer of groups of one run, and what it remembers: the heartbeat number of each driver, and for how long every
    look has found the same one. Call `look`, or `judge` with what was read, about once per second.

    `groups` are names in the log, by default those of the whole run; `whole`: see `of_group`. With `supervises`, requests to
    scale are looked after, too. With `is_standby` it looks for the standby, to which others leave the group.
    `answers` are those of cluster managers, by default of this process. `end_old_drivers` is off only in tests of zombies.
    """

    def __init__(
        self,
        store: LogStore,
        run: Run,
        groups: Collection[str] | None = None,
        *,
        whole: str | None = None,
        supervises: bool = False,
        is_standby: bool = False,
        end_old_drivers: bool = True,
        answers: ManagerAnswers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._run = run
        self._drivers = {
            name: LeaseObserver(run.spec.lease) for name in (run.spec.groups if groups is None else groups)
        }
        self._on_clusters: dict[str, ClusterDriver] = {}
        self._answers = answers or shared_answers()
        self._whole = whole
        self._supervises = supervises and bool(run.spec.replicated)
        self._is_standby = is_standby
        self._end_old_drivers = end_old_drivers
        self._clock = clock

    @classmethod
    def of_group(cls, store: LogStore, run: Run, group: str, *, clock: Callable[[], float] = time.monotonic) -> Watcher:
        """Watches a group with all its drivers: its own, or those of its replicas (Section 7.1).

        A replicated group has ended only when every slot of it is done: replicas that are not in use come back when they are
        asked for. `group` may be one replica, which has ended when every slot of its group is done. If one driver cannot be
        seen, nothing is known of the group.
        """
        return cls(store, run, members_of(run, group), whole=replicated_group(group), clock=clock)

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self._drivers)

    def look(self) -> Look:
        """Look once; declares groups dead in the log that are (compare-and-set on the incarnation)."""
        asked_at = self._clock()  # what the answer says held then, however late it comes
        try:
            return self.judge(self._read(), asked_at)
        except LogUnavailable as error:
            return self.not_answered(str(error))

    def not_answered(self, why: str) -> Look:
        """The log could not be asked."""
        unknown = {name: self._unknown(name, why) for name in self._drivers}
        return Look({} if self._whole else unknown, unavailable=why)

    def judge(
        self, sight: RunSight, asked_at: float, slots: Mapping[tuple[int, str], SlotsSight] | None = None
    ) -> Look:
        """As `look`, for what was asked for at `asked_at` on this watcher's clock.

        `slots` is what was asked of groups that sleep, for several runs together (`scaling.look_after`). Raises
        `LogUnavailable` if nothing is known of the groups.
        """
        found = {status.group: status for status in sight.groups}
        seen: dict[str, Observation] = {}
        dead: dict[str, tuple[GroupStatus, Death]] = {}
        answers = self._answered(found.values())
        for name in self._drivers:
            try:
                status = found.get(name) or self._store.group(self._run.run_id, name)  # its error says what to do
                answer = answers.get(name, NO_ANSWER)
                cause = self._cause_of_death(status, answer, asked_at) if status.state in ALIVE else None
            except LogUnavailable as error:
                seen[name] = self._unknown(name, str(error))
                continue
            seen[name] = self._dead(status, "dead") if status.state is GroupState.DEAD else Observation(status)
            if cause is not None:
                dead[name] = status, cause
        seen |= self._declare(dead)
        unavailable = next((one.unavailable for one in seen.values() if one.unavailable), None)
        if self._whole is not None:
            return Look(unavailable=unavailable) if unavailable else Look(seen, done=self._is_done(seen, found))
        requests, refused = self._requests(sight, slots) if self._supervises else ((), None)
        return Look(seen, requests, unavailable or refused)

    def _read(self) -> RunSight:
        """As much as is needed, in one statement."""
        if self._supervises:
            for sight in self._store.sight([self._run.uid]):
                check_whole(sight.run)
                return sight
        if len(self._drivers) == 1 and self._whole not in self._run.spec.replicated:
            return RunSight(self._run, [self._store.group(self._run.run_id, *self._drivers)])
        return RunSight(self._run, self._store.groups(self._run.run_id))

    def _unknown(self, name: str, why: str) -> Observation:
        self._drivers[name].poll_failed()
        return Observation(None, unavailable=why)

    def _answered(self, statuses: Iterable[GroupStatus]) -> dict[str, Answer]:
        """Group → what the manager of its driver says, for drivers on clusters."""
        asked = {
            one.group: one.submissions[-1]  # as what it says itself that it was submitted, if it has registered
            for one in statuses
            if one.submission is not None and one.group in self._drivers and one.state in ALIVE
        }
        answers = self._answers.of(set(asked.values())) if asked else {}
        return {group: answers[submission] for group, submission in asked.items()}

    def _declare(self, dead: Mapping[str, tuple[GroupStatus, Death]]) -> dict[str, Observation]:
        """Name → what is known of a group after it was declared dead for a cause."""
        # A stopped writer shuts every other one out of such a log, this process included: all of them end first.
        locks_whole = self._store.ends_old_driver_first
        if locks_whole and self._end_old_drivers:
            for status, _ in dead.values():
                if status.identity is not None:
                    processes.end(status.identity)
        refused: str | None = None
        seen = {}
        for name, (status, cause) in dead.items():
            if refused is not None and locks_whole:
                seen[name] = self._unknown(name, refused)  # it would wait for the same lock, as long again
                continue
            try:
                seen[name] = self._declare_one(status, cause)
            except LogUnavailable as error:
                refused = str(error)
                seen[name] = self._unknown(name, refused)
        return seen

    def _declare_one(self, status: GroupStatus, death: Death) -> Observation:
        """What the look has read before it found the death may be old: the log may say by now how the driver has ended, or
        that it has registered after all."""
        ref = GroupRef(self._run.run_id, status.group, status.incarnation)
        unregistered = status.state in LAUNCHING
        self._store.declare_dead(ref, death.cause, was_taken=death.was_taken, unregistered=unregistered)
        status = self._store.group(self._run.run_id, status.group)
        return self._dead(status, death.cause) if status.state is GroupState.DEAD else Observation(status)

    def _dead(self, status: GroupStatus, cause: str) -> Observation:
        left = not self._is_standby and _has_standby(status)
        return Observation(status, None if left else status.error or cause, left_to_standby=left)

    def _cause_of_death(self, status: GroupStatus, answer: Answer, asked_at: float) -> Death | None:
        """None: it lives, as far as can be known. Raises `LogUnavailable` if the log takes no heartbeats: another group's
        driver may hold them up."""
        is_on_cluster = status.submission is not None
        # Nodes of a cluster may share a host name: their processes are compared with nothing here.
        if not is_on_cluster and status.identity is not None and processes.is_gone(status.identity):
            pid = status.identity.pid or status.identity.parent_pid
            return Death(f"the driver's process {pid} on {status.identity.host} has ended without saying so")
        launching = status.state in LAUNCHING
        verdict = self._before_it_registers(status, answer, asked_at) if launching and is_on_cluster else Judgement()
        # A driver that has just registered has a whole lease for its first heartbeat: launching counts separately.
        beat = -1 if launching else status.beat
        driver = self._drivers[status.group]
        stood_still = driver.observe(status.incarnation, beat, asked_at)
        if stood_still > _LATE_SECONDS and not launching:
            # Drivers cannot say that they live if the log takes no heartbeats; then nothing is known of any of them.
            self._check_heartbeats(status)
        if is_on_cluster and not launching:
            verdict = self._on_cluster(status).after_it_registered(status, answer, stood_still, self._clock())
        if verdict.exited is not None:
            return Death(verdict.exited, verdict.was_taken)
        if driver.is_expired(stood_still, launching=launching):
            what = (
                f"did not register within {stood_still:.0f} s"
                if launching
                else f"gave no heartbeat for {stood_still:.0f} s"
            )
            said = (
                f"; its cluster manager said: {saying(status.manager_said)}"
                if launching and status.manager_said is not None
                else ""
            )
            return Death(f"the driver of incarnation {status.incarnation} {what}{said}", verdict.was_taken)
        return None

    def _before_it_registers(self, status: GroupStatus, answer: Answer, asked_at: float) -> Judgement:
        """What its manager's answer means; noted in the log for others, and the deadline stands still if it says so."""
        verdict = self._on_cluster(status).before_it_registers(status, answer, self._clock())
        if verdict.says is not None:
            ref = GroupRef(self._run.run_id, status.group, status.incarnation)
            try:
                self._store.note_said(ref, verdict.says)
            except LogUnavailable as error:  # what was seen holds all the same
                log.debug("what the manager of group %s says is not noted: %s", status.group, error)
        if verdict.holds:
            self._drivers[status.group].hold(status.incarnation, asked_at)
        return verdict

    def _on_cluster(self, status: GroupStatus) -> ClusterDriver:
        return self._on_clusters.setdefault(status.group, ClusterDriver(self._run.spec.lease))

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

    def _is_done(self, seen: Mapping[str, Observation], found: Mapping[str, GroupStatus]) -> bool:
        """Whether the group as a whole has no work left, if its drivers have ended. Raises `LogUnavailable`."""
        whole = self._whole or ""
        shape = self._run.spec.replicated.get(whole)
        if shape is None or any(one.state not in CONCLUDED for one in seen.values()):
            return True
        states = {found[name].state for name in shape.replicas}
        if GroupState.FINISHED not in states and not states <= CONCLUDED:
            return False  # others are at work: nothing needs to be asked
        return all(slot.done for slot in self._store.slots(self._run.run_id, whole))

    def _requests(
        self, sight: RunSight, slots: Mapping[tuple[int, str], SlotsSight] | None
    ) -> tuple[Sequence[ScalingRequest], str | None]:
        """Requests to scale; or why they are not known, which changes nothing about what was seen of the drivers."""
        try:
            return look_after(self._store, sight, slots=slots), None
        except (ProtocolViolation, UnknownRun) as error:
            log.info("run %s has ended since it was looked at: %s", sight.run.uid[:8], error)
            return (), None
        except LogUnavailable as error:
            log.warning("run %s: scaling waits: %s", sight.run.uid[:8], error)
            return (), str(error)


def _has_standby(status: GroupStatus) -> bool:
    """Whether its driver had a standby that was ready, died just now, and did not vanish with the whole machine before.

    By the log's clock alone: the observer may be a process that has seen nothing before. A driver that has said itself that
    it fails may still give heartbeats.
    """
    standby = None if status.load is None else status.load.standby
    if standby is None or not standby.is_ready or status.beat_at is None or status.beat_age_seconds is None:
        return False
    now = status.beat_at + status.beat_age_seconds
    return max(status.beat_age_seconds, now - status.since) < STANDBY_SECONDS
