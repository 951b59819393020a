"""The jobs of a simulated driver: asynchronous generation, one job at a time for each operator."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.protocol.job_queue import JobBounds, JobQueue
from airflow_logio.protocol.logic import Output, Read
from airflow_logio.testing.simulator.data.simulated_jobs import Steps, finished

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver

SMALL_JOBS = JobBounds(target_records=4, first_records=2, linger_seconds=0.5, most_records=6)
"""Bounds of jobs; an Input Set counts as one record."""


Ended = tuple[list[tuple[str, Sequence[Output]]], Sequence[Read]]
"""The outputs of each Input Set, and the read actions of a job."""


@dataclass(slots=True)
class Job:
    """A job under way: its Input Sets, and, once it has run, their outputs and its read actions; `steps` does that in mode
    ``dataframe``."""

    insets: Sequence[str]
    steps: Steps[Ended] | None = None
    ended: Ended | None = None


class SimulatedGeneration(dict[str, "Job | None"]):
    """The jobs of one epoch, by operator. Every method named by a verb is a step, as in `SimulatedDriver`."""

    def __init__(self, driver: SimulatedDriver, protocol: GroupProtocol) -> None:
        super().__init__({spec.name: None for spec in driver.operators if spec.asynchronous})
        self._driver = driver
        self.queue = JobQueue(protocol, self, lambda _held: (1, 0), SMALL_JOBS)

    def start_job(self, about: object, many: int, _outcome: str) -> bool:
        name, driver = str(about), self._driver
        if not driver.is_running or self.get(name, 0) is not None:
            return False
        self.queue.note(name, driver.now)
        due_at = self.queue.due_at(name, driver.now)
        if due_at is None:
            return False
        driver.now = max(driver.now, due_at)
        chosen = self.queue.take(name, driver.now, most_records=many)
        sets = driver.protocol.start_job(name, chosen)
        state = deepcopy(driver.protocol.operators[name].state)
        self[name] = Job(chosen, None if driver.evaluating is None else driver.evaluating.job(name, sets, state))
        return True

    def run_job(self, about: object, many: int, _outcome: str) -> bool:
        job = self.get(str(about))
        if not self._driver.is_running or job is None or job.ended is not None:
            return False
        if job.steps is not None:
            job.ended = finished(job.steps, many)
            return True
        protocol = self._driver.protocol.operators[str(about)]
        job.ended = [(inset_id, list(protocol.generate(inset_id))) for inset_id in job.insets], ()
        return True

    def note_job(self, about: object, _many: int, _outcome: str) -> bool:
        name = str(about)
        job = self.get(name)
        if not self._driver.is_running or job is None or job.ended is None:
            return False
        self._driver.loop.generated(name, *job.ended, self._driver.now)
        self[name] = None
        return True
