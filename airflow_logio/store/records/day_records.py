"""The runs of a pipeline's days or hours, as a calendar of them needs them: what columns say, without descriptions."""

from __future__ import annotations

from typing import NamedTuple

from airflow_logio.protocol.states import RunState
from airflow_logio.store.records.run_records import Run


class PartitionRun(NamedTuple):
    """A run of a partition. Its description is not read, so that thousands of them are one cheap statement."""

    run_id: int
    uid: str
    dag_id: str
    dag_run_id: str
    generation: int
    partition: str
    """The key of its partition."""
    ordinal: int
    state: RunState
    created_at: float
    ended_at: float | None
    superseded_by: str | None
    because: str | None

    @classmethod
    def of(cls, run: Run) -> PartitionRun:
        """As the columns of a run that has a partition say."""
        key, ended = run.spec.key, (run.ended_at, run.superseded_by, run.because)
        names = (run.run_id, run.uid, key.dag_id, key.dag_run_id, key.generation)
        return cls(*names, run.partition or "", run.ordinal, run.state, run.created_at, *ended)


class PartitionBounds(NamedTuple):
    """The keys of the first and of the last partition of which the log has a run."""

    first: str
    last: str
