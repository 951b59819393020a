"""A run supervised from one process of this machine: `logio run`, tests and benches. It prints nothing.

The loop launches what is new, relaunches what is dead, and ends when every group has ended. Then, and whenever it is
stopped or fails, it leaves no driver process behind, but for what `logio retry` in another terminal has launched since.

The log says whether a run has finished: a group that has finished is reopened by a retry of its quarantined Input Sets, in
one transaction that `finish_run` comes before or after. If the finish is refused, the loop continues. What was reopened
and not launched (the retry may have died there) is launched here; if the retry launches it, too, one of the two claims
fails.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_logio.errors import Fenced, LogioError, LogUnavailable, ManagerUnavailable, NoPlace, ProtocolViolation
from airflow_logio.launch import cluster_launch, driver_folders, processes
from airflow_logio.launch.driver_folders import incarnation_of, is_of_standby
from airflow_logio.launch.driver_process import ForkServer, fork_server, is_forked
from airflow_logio.launch.launcher import KnownLaunches, LaunchContext, LocalProcessLauncher, launch_group
from airflow_logio.launch.processes import this_host
from airflow_logio.launch.spark_settings import is_on_cluster
from airflow_logio.protocol.states import CONCLUDED, ENDED, LAUNCHING, GroupState
from airflow_logio.status.run_summary import Outcome, RunSummary, summarize
from airflow_logio.status.snapshot import Observer, Snapshot
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from airflow_logio.supervision.clusters.manager_answers import shared_answers
from airflow_logio.supervision.halt import end_process
from airflow_logio.supervision.look import Observation, Watcher
from airflow_logio.supervision.retry import check_days
from airflow_logio.supervision.scaling import Stage, carry_out
from airflow_logio.supervision.tend import tend
from airflow_logio.supervision.tidying import clear_up
from airflow_logio.systems.payload_roots import payload_root

log = logging.getLogger(__name__)

_SILENT_SECONDS = 30.0
_MANAGER_SECONDS = 5.0
"""Before a launch is tried again whose cluster manager does not answer."""
_LAUNCHED_SOON = (GroupState.NEW, GroupState.DEAD)
_NOTE_SECONDS = 3.0
"""How often the log is told that this process supervises the run."""
_PLACE_SECONDS = 1.0
"""Between two questions for a place, while other runs of the pipeline have them all."""
_END_SECONDS = 0.1
"""Between two looks while drivers are ended."""

OnSnapshot = Callable[[Snapshot], None]


class LocalRun:
    """Supervises groups of a run until they have ended; all groups unless some are named.

    `poll` is the seconds between two looks, `halt_grace` how long a driver may take to halt before it is killed.
    """

    def __init__(
        self,
        context: LaunchContext,
        groups: Sequence[str] | None = None,
        poll: float = 0.25,
        *,
        snapshot_every: float = 0.5,
        halt_grace: float = 15.0,
    ) -> None:
        launcher = context.launcher
        work_dir = launcher.work_dir if isinstance(launcher, LocalProcessLauncher) else None
        self._forks: ForkServer | None = None
        self._context = replace(context, known=KnownLaunches())
        self._groups = tuple(groups or context.pipeline.applications)
        self._poll = poll
        self._snapshot_every = snapshot_every
        self._run_id = context.run.run_id
        self._observer = Observer(context.store, context.run)
        self._watcher = Watcher(context.store, context.run, self._groups, supervises=True)
        self._ender = DriverEnder(context.store, context.run, self._groups, work_dir, halt_grace)
        self._met: set[str] = set()
        """Groups that need no launch for having been halted before this run: they were seen otherwise, or launched. One that
        was asked to halt before, and has not done so yet, is none of them: who asked may be gone."""
        self._finished: dict[str, int] = {}
        """Group → incarnation that was seen finished: halted under the same one, it was reopened."""
        self._peak: dict[str, int] = {}
        self._halts = 0
        self._said_unavailable = float("-inf")
        self._said_no_place = float("-inf")
        self._no_place_at = float("-inf")
        self._said_no_manager = self._no_manager_at = float("-inf")
        self._left = (
            LeftDrivers(context.store, context.managers, [context.run.run_id])
            if is_on_cluster(context.settings)
            else None
        )
        self._note_as = None if groups else _name_of(context.run)
        """Its name as the supervisor of the run; None if it supervises only some groups."""
        self._noted_at = float("-inf")

    def halt(self) -> None:
        """End the run: the first call asks the drivers to halt, the second kills them. Safe in a signal handler."""
        self._halts += 1

    def run(self, on_snapshot: OnSnapshot = lambda _: None) -> RunSummary:
        """Blocks until all groups have finished, one is parked, or `halt` was called; then no driver is left.

        Groups that were halted before are launched again. Raises what a launch raises (`ConfigurationError`),
        and `WriteRefused` if a younger run has claimed what they are to replace (`check_days`).
        """
        began = time.monotonic()
        store, run = self._context.store, self._context.run
        self._check_resumed()
        try:
            self._begin_to_fork()
            outcome = self._supervise(on_snapshot)
        except BaseException:
            self._forget()
            self._ender.end(lambda: False)
            raise
        self._forget()
        self._ender.end(lambda: self._halts < 2)
        if outcome is Outcome.FINISHED:
            clear_up(payload_root(self._context.log_url, self._context.payloads), store, run)
            if store.patience.call("looking for quarantine", lambda: store.quarantined(run.run_id)):
                outcome = Outcome.QUARANTINED
        self._show(on_snapshot)
        seconds = time.monotonic() - began
        return store.patience.call(
            "summing up", lambda: summarize(store, run, self._context.pipeline, outcome, seconds, self._peak)
        )

    def _check_resumed(self) -> None:
        store = self._context.store
        statuses = store.patience.call("looking for halted groups", lambda: store.groups(self._run_id))
        halted = [one.group for one in statuses if one.group in self._groups and one.state is GroupState.HALTED]
        if halted:
            check_days(self._context, halted)

    def _begin_to_fork(self) -> None:
        context, launcher = self._context, self._context.launcher
        if isinstance(launcher, LocalProcessLauncher):
            self._forks = fork_server(context.settings, context.pipeline, self._groups)
            self._context = replace(context, launcher=replace(launcher, forks=self._forks))

    def _why_again(self, status: GroupStatus) -> str | None:
        """Why a halted group is launched, or None if it stays halted."""
        if status.state is not GroupState.HALTED:
            return None
        if status.group not in self._met:
            return "resumed"
        return "reopened" if self._finished.get(status.group) == status.incarnation else None

    def _launch_again(self, status: GroupStatus, reason: str) -> None:
        """Launch a group that only a person restarts. If another process was faster, its driver is watched like ours."""
        self._ender.forget(status.group)
        try:
            launch_group(self._context, status.group, expected=status.incarnation, reason=reason, by_user=True)
        except Fenced as error:
            log.info("group %s was launched by another process: %s", status.group, error)

    def _supervise(self, on_snapshot: OnSnapshot) -> Outcome:
        shown = float("-inf")
        while not self._halts:
            self._note()
            if self._left is not None:
                self._left.begin()
            look = self._watcher.look()
            states = [self._tend(name, seen) for name, seen in look.observations.items()]
            if GroupState.PARKED in states:
                return Outcome.PARKED
            launching = self._scale(look.requests)
            if not launching and all(state in ENDED for state in states):
                if not CONCLUDED.issuperset(states):
                    return Outcome.HALTED
                if self._is_finished():
                    return Outcome.FINISHED
            if time.monotonic() - shown >= self._snapshot_every:
                shown = time.monotonic()
                self._show(on_snapshot)
            time.sleep(self._poll)
        return Outcome.HALTED

    def _note(self) -> None:
        """Tell the log that the run is supervised, for displays. If the log cannot be told, supervision continues."""
        if self._note_as is None or time.monotonic() - self._noted_at < _NOTE_SECONDS:
            return
        self._noted_at = time.monotonic()
        try:
            self._context.store.note_supervisor(self._note_as, run_uid=self._context.run.uid)
        except LogUnavailable as error:
            log.debug("the look is not noted: %s", error)

    def _forget(self) -> None:
        """Nothing is launched any more: a process that retries a group now must supervise it."""
        if self._forks is not None:
            self._forks.close()
        try:
            if self._note_as is not None:
                self._context.store.forget_supervisor(self._note_as)
        except LogUnavailable as error:
            log.debug("the end of the supervision is not noted: %s", error)

    def _scale(self, requests: Sequence[ScalingRequest]) -> bool:
        """Carry out what was asked for, here or elsewhere: another process that does the same does no harm.

        True if replicas are on their way. The last look has remembered them as they were before: drivers of theirs are
        ended with the others from now on, also if there is no further look.
        """
        launching = False
        try:
            for request in requests if not self._halts else ():
                for replica in self._context.run.spec.replicated[request.group].replicas:
                    self._ender.forget(replica)
                step = carry_out(self._context, request)
                launching |= step.stage is Stage.LAUNCHING
                log.log(logging.WARNING if step.stage is Stage.REFUSED else logging.INFO, "%s", step.sentence)
        except (LogUnavailable, ManagerUnavailable, ProtocolViolation) as error:
            log.warning("scaling waits: %s", error)
        return launching

    def _is_finished(self) -> bool:
        """Whether nothing is left to supervise: the log has finished the run, or only groups of other supervisors keep
        running."""
        store = self._context.store
        if store.patience.call("finishing the run", lambda: store.finish_run(self._run_id)):
            return True
        statuses = store.patience.call("looking for groups that still run", lambda: store.groups(self._run_id))
        unfinished = {status.group for status in statuses if status.state not in CONCLUDED}
        return bool(unfinished) and unfinished.isdisjoint(self._groups)

    def _tend(self, name: str, observation: Observation) -> GroupState | None:
        """The state of a group after what it needed was done, or None if it is unknown or about to change.

        Without the log there is no claim, so no launch: the next look tries again.
        """
        if self._halts:
            return None
        try:
            return self._launch_if_needed(name, observation)
        except LogUnavailable as error:
            self._say_unavailable(str(error))
            return None
        except ManagerUnavailable as error:
            self._no_manager_at = time.monotonic()
            if self._no_manager_at - self._said_no_manager >= _SILENT_SECONDS:
                self._said_no_manager = self._no_manager_at
                log.warning("nothing is launched: %s; it is tried again", error)
            return None
        except NoPlace as error:
            self._no_place_at = time.monotonic()
            if self._no_place_at - self._said_no_place >= _SILENT_SECONDS:
                self._said_no_place = self._no_place_at
                log.warning("%s; it begins as soon as there is one", error)
            return None

    def _launch_if_needed(self, name: str, observation: Observation) -> GroupState | None:
        status = observation.status
        if status is not None and status.state is GroupState.NEW and (self._is_forked_soon(name) or self._waits()):
            return None
        is_early = time.monotonic() - self._no_manager_at < _MANAGER_SECONDS
        if is_early and status is not None and status.state in _LAUNCHED_SOON:
            return None
        tend(self._context, name, observation)
        if status is None:
            self._say_unavailable(observation.unavailable)
            return None
        reason = self._why_again(status)
        if reason is not None:
            self._launch_again(status, reason)
        if reason is not None or status.desired is not GroupState.HALTED:
            self._met.add(name)
        if reason is not None:
            return None
        if status.state in CONCLUDED:
            self._finished[name] = status.incarnation
        self._ender.remember(status)
        return status.state

    def _waits(self) -> bool:
        return time.monotonic() - self._no_place_at < _PLACE_SECONDS

    def _is_forked_soon(self, name: str) -> bool:
        """Its first driver waits for what is imported now, instead of importing it beside that. Those with a JVM begin."""
        warming = self._forks is not None and self._forks.is_warming()
        return warming and is_forked(self._context.settings, self._context.pipeline, name)

    def _say_unavailable(self, why: str | None) -> None:
        """Seldom: every look at every group meets it."""
        if time.monotonic() - self._said_unavailable >= _SILENT_SECONDS:
            self._said_unavailable = time.monotonic()
            log.warning("the log is unavailable, so the state of the groups is unknown; drivers keep trying: %s", why)

    def _show(self, on_snapshot: OnSnapshot) -> None:
        try:
            snapshot = self._observer.take()
        except LogUnavailable as error:
            log.warning("no progress to be seen: %s", error)
            return
        for view in snapshot.groups:
            self._peak[view.name] = max(self._peak.get(view.name, 0), view.status.rss_bytes)
        on_snapshot(snapshot)


def _name_of(run: Run) -> str:
    """One name each for the supervisors that a process has for a range of partitions."""
    partition = "" if run.partition is None else f", for {run.partition}"
    return f"process {os.getpid()} on {this_host()}{partition}"


@dataclass(slots=True)
class DriverEnder:
    """Ends the drivers of a run: they are asked to halt, and killed if they do not.

    Behind an end that was seen, or a halt that was asked for, only a person raises a group's incarnation (`logio retry` in
    another terminal). Such a driver is not ours to end. `work_dir` is the launcher's: drivers are found in it that were
    started and never recorded.

    While the log does not answer, it uses the identities that it last knew (`remember`).
    """

    store: LogStore
    run: Run
    groups: Sequence[str]
    work_dir: Path | None = None
    grace_seconds: float = 15.0
    _known: dict[str, GroupStatus] = field(default_factory=dict)
    _last: dict[str, int] = field(default_factory=dict)
    """Group → the last incarnation that is ours to end, where there is one."""

    def remember(self, status: GroupStatus) -> None:
        self._known[status.group] = status
        if status.state in ENDED:
            self._last[status.group] = status.incarnation
        else:
            self.forget(status.group)

    def forget(self, group: str) -> None:
        """The group is about to be launched again: whatever the outcome, the new driver is ours."""
        self._last.pop(group, None)

    def end(self, patient: Callable[[], bool] = lambda: True) -> None:
        """Returns when no driver process of ours is left here. Kills at once when `patient` returns False."""
        deadline = time.monotonic() + self.grace_seconds
        asked = False
        while patient() and time.monotonic() < deadline:
            asked = asked or self._ask_to_halt()
            if asked and self._have_all_ended():
                break
            time.sleep(_END_SECONDS)
        folders = self._folders()
        driver_folders.end_under(*filter(is_of_standby, folders))  # first: they would take the places of the others
        for status in self._statuses():
            end_process(status)
            self._note_halted(status)
        folders = self._folders()
        for folder in folders:
            driver_folders.discard_secrets(folder)
        driver_folders.end_under(*folders)

    def _folders(self) -> list[Path]:
        """Folders of our drivers, including drivers that the log may not know."""
        if self.work_dir is None:
            return []
        found = []
        for name in self.groups:
            folder, last = self.work_dir / self.run.uid / name, self._last.get(name)
            for one in folder.iterdir() if folder.is_dir() else ():
                number = incarnation_of(one)
                # A standby that is not a driver yet is that of the incarnation before it.
                if number is not None and (last is None or number <= last + is_of_standby(one)):
                    found.append(one)
        return found

    def _is_ours(self, status: GroupStatus) -> bool:
        return status.incarnation <= self._last.get(status.group, status.incarnation)

    def _ask_to_halt(self) -> bool:
        try:
            for status in self.store.groups(self.run.run_id):
                if status.group in self.groups and status.state not in ENDED and self._is_ours(status):
                    self.store.request(self.run.run_id, status.group, GroupState.HALTED)
            for status in self.store.groups(self.run.run_id):  # as it was asked: a recovery in between halts, too
                self._last.setdefault(status.group, status.incarnation)
        except LogioError as error:
            log.warning("the drivers cannot be asked to halt: %s", error)
            return False
        return True

    def _have_all_ended(self) -> bool:
        """A driver that has not registered has done nothing yet: it is killed, not waited for. Of one on a cluster, the log
        says whether it has obeyed."""
        registered = [status for status in self._statuses() if status.state not in LAUNCHING and status.identity]
        return not any(
            status.state not in ENDED if status.submission is not None else processes.driver_processes(status.identity)
            for status in registered
            if status.identity
        )

    def _statuses(self) -> list[GroupStatus]:
        """As the log says, or as it last said if it cannot be asked."""
        try:
            self._known |= {status.group: status for status in self.store.groups(self.run.run_id)}
        except LogioError as error:
            log.debug("the log does not answer: %s", error)
        known = [self._known[name] for name in self.groups if name in self._known]
        return [status for status in known if self._is_ours(status)]

    def _note_halted(self, status: GroupStatus) -> None:
        if status.state in ENDED:
            return
        try:
            self.store.halted(GroupRef(self.run.run_id, status.group, status.incarnation))
        except LogioError as error:
            log.warning("group %s: its end cannot be logged: %s", status.group, error)
        else:
            if status.submission is not None:
                cluster_launch.end(shared_answers().managers, status.submissions)
