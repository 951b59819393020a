"""What cluster managers say of drivers, asked beside the looks: a manager that is slow holds up no lease.

A look takes the newest answer that there is, and says for which drivers it wants the next one. All that are wanted at a time
are asked for together, in a thread that ends with the answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from airflow_logio.errors import ManagerUnavailable
from airflow_logio.launch.managers.cluster_manager import ClusterManager, DriverSight, Sighting
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.store.records.driver_records import Submission

log = logging.getLogger(__name__)

PACE_SECONDS = 2.0
"""Between two questions to the managers."""
WANTED_SECONDS = 30.0
"""For so long after a look has wanted it, what a manager says of a driver is asked for, and kept."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a manager has said of one driver. `asked_at` is in monotonic seconds of this process, before the question."""

    sighting: Sighting
    asked_at: float


NO_ANSWER = Answer(Sighting(DriverSight.UNKNOWN, "its manager has not been asked yet"), 0.0)


class ManagerAnswers:
    """The newest answers of all managers that drivers were submitted to. For use by several threads."""

    def __init__(self, managers: Managers | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.managers = managers or Managers()
        self._clock = clock
        self._lock = threading.Lock()
        self._wanted: dict[Submission, float] = {}
        self._answers: dict[Submission, Answer] = {}
        self._asked_at = float("-inf")
        self._asking: threading.Thread | None = None

    def of(self, submissions: Collection[Submission]) -> Mapping[Submission, Answer]:
        """The newest answer for each. Waits for nothing; what is not known yet is `NO_ANSWER`."""
        if not submissions:
            return {}
        with self._lock:
            now = self._clock()
            self._wanted |= dict.fromkeys(submissions, now)
            if self._asking is None and now - self._asked_at >= PACE_SECONDS:
                self._asked_at = now
                self._asking = threading.Thread(target=self._ask, name="logio managers", daemon=True)
                self._asking.start()
            return {one: self._answers.get(one, NO_ANSWER) for one in submissions}

    def wait(self, seconds: float) -> None:
        """Wait for the answers that are on their way; at most so long."""
        with self._lock:
            asking = self._asking
        if asking is not None:
            asking.join(seconds)

    def _ask(self) -> None:
        try:
            with self._lock:
                oldest = self._clock() - WANTED_SECONDS
                self._wanted = {one: at for one, at in self._wanted.items() if at >= oldest}
                wanted = list(self._wanted)
            found = self._answered(wanted)
            with self._lock:
                self._answers = {one: answer for one, answer in (self._answers | found).items() if one in self._wanted}
        except Exception:  # what a manager's client raises that it should not
            log.exception("what the cluster managers say is not known")
        finally:
            with self._lock:
                self._asking = None

    def _answered(self, wanted: Collection[Submission]) -> dict[Submission, Answer]:
        of_manager: dict[ClusterManager, list[Submission]] = defaultdict(list)
        found: dict[Submission, Answer] = {}
        for one in wanted:
            try:
                of_manager[self.managers.at(one)].append(one)
            except ManagerUnavailable as error:
                found[one] = Answer(Sighting(DriverSight.UNKNOWN, str(error)), self._clock())
        for manager, submissions in of_manager.items():
            asked_at = self._clock()
            found |= {one: Answer(seen, asked_at) for one, seen in manager.look(submissions).items()}
        return found


_shared = ManagerAnswers()


def shared_answers() -> ManagerAnswers:
    """Those of this process: however many runs it looks after, a manager gets one question at a time."""
    return _shared
