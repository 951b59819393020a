"""Supervising the runs of a log from a process that needs no Airflow: what `logio tend` does.

It finds what the recovery DAG finds, by the same look. It loads no author's code: for each run that needs something, a
process of its own is started that takes one round (`tend_once`) and ends. So a daemon that lives for months always uses
the code that is installed, and no pipeline can break it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import psutil

from airflow_logio.errors import (
    ConfigurationError,
    IncompatibleRun,
    LogInconsistent,
    LogioError,
    LogUnavailable,
    ManagerUnavailable,
    PipelineDefinitionError,
)
from airflow_logio.launch.driver_folders import LocalDriver, local_drivers
from airflow_logio.launch.launcher import LaunchContext
from airflow_logio.protocol.states import ENDED, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import LINGER_SECONDS
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from airflow_logio.supervision.clusters.manager_answers import shared_answers
from airflow_logio.supervision.findings import DueScaling, FailedGroup, FailureFinder, Findings
from airflow_logio.supervision.overdue import overdue
from airflow_logio.supervision.scaling import Stage, carry_out
from airflow_logio.supervision.tend import RecoveryOutcome, recover_group

log = logging.getLogger(__name__)

NOTE_SECONDS = 5.0
OLD_SECONDS = 60.0
"""How often it asks whether runs are to be removed: a read of a small table."""
LATE_SECONDS = 60.0
AGAIN_SECONDS = 30.0
"""After a round that has failed, the run is left alone for so long."""

ContextOf = Callable[[Run, str], LaunchContext]
"""How a group of a run is launched from here. Raises `ConfigurationError`, `IncompatibleRun`."""


class Round:
    """A process that takes one round of a run (`tend_once`)."""

    def ended(self) -> bool | None:
        """Whether it has done its work; None while it runs."""
        raise NotImplementedError


class RunTender:
    """One supervisor of all runs of a log, or of one. `begin` starts a round of the run with that uid, `old` removes what
    is old (`keeping.remove_old`).

    While its last round of a run has failed, it does not tell the log that it supervises: then another process that could
    recover the run does so (`presence.missing`).
    """

    def __init__(
        self,
        store: LogStore,
        name: str,
        begin: Callable[[str], Round],
        *,
        run_uid: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        void: VoidDriverEnder | None = None,
        old: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self._old = OldRuns(old) if old is not None else None
        self._late = LatePartitions(store, clock=clock)
        self._store = store
        self._name = name
        self._begin = begin
        self._run_uid = run_uid
        self._clock = clock
        self._finder = FailureFinder(store, run_uid=run_uid, clock=clock)
        self._void = void or VoidDriverEnder(store)
        self._left = LeftDrivers(store, shared_answers().managers, clock=clock)
        self._rounds: dict[str, Round] = {}
        self._failed: dict[str, float] = {}
        """uid → when a round of the run has failed, and none succeeded since."""
        self._noted_at = float("-inf")

    def look(self) -> Findings:
        """Look once, begin rounds where something is to be done, and end drivers that are void. Waits for nothing."""
        findings = self._finder.look()
        self._collect()
        wanted = {one.run_uid: one for one in findings.work}
        if findings.failed is not None:
            self._failed = {uid: at for uid, at in self._failed.items() if uid in wanted}
        for uid, one in wanted.items():
            if uid not in self._rounds and self._clock() - self._failed.get(uid, float("-inf")) >= AGAIN_SECONDS:
                log.warning("%s: %s", one, one.cause if isinstance(one, FailedGroup) else "its next step can be taken")
                self._rounds[uid] = self._begin(uid)
        beside = () if self._old is None else (self._old.look, self._late.look)
        for task in (self._note, self._void.look, self._left.begin, *beside):
            try:
                task()
            except LogUnavailable as error:  # one of them may be refused alone
                log.debug("the log does not answer: %s", error)
        return findings

    def tend(self, stop: threading.Event, poll_seconds: float) -> None:
        """Look again and again, and at once when a failure is announced, until `stop` is set."""
        rung = threading.Event()
        hearing = self._store.listen(rung.set)
        silent = False
        try:
            while not stop.is_set():
                is_silent = self.look().failed is None
                if is_silent and not silent:
                    log.warning("the log cannot be reached, so the state of the groups is unknown; retrying")
                silent = is_silent
                deadline = time.monotonic() + poll_seconds
                while not stop.is_set() and not rung.is_set() and time.monotonic() < deadline:
                    rung.wait(min(0.2, poll_seconds))
                rung.clear()
        finally:
            if hearing is not None:
                hearing.close()

    def _collect(self) -> None:
        for uid, one in list(self._rounds.items()):
            done = one.ended()
            if done is None:
                continue
            del self._rounds[uid]
            if done:
                self._failed.pop(uid, None)
            else:
                self._failed[uid] = self._clock()
                log.warning("run %s: nothing could be done for it from here; again in %.0f s", uid[:8], AGAIN_SECONDS)

    def _note(self) -> None:
        if not self._failed and self._clock() - self._noted_at >= NOTE_SECONDS:
            self._noted_at = self._clock()
            self._store.note_supervisor(self._name, run_uid=self._run_uid)


def tend_once(store: LogStore, run: Run, context_of: ContextOf) -> int:
    """One round of a run: recover what is dead, take the next step of what is to be scaled. Returns how much was done.

    Raises `LogUnavailable`, and in the end what is wrong with a group's settings or code: such groups stay as they are, for
    others, and hold up none of the rest.
    """
    findings = FailureFinder(store, run_uid=run.uid).look()
    if findings.failed is None:
        raise LogUnavailable("the log does not answer")
    done, refused = 0, list[LogioError]()
    for one in findings.work:
        try:
            done += _done(context_of(run, one.group), one)
        except (ConfigurationError, ManagerUnavailable, PipelineDefinitionError, IncompatibleRun) as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return done


def _done(context: LaunchContext, one: FailedGroup | DueScaling) -> bool:
    if isinstance(one, DueScaling):
        return _scale(context, one)
    recovery = recover_group(context, one.group, failed=one.incarnation, cause=one.cause)
    return recovery.outcome is not RecoveryOutcome.NOT_NEEDED


def _scale(context: LaunchContext, due: DueScaling) -> bool:
    found = context.store.scalings(context.run.run_id, due.group)
    request = next((one for one in found if one.request_id == due.request_id), None)
    if request is None:
        return False
    step = carry_out(context, request)
    log.log(logging.WARNING if step.stage is Stage.REFUSED else logging.INFO, "%s: %s", due, step.sentence)
    return True


class OldRuns:
    """Removes old runs beside the supervision, in a thread of its own: a recovery never waits for it."""

    def __init__(self, remove: Callable[[], Sequence[str]], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._remove = remove
        self._clock = clock
        self._looked_at = float("-inf")
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is being removed."""
        return self._thread is None or not self._thread.is_alive()

    def look(self) -> None:
        """Begin to remove, if the last time is over and some while ago. Waits for nothing."""
        if self.is_over and self._clock() - self._looked_at >= OLD_SECONDS:
            self._looked_at = self._clock()
            self._thread = threading.Thread(target=self._work, name="logio-old-runs", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        for said in self._remove():
            log.warning("%s", said)


class LatePartitions:
    """Says which partitions are late (`overdue`), each once."""

    def __init__(self, store: LogStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._looked_at = float("-inf")
        self._said = set[tuple[str, str]]()

    def look(self) -> None:
        """Look, if the last time is some while ago. Raises `LogUnavailable`."""
        if self._clock() - self._looked_at < LATE_SECONDS:
            return
        self._looked_at = self._clock()
        try:
            late = overdue(self._store)
        except (
            ConfigurationError,
            LogInconsistent,
        ) as error:  # what a later version has written, or a zone not known here
            log.warning("which days are late is not known: %s", error)
            return
        for one in late:
            if (one.pipeline, one.partition) not in self._said:
                log.error("%s", one)
        self._said = {(one.pipeline, one.partition) for one in late}


GRACE_SECONDS = 30.0
"""How long a driver whose incarnation is void may take to end by itself."""


class VoidDriverEnder:
    """Ends drivers whose incarnation was replaced, or whose group has ended. Call `look` every few seconds.

    Such a driver commits nothing any more, and usually ends by itself with its next heartbeat. One that is stopped or hung
    does not: it holds memory, cores and connections. An incarnation that is void stays void, so what is read from the log
    after the process was seen cannot be out of date.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        grace_seconds: float = GRACE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        drivers: Callable[[], list[LocalDriver]] = local_drivers,
    ) -> None:
        self._store = store
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._drivers = drivers
        self._since: dict[psutil.Process, float] = {}
        """Driver process → when it was first seen to be void."""

    def look(self) -> list[LocalDriver]:
        """SIGKILL drivers that are void for longer than the grace; returns them. Raises `LogUnavailable`."""
        now = self._clock()
        void = self._void(self._drivers())
        self._since = {one.process: self._since.get(one.process, now) for one in void}
        late = [one for one, more in void.items() if now - self._since[one.process] >= self._grace_seconds + more]
        for one in late:
            log.warning(
                "ending driver process %d of group %s, run %s: incarnation %d is void",
                one.process.pid, one.group, one.run_uid[:8], one.incarnation,
            )  # fmt: skip
            try:
                one.process.kill()
            except psutil.NoSuchProcess:
                continue
        return late

    def _void(self, drivers: list[LocalDriver]) -> dict[LocalDriver, float]:
        """Drivers of runs that this log has, and of incarnations that are over; with what they may take beyond the grace."""
        uids = {one.run_uid for one in drivers}
        sights = self._store.sight(sorted(uids)) if uids else ()
        statuses = {(sight.run.uid, status.group): status for sight in sights for status in sight.groups}
        found = {}
        for one in drivers:
            status = statuses.get((one.run_uid, one.group))
            if status is not None and _is_void(one, status):
                found[one] = LINGER_SECONDS if _may_linger(one, status) else 0.0
        return found


def _may_linger(driver: LocalDriver, status: GroupStatus) -> bool:
    """It has finished, and may stay for receivers that ask it for what it has made (ADR-107)."""
    return status.state is GroupState.FINISHED and driver.incarnation == status.incarnation


def _is_void(driver: LocalDriver, status: GroupStatus) -> bool:
    if driver.is_of_standby:
        own = status.identity
        is_driver = own is not None and driver.process.pid in (own.pid, own.parent_pid)
        return status.state in ENDED or (driver.incarnation <= status.incarnation and not is_driver)
    return driver.incarnation < status.incarnation or (
        driver.incarnation == status.incarnation and status.state in ENDED
    )
