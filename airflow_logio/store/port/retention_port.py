"""What pipelines say of all their runs: how long they stay, and when partitions are due; and which runs were removed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import RemovedRun


class RetentionLog(ABC):
    """Which runs are old enough to be removed, and which were; which partitions are due."""

    @abstractmethod
    def take_turns(self, pause_seconds: float, *, pipeline: str | None = None) -> Mapping[str, float]:
        """Pipelines whose ended runs are to be removed after a time, in seconds, and of which no process has taken a turn for
        `pause_seconds`: the caller has it now. `pipeline` names the only one that is asked about."""

    @abstractmethod
    def expired(self, pipeline: str, limit: int) -> Sequence[Run]:
        """Runs of a pipeline that ended longer ago than its youngest run says (`RunSpec.keep_seconds`), the oldest first,
        and runs whose removal was interrupted.

        Only runs that are finished without quarantine, or were given up. A run stays of which a person has said what the
        next one of its partition may do, until that has begun.
        """

    @abstractmethod
    def removed_up_to(self, pipeline: str) -> int:
        """Up to this ordinal, all runs of the pipeline were removed, or are being removed; 0 if its first one is there."""

    @abstractmethod
    def removed_run(self, name: str) -> RemovedRun | None:
        """A run that was removed, by its uid, a unique beginning of it, or its DAG run id (the last of that name)."""

    @abstractmethod
    def removed_runs(
        self,
        *,
        pipeline: str | None = None,
        dag_run_id: str | None = None,
        partitions: tuple[str, str] | None = None,
        ordinals: tuple[int, int] | None = None,
        limit: int = 50,
        oldest_first: bool = False,
    ) -> Sequence[RemovedRun]:
        """Runs that were removed, the youngest first, or the oldest: of one pipeline, of DAG runs of one name, of the
        partitions from one key to another, with ordinals from one to another, all included, where that is given."""

    @abstractmethod
    def give_up_removed(self, uid: str) -> bool:
        """Let the next run of its key begin, although the removed one had finished: a person says so. False if that was said
        before, or if there was no such run."""

    @abstractmethod
    def pipelines_due(self) -> Mapping[str, Mapping[str, str]]:
        """Pipeline → by when its partitions are to be there (`RunSpec.due`), as its youngest run says."""

    @abstractmethod
    def first_partition(self, pipeline: str) -> str | None:
        """The least key of a partition that the pipeline has had a run for, also if it was removed."""
