"""What all drivers of a schedule share for datasets: the payload store, and the processes that remove from it beside them.

`logio gc` at a run that has ended may die between any two questions, and another one may be at it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from airflow_logio.dataflow.operators import Operator
from airflow_logio.errors import LogInconsistent
from airflow_logio.protocol.group import GroupProtocol
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.supervision import tidying
from airflow_logio.supervision.tidying import drop_left
from airflow_logio.systems.payloads import Payloads, sweep_group, sweep_run
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
from airflow_logio.testing.simulator.stepwise import Paused, Questions
from airflow_logio.testing.simulator.violation import Violation
from airflow_logio.testing.simulator.world import World
from tests.simulator.lake.dataset_watch import DatasetWatch
from tests.simulator.lake.evaluating import Evaluating
from tests.simulator.lake.staging import SimulatedStaging, StagingClient, StagingDatabase
from tests.simulator.lake.storage import (
    AskedStorage,
    Record,
    SimulatedPayloads,
    SimulatedStorage,
    damage,
    decoded,
)

REMOVAL_TURN, MOST_OF_A_REMOVAL = 9, 150
"""Most questions at once of a process that removes a run, and before it dies: whole removals have more."""


class Asked:
    """An object that is asked a question by each call."""

    def __init__(self, questions: Questions, asked: Any) -> None:
        self._questions = questions
        self._asked = asked

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._asked, name)
        return lambda *values, **named: self._questions.ask(lambda: method(*values, **named))


class Lake:
    """The datasets of a schedule (`DatasetWorld`).

    `members` are the operators of the pipeline, and `arrow` is the schema of their records. Payloads of its sources are
    lists of records, and so are DataFrames.
    """

    def __init__(self, world: World, members: Mapping[str, Operator], arrow: str) -> None:
        self._world = world
        self.members = members
        self.arrow = arrow
        self.storage = SimulatedStorage()
        self.watch = DatasetWatch(world.watch.tables, self.storage)
        self.payloads = SimulatedPayloads(self.storage)
        self._sweeps: dict[str, tuple[Questions, int]] = {}
        """Group → a sweep under way, and below which incarnation it sweeps."""
        self._collecting: dict[int, GcProcess] = {}

    def epoch(self, driver: SimulatedDriver, protocol: GroupProtocol) -> Evaluating:
        """The threads of a driver's new epoch that evaluate datasets."""
        return Evaluating(driver, self, protocol)

    # --- reading ------------------------------------------------------------------------------------------------------

    def records(self, driver: SimulatedDriver, dataset: Dataset) -> list[Record]:
        """Read a dataset. A replaced driver may find that its files are gone, and fails; no other may."""
        found: list[Record] = []
        for file in dataset.manifest.files:
            stored = self.storage.files.get(file.path)
            wrong = damage(stored, file)
            if driver.is_replaced and (wrong or stored is None):
                raise LogInconsistent(f"the dataset of {dataset.where}: {wrong}")
            self.watch.nothing_unreachable_is_read(driver, dataset, file, wrong)
            assert stored is not None
            found += decoded(stored.content)
        return found

    # --- removing -----------------------------------------------------------------------------------------------------

    def remove(self, questions: Questions, refs: tuple[str, ...]) -> None:
        """Remove what garbage collection has taken out of the log. Raises `Paused`."""
        SimulatedPayloads(AskedStorage(questions, self.storage)).remove(refs)

    def sweep(self, group: str, many: int) -> None:
        """Take some steps of a sweep of a group; one that was cut short is made good by the next."""
        questions, below = self._sweeps.setdefault(group, (Questions(), self._below(group)))
        questions.begin(many)
        payloads = SimulatedPayloads(AskedStorage(questions, self.storage))
        store = cast(LogStore, Asked(questions, self._world.store))
        try:
            sweep_group(payloads, store, self._world.run, group, below=below)
        except Paused:
            return
        except LogInconsistent:
            pass  # something of it has just been removed: nothing is swept this time
        finally:
            questions.forget_frames()
        del self._sweeps[group]

    def _below(self, group: str) -> int:
        """An incarnation sweeps what those before it have left; when its group has finished, it is swept as well."""
        return self._world.incarnations[group] + (group in self._world.finished)

    # --- after the run ------------------------------------------------------------------------------------------------

    def collect(self, which: int, many: int, *, dies: bool) -> None:
        """One of several `logio gc` that are at the run at once takes some steps, and begins anew when it has ended."""
        process = self._collecting.get(which) or GcProcess(self._world, self.storage)
        self._collecting[which] = process
        if process.advance(many) or dies:
            del self._collecting[which]

    def conclude(self) -> None:
        """A last `logio gc`, when no zombie is left; then the run is taken out of the log, by processes that die at it."""
        world = self._world
        GcProcess(world, self.storage).advance(sys.maxsize)
        references = world.store.references(world.run.run_id, f"{world.run.uid}/")
        self.watch.only_what_lineage_names_is_left(self.storage, references)
        for system in world.systems.values():
            system.conclude()
        world.watch.close()
        self._remove(world.commits)
        if self.storage.files:
            raise Violation(
                "nothing_is_left_of_a_run_that_is_given_up", f"{len(self.storage.files)} files: {_some(self.storage)}"
            )

    def _remove(self, chance: int) -> None:
        """Two processes at once, a few questions in turn, until each dies at some question; then a third one."""
        processes = [GcProcess(self._world, self.storage, removes=True) for _ in range(2)]
        for process in processes:
            process.advance(1 + chance % REMOVAL_TURN)
        lives = [chance * 7919 % (MOST_OF_A_REMOVAL - died * MOST_OF_A_REMOVAL // 3) for died in range(2)]
        while any(life > 0 for life in lives):
            for place, process in enumerate(processes):
                if lives[place] > 0 and process.advance(1 + lives[place] % REMOVAL_TURN):
                    lives[place] = 0
                lives[place] -= 1 + lives[place] % REMOVAL_TURN
        GcProcess(self._world, self.storage, removes=True).advance(sys.maxsize)


def _some(storage: SimulatedStorage) -> str:
    return ", ".join(sorted(storage.files)[:3])


# --- logio gc ---------------------------------------------------------------------------------------------------------


Work = Callable[[Payloads, LogStore, Run], None]
"""What a process does with a run: the code of the runtime, as `cli/upkeep.py` calls it."""


class GcProcess:
    """One process. It tidies the run up, or with `removes` takes it out of the log altogether (``--older-than``)."""

    def __init__(self, world: World, storage: SimulatedStorage, *, removes: bool = False) -> None:
        self._world = world
        self._storage = storage
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
