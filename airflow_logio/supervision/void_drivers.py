"""Ending drivers of this machine whose incarnation is void: replaced, or of a group that has ended.

Such a driver commits nothing any more, and usually ends by itself with its next heartbeat. One that is stopped or hung
does not: it holds memory, cores and connections. An incarnation that is void stays void, so that what is read from the log
after the process was seen cannot be out of date.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import psutil

from airflow_logio.launch.leftovers import LocalDriver, local_drivers
from airflow_logio.protocol.states import ENDED, GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.unfenced_port import LINGER_SECONDS
from airflow_logio.store.records.status_records import GroupStatus

log = logging.getLogger(__name__)

GRACE_SECONDS = 30.0
"""How long a driver whose incarnation is void may take to end by itself."""


class VoidDriverEnder:
    """Call `look` every few seconds."""

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
