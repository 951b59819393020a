"""`logio gc` at a run that has ended, a few questions at a time: it may die between any two, and another one may be at it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from airflow_logio.errors import LogInconsistent
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision import tidying
from airflow_logio.supervision.tidying import drop_left
from airflow_logio.systems.payloads import Payloads, sweep_run
from airflow_logio.testing.simulator.data.simulated_staging import SimulatedStaging, StagingClient
from airflow_logio.testing.simulator.data.simulated_storage import AskedStorage, SimulatedPayloads
from airflow_logio.testing.simulator.data.staging_database import StagingDatabase
from airflow_logio.testing.simulator.questions import Asked, Paused, Questions

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.data.lake_store import Lake
    from airflow_logio.testing.simulator.world import World

Work = Callable[[Payloads, LogStore, Run], None]
"""What a process does with a run: the code of the runtime, as `cli/upkeep.py` calls it."""


class GcProcess:
    """One process. It tidies the run up, or with `removes` takes it out of the log altogether (``--older-than``)."""

    def __init__(self, world: World, lake: Lake, *, removes: bool = False) -> None:
        self._world = world
        self._storage = lake.storage
        self._work: Work = _removed if removes else _tidied
        self._databases = [one for one in world.systems.values() if isinstance(one, StagingDatabase)]
        self._questions = Questions()

    def advance(self, many: int) -> bool:
        """Ask at most so many questions; True when it has come to its end."""
        questions = self._questions
        questions.begin(many)
        payloads = SimulatedPayloads(AskedStorage(questions, self._storage))
        store, run = cast(LogStore, Asked(questions, self._world.store)), self._world.run
        try:
            for database in self._databases:
                drop_left(SimulatedStaging(StagingClient(database, questions=questions)), run)
            self._work(payloads, store, run)
        except Paused:
            return False
        finally:
            questions.forget_frames()
        return True


def _tidied(payloads: Payloads, store: LogStore, run: Run) -> None:
    tidying.tidy(store, run.run_id, payloads.remove)
    try:
        sweep_run(payloads, store, run)
    except LogInconsistent:
        """Another process has just removed something of it: files that nothing names stay for the next one."""


def _removed(payloads: Payloads, store: LogStore, run: Run) -> None:
    found = store.removable(0.0, unfinished=True)
    if run.run_id in [one.run_id for one in found]:
        clear = partial(_clear, payloads, run)
        tidying.remove(store, run.run_id, payloads.remove, clear, unfinished=True)


def _clear(payloads: Payloads, run: Run) -> None:
    payloads.discard(payloads.find(run.uid), run.uid)
