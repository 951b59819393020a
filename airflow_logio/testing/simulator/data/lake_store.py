"""What all drivers of a schedule share for datasets: the payload store, and who removes from it beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from airflow_logio.dataflow.operators import Operator
from airflow_logio.errors import LogInconsistent
from airflow_logio.runtime.payloads import sweep_group, sweep_run
from airflow_logio.runtime.payloads.dataset import Dataset
from airflow_logio.runtime.supervision import tidying
from airflow_logio.store.port import LogStore
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

    def conclude(self) -> None:
        """What `logio gc` does with a run that has ended, and then with one that is given up."""
        world, store = self._world, cast(LogStore, self._world.store)
        discard = self.payloads.remove
        tidying.tidy(store, world.run.run_id, discard)
        sweep_run(self.payloads, store, world.run)
        world.watch.datasets.only_what_lineage_names_is_left(self.storage)
        for system in world.systems.values():
            system.conclude()
        world.watch.close()
        tidying.remove(store, world.run.run_id, discard, unfinished=True)
        if self.storage.files:
            raise Violation(
                "nothing_is_left_of_a_run_that_is_given_up", f"{len(self.storage.files)} files: {_some(self.storage)}"
            )


def _some(storage: SimulatedStorage) -> str:
    return ", ".join(sorted(storage.files)[:3])
