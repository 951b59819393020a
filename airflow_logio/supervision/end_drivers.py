"""Ending drivers of this machine: those of a run that ends (`DriverEnder`), and those that are void (`VoidDriverEnder`)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from airflow_logio.errors import LogioError
from airflow_logio.launch import driver_folders, processes
from airflow_logio.launch.driver_folders import LocalDriver, incarnation_of, is_of_standby, local_drivers
from airflow_logio.protocol.states import ENDED, LAUNCHING, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import LINGER_SECONDS
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.halt import end_process

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1


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
            if asked and self._nobody_to_wait_for():
                break
            time.sleep(POLL_SECONDS)
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

    def _nobody_to_wait_for(self) -> bool:
        """A driver that has not registered has done nothing yet: it is killed, not waited for."""
        registered = [status for status in self._statuses() if status.state not in LAUNCHING and status.identity]
        return not any(processes.driver_processes(status.identity) for status in registered if status.identity)

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
