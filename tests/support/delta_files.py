"""Runs that write datasets into a Delta table by tasks of a session, or by the driver alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_logio.dataflow.writers.action_writers import WriteAction
from airflow_logio.protocol.writes import HeldGroup
from airflow_logio.spark.delta_files import TableFiles
from airflow_logio.systems.payloads.dataset import Dataset
from tests.support.delta_tables import DeltaRun

Lines = Callable[[Any], pa.Table]
"""Starts a job, given the session."""


class ByExecutors(DeltaRun):
    """A run whose datasets tasks of a session write; `way` is "driver" for the other way."""

    def ready(self, spark: Any, root: str, way: str = "tasks") -> ByExecutors:
        self.spark, self.root, self.way = spark, root, way
        self.datasets: dict[str, Dataset] = {}
        self.jobs: list[str] = []
        self.around: Callable[[Lines, Any], pa.Table] = lambda start, spark: start(spark)
        """What becomes of a job."""
        return self

    def of(self, number: int, made: Dataset) -> WriteAction:
        reference = str(made.reference)
        self.datasets[reference] = made
        return replace(self.action(number, pa.table({})), dataset=reference)

    def job(self, description: str, start: Lines) -> pa.Table:
        self.jobs.append(description)
        return self.around(start, self.spark)

    @property
    def target(self) -> Any:
        def dataset(_: str, reference: str) -> Dataset:
            return self.datasets[reference]

        files = TableFiles(self.writer, self.url, dataset, self.root, self.job, lambda: self.way == "tasks")
        return replace(super().target, datasets=dataset, by_tasks=files)

    def close_datasets(self, *made: Dataset) -> None:
        held = [self.of(number, one) for number, one in enumerate(made, 2)]
        closing = self.action(len(made) + 2, pa.table({}))
        group = HeldGroup(2, closing.number, sum(one.num_rows for one in made), len(made))
        target = self.target
        with target.connect(self.url) as log:
            target.apply_held(log, self.marker(), group, closing, [[one] for one in held])
