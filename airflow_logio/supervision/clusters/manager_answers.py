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
OLD_SECONDS = 60.0
"""An answer holds for so long, if no other one comes."""


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
                self._asking = started(self._ask, "logio managers", "what the cluster managers say is not known")
            return {one: self._newest(one, now) for one in submissions}

    def _newest(self, submission: Submission, now: float) -> Answer:
        """What was said too long ago, because a manager hangs, is no answer any more."""
        found = self._answers.get(submission)
        if found is None:
            return NO_ANSWER
        age = now - found.asked_at
        return found if age < OLD_SECONDS else Answer(Sighting(DriverSight.UNKNOWN, f"no answer for {age:.0f} s"), now)

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
            try:
                seen = manager.look(submissions)
            except Exception as error:  # what its client raises that it should not: others are asked all the same
                log.exception("what %s says is not known", manager.name)
                seen = dict.fromkeys(submissions, Sighting(DriverSight.UNKNOWN, f"{type(error).__name__}: {error}"))
            found |= {one: Answer(what, asked_at) for one, what in seen.items()}
        return found


def started(ask: Callable[[], None], name: str, otherwise: str) -> threading.Thread | None:
    """A thread that asks managers. None if there can be no more threads; then a warning says what this means."""
    thread = threading.Thread(target=ask, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log.warning("%s: %s", otherwise, error)
        return None
    return thread


_shared = ManagerAnswers()


def shared_answers() -> ManagerAnswers:
    """Those of this process: however many runs it looks after, a manager gets one question at a time."""
    return _shared
