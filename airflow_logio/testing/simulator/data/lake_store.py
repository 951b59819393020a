"""What all drivers of a schedule share for datasets: the payload store, and who removes from it beside them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from airflow_logio.dataflow.operators import Operator
from airflow_logio.errors import LogInconsistent
from airflow_logio.store.port import LogStore
from airflow_logio.systems.payloads import sweep_group
from airflow_logio.systems.payloads.dataset import Dataset
from airflow_logio.testing.simulator.data.gc_processes import GcProcess
from airflow_logio.testing.simulator.data.simulated_storage import (
    AskedStorage,
    Record,
    SimulatedPayloads,
    SimulatedStorage,
    damage,
    decoded,
)
from airflow_logio.testing.simulator.questions import Asked, Paused, Questions
from airflow_logio.testing.simulator.violation import Violation

if TYPE_CHECKING:
    from airflow_logio.testing.simulator.driver.simulated_driver import SimulatedDriver
    from airflow_logio.testing.simulator.world import World

REMOVAL_TURN, MOST_OF_A_REMOVAL = 9, 150
"""Most questions at once of a process that removes a run, and before it dies: whole removals have more."""


class Lake:
    """`members` are the operators of the pipeline, `arrow` is the schema of their records."""

    def __init__(self, world: World, members: Mapping[str, Operator], arrow: str) -> None:
        self._world = world
        self.members = members
        self.arrow = arrow
        self.storage = SimulatedStorage()
        self.payloads = SimulatedPayloads(self.storage)
        self._sweeps: dict[str, tuple[Questions, int]] = {}
        """Group → a sweep under way, and below which incarnation it sweeps."""
        self._collecting: dict[int, GcProcess] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    def records(self, driver: SimulatedDriver, dataset: Dataset) -> list[Record]:
        """Read a dataset. A replaced driver may find that its files are gone, and fails; no other may."""
        found: list[Record] = []
        for file in dataset.manifest.files:
            stored = self.storage.files.get(file.path)
            wrong = damage(stored, file)
            if driver.is_replaced and (wrong or stored is None):
                raise LogInconsistent(f"the dataset of {dataset.where}: {wrong}")
            self._world.watch.datasets.nothing_unreachable_is_read(driver, dataset, file, wrong)
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
        process = self._collecting.get(which) or GcProcess(self._world, self)
        self._collecting[which] = process
        if process.advance(many) or dies:
            del self._collecting[which]

    def conclude(self) -> None:
        """A last `logio gc`, when no zombie is left; then the run is taken out of the log, by processes that die at it."""
        world = self._world
        GcProcess(world, self).advance(sys.maxsize)
        references = world.store.references(world.run.run_id, f"{world.run.uid}/")
        world.watch.datasets.only_what_lineage_names_is_left(self.storage, references)
        for system in world.systems.values():
            system.conclude()
        world.watch.close()
        self._remove(world.commits)
        if self.storage.files:
            raise Violation(
                "nothing_is_left_of_a_run_that_is_given_up", f"{len(self.storage.files)} files: {_some(self.storage)}"
            )

    def _remove(self, chance: int) -> None:
        """Two processes at once, a few questions in turn, each of which dies at some question; then a third one."""
        processes = [GcProcess(self._world, self, removes=True) for _ in range(2)]
        for process in processes:
            process.advance(1 + chance % REMOVAL_TURN)
        lives = [chance * 7919 % (MOST_OF_A_REMOVAL - died * MOST_OF_A_REMOVAL // 3) for died in range(2)]
        while any(life > 0 for life in lives):
            for place, process in enumerate(processes):
                if lives[place] > 0 and process.advance(1 + lives[place] % REMOVAL_TURN):
                    lives[place] = 0
                lives[place] -= 1 + lives[place] % REMOVAL_TURN
        GcProcess(self._world, self, removes=True).advance(sys.maxsize)


def _some(storage: SimulatedStorage) -> str:
    return ", ".join(sorted(storage.files)[:3])
