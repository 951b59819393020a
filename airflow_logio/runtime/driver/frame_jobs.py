"""Mode ``dataframe``: the generation of many triggered Input Sets, whose records stay on Spark's executors (ADR-84)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.function_operators import SCHEMAS, FrameWindowOperator
from airflow_logio.dataflow.operators import InputSet, SparkFrame
from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.protocol.values import Port
from airflow_logio.runtime.datasets.dataset_jobs import materialized_sets
from airflow_logio.runtime.datasets.dataset_parts import frame_of_sets
from airflow_logio.runtime.datasets.evaluated import Evaluated
from airflow_logio.runtime.driver.evaluation import Evaluation
from airflow_logio.runtime.driver.jobs import JobRunner
from airflow_logio.runtime.driver.spark_session import lookup
from airflow_logio.runtime.payloads import EpochPayloads
from airflow_logio.runtime.payloads.dataset import Dataset

_NO_COLUMNS = json.dumps({"type": "struct", "fields": []})
"""The schema of a port of which no event was ever seen."""


class FrameJobs(JobRunner[FrameWindowOperator]):
    """`evaluation` runs the jobs, as the Spark jobs of this epoch."""

    def __init__(self, evaluation: Evaluation, payloads: EpochPayloads, *common: Any) -> None:
        super().__init__(*common)
        self._evaluation = evaluation
        self._payloads = payloads
        self._jobs = 0

    def _worked(self, sets: Sequence[InputSet]) -> tuple[Sequence[Sequence[Output]], int, list[Read]]:
        admitted = [one for one in sets if self._operator.window.admits(one.inset_id, self._state)]
        if not admitted:
            return [[] for _ in sets], 0, []
        effects = self._read(None)
        tables = {name: effect for name, (effect, _) in effects.items()}
        crash_here(CrashPoint.BEFORE_JOB)
        made = self._evaluation.job(
            f"operator {self._name!r}, {_named(admitted)}",
            self._point(sets),
            lambda: self._materialized(admitted, tables),
        )
        crash_here(CrashPoint.AFTER_JOB)
        outputs = {one.inset_id: self._sent(made.get(place)) for place, one in enumerate(admitted)}
        records = sum(dataset.num_rows for dataset in made.values())
        return [outputs.get(one.inset_id, []) for one in sets], records, [read for _, read in effects.values()]

    def _materialized(self, sets: Sequence[InputSet], tables: Mapping[str, pa.Table]) -> Mapping[int, Dataset]:
        """Place of an Input Set → its Output Set, where that has records."""
        session = self._sessions.get()
        reads = {name: lookup(session, table) for name, table in tables.items()}
        frames = self._frames(session, sets)
        with self._evaluation.calling():
            result = self._operator.run_on(frames, reads, self._connections.params)
        where = [f"the Output Set of Input Set {one.inset_id!r} of operator {self._name!r}" for one in sets]
        self._evaluation.before_job()
        self._jobs += 1
        purpose = f"datasets/{Port(self._name, self._operator.outputs[0])}/{self._jobs}"
        return materialized_sets(self._payloads, where, purpose, result)

    def _frames(self, session: Any, sets: Sequence[InputSet]) -> Mapping[str, SparkFrame]:
        operator, names = self._operator, [one.inset_id for one in sets]
        held = [operator.held_by_port(one.held) for one in sets]
        return {
            port: frame_of_sets(
                session,
                operator.window,
                names,
                [parts.get(port, ()) for parts in held],
                operator.columns,
                self._state[SCHEMAS].get(port, _NO_COLUMNS),
            )
            for port in operator.inputs
        }

    def _sent(self, dataset: Dataset | None) -> Sequence[Output]:
        if dataset is None:
            return []
        payload = Evaluated(dataset, dataset.manifest.schema)
        return [Emit(self._operator.outputs[0], payload, dataset.num_rows)]


def _named(sets: Sequence[InputSet]) -> str:
    if len(sets) == 1:
        return f"Input Set {sets[0].inset_id!r}"
    return f"{len(sets)} Input Sets from {sets[0].inset_id!r} to {sets[-1].inset_id!r}"
