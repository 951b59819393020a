"""Mode ``dataframe``: the generation of many triggered Input Sets, whose records stay on Spark's executors (ADR-84)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.functions.windowed_operators import SCHEMAS, FrameWindowOperator
from airflow_logio.dataflow.operators import InputSet, SparkFrame
from airflow_logio.driver.logics.frame_logic import other_columns
from airflow_logio.driver.spark_jobs.evaluation import Evaluation
from airflow_logio.driver.spark_jobs.frame_reads import FrameReads, ReadEffect, discard
from airflow_logio.driver.spark_jobs.jobs import JobRunner
from airflow_logio.errors import FailurePoint, OperatorFailed
from airflow_logio.protocol.logic import Emit, Output, Read
from airflow_logio.protocol.values import SENT_SCHEMA, Port
from airflow_logio.spark.chains import Evaluated
from airflow_logio.spark.dataset_jobs import materialized_sets
from airflow_logio.spark.dataset_parts import frame_of_sets
from airflow_logio.systems.payloads import EpochPayloads
from airflow_logio.systems.payloads.dataset import Dataset

_NO_COLUMNS = json.dumps({"type": "struct", "fields": []})
"""The schema of a port of which no event was ever seen."""


class FrameJobs(JobRunner[FrameWindowOperator]):
    """`evaluation` runs the jobs, as the Spark jobs of this epoch. `captures` says whether lineage leads from its output
    port to its reads."""

    def __init__(self, evaluation: Evaluation, payloads: EpochPayloads, captures: bool, *common: Any) -> None:
        super().__init__(*common)
        self._evaluation = evaluation
        self._payloads = payloads
        self._captures = captures
        self._jobs = 0
        self._columns: str | None = None
        """The columns of its output port, as far as this driver knows: the state of a part of a job has only those before."""
        self._has_other_columns = False

    def _worked(self, sets: Sequence[InputSet]) -> tuple[Sequence[Sequence[Output]], int, list[Read]]:
        admitted = [one for one in sets if self._operator.window.admits(one.inset_id, self._state)]
        if not admitted:
            return [[] for _ in sets], 0, []
        self._jobs += 1
        at, what = self._point(sets), f"operator {self._name!r}, {_named(admitted)}"
        effects = self._obtained(admitted, at, what)
        crash_here(CrashPoint.BEFORE_JOB)
        try:
            made = self._evaluation.job(what, at, lambda: self._materialized(admitted, effects))
        except OperatorFailed:
            discard(self._payloads, effects.values())
            raise
        crash_here(CrashPoint.AFTER_JOB)
        outputs = {one.inset_id: self._sent(made.get(place)) for place, one in enumerate(admitted)}
        records = sum(dataset.num_rows for dataset in made.values())
        return [outputs.get(one.inset_id, []) for one in sets], records, self._logged(effects, bool(made))

    def _obtained(self, sets: Sequence[InputSet], at: FailurePoint, what: str) -> Mapping[str, ReadEffect]:
        """The effects of the declared reads of the job, by name."""
        if not self._operator.reads:
            return {}
        reads = FrameReads(
            self._name,
            self._jobs,
            self._operator.reads,
            self._connections,
            self._payloads,
            self._sessions,
            self._evaluation.before_job,
        )

        def obtain() -> Mapping[str, ReadEffect]:
            session = self._sessions.get()
            return reads.obtained(session, lambda: self._frames(session, sets))

        return self._evaluation.job(f"{what}: reads", at, obtain)

    def _logged(self, effects: Mapping[str, ReadEffect], has_output: bool) -> list[Read]:
        """The read actions that lineage asks for (ADR-23). The log will name nothing of any other."""
        if self._captures and has_output:
            return [effect.logged() for effect in effects.values()]
        discard(self._payloads, effects.values())
        return []

    def _materialized(self, sets: Sequence[InputSet], effects: Mapping[str, ReadEffect]) -> Mapping[int, Dataset]:
        """Place of an Input Set → its Output Set, where that has records."""
        session = self._sessions.get()
        reads = {name: effect.frame(session) for name, effect in effects.items()}
        frames = self._frames(session, sets)
        with self._evaluation.calling():
            result = self._operator.run_on(frames, reads, self._connections.params)
        where = [f"the Output Set of Input Set {one.inset_id!r} of operator {self._name!r}" for one in sets]
        self._evaluation.before_job()
        purpose = f"datasets/{Port(self._name, self._operator.outputs[0])}/{self._jobs}"
        made = materialized_sets(self._payloads, where, purpose, result, self._check_columns)
        if made:
            self._columns = next(iter(made.values())).manifest.schema
        return made

    def _check_columns(self, schema: str) -> None:
        """Before a receiver gets them, which could not be helped any more. Raises `OperatorFailed`."""
        known = self._state.get(SENT_SCHEMA) or self._columns
        if known is not None and known != schema:
            self._has_other_columns = True
            raise other_columns(f"output port {self._operator.outputs[0]!r}", known, schema)

    def _concerns_all(self) -> bool:
        return self._has_other_columns

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
