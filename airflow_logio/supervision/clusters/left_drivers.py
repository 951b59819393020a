"""Drivers that are of no use any more and may still have room on a cluster: asked to end until their manager confirms it.

The fence keeps them from committing; but a replaced driver that runs on takes cores, and its successor may wait for them.
Any number of processes may ask at a time, and any may die: the end is asked for by the manager's own name of the driver, and
is noted when it is confirmed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from airflow_logio.errors import LogioError, LogUnavailable, ManagerUnavailable
from airflow_logio.launch.managers.cluster_manager import SUBMIT_SECONDS, DriverSight, Sighting
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import LeftDriver, Submission
from airflow_logio.supervision.clusters.manager_answers import started

log = logging.getLogger(__name__)

PACE_SECONDS = 10.0
"""Between two questions of one process."""
GRACE_SECONDS = 60.0
"""For so long after its group has ended a driver may end by itself: it may still serve what others are about to fetch."""
FORGOTTEN_SECONDS = 30 * 24 * 3600.0
"""So long after its group has ended a driver is not asked for any more."""


class LeftDrivers:
    """One process's care for the drivers that are left, of all runs or of some. `begin` may be called often."""

    def __init__(
        self,
        store: LogStore,
        managers: Managers,
        run_ids: Collection[int] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._managers = managers
        self._run_ids = run_ids
        self._clock = clock
        self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Ask for the ends of drivers that are left, unless that was done within `PACE_SECONDS`: in a thread that ends with
        the answers. Waits for nothing, and never raises."""
        now = self._clock()
        if now - self._asked_at < PACE_SECONDS or (self._thread is not None and self._thread.is_alive()):
            return
        self._asked_at = now
        otherwise = "drivers that are left on clusters are not asked to end for now"
        self._thread = started(self._ask, "logio left drivers", otherwise)

    def _ask(self) -> None:
        try:
            self.look_after()
        except LogioError as error:  # that the log is unavailable is said by others
            log.debug("drivers that are left on clusters are not asked to end: %s", error)

    def look_after(self) -> list[LeftDriver]:
        """Ask for the ends of all drivers that are left; returns those whose end is not confirmed. Raises `LogUnavailable`.

        A manager that does not answer for one driver is not asked for the others of this round.
        """
        silent = set[tuple[str, str]]()
        return [one for one in self._store.left_on_clusters(self._run_ids) if not self._ended(one, silent)]

    def _ended(self, left: LeftDriver, silent: set[tuple[str, str]]) -> bool:
        if left.ended_seconds > FORGOTTEN_SECONDS:  # its cluster may be no more
            log.warning("group %s, incarnation %d: its end was never confirmed", left.ref.group, left.ref.incarnation)
            self._store.note_gone(left.ref)
            return True
        managers = {(one.manager, one.address) for one in left.submissions}
        if managers & silent:
            return False
        try:
            return self._is_confirmed(left)
        except LogUnavailable:
            raise
        except ManagerUnavailable as error:
            silent |= managers
            log.info("group %s, incarnation %d: its end is not known: %s", left.ref.group, left.ref.incarnation, error)
        except Exception:  # of a manager's client: it must not keep the others from being asked for
            log.exception("group %s, incarnation %d: its end is not known", left.ref.group, left.ref.incarnation)
        return False

    def _is_confirmed(self, left: LeftDriver) -> bool:
        submissions = tuple(self._with_id(left, one) for one in left.submissions)
        seen = [self._sight(one) for one in submissions]
        if any(one.was_taken for one in seen):
            self._store.note_taken(left.ref)
        if not left.is_replaced and left.ended_seconds < GRACE_SECONDS:
            has_ended = all(one.state is DriverSight.EXITED for one in seen)
        else:
            has_ended = all([self._managers.at(one).end(one) for one in submissions])
        if not has_ended or not _is_complete(left, submissions):
            return False  # of one without an id: it may still be on its way
        log.info("group %s, incarnation %d: its driver has left the cluster", left.ref.group, left.ref.incarnation)
        self._store.note_gone(left.ref)
        return True

    def _with_id(self, left: LeftDriver, submission: Submission) -> Submission:
        """As its manager lists it, should its id not be known: then its launcher has died, or has had no answer."""
        found = () if submission.id else self._managers.at(submission).find(submission)
        if not found:
            return submission
        self._store.note_id(left.ref, found[0])
        return found[0]

    def _sight(self, submission: Submission) -> Sighting:
        return self._managers.at(submission).look([submission]).get(submission, Sighting(DriverSight.UNKNOWN))


def _is_complete(left: LeftDriver, submissions: Collection[Submission]) -> bool:
    """Whether nothing else can have been submitted for the claim, or still be on its way."""
    return all(one.id for one in submissions) or left.claimed_seconds > 2 * SUBMIT_SECONDS
