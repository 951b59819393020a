"""Runs as the log keeps them: begun, found, finished, superseded, removed; and the code that their drivers get."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any

from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port.lineage_port import StoredBody
from airflow_logio.store.records.driver_records import CodeChange, KeptCode
from airflow_logio.store.records.run_records import Allowed, ConcurrentRuns, Run, RunSpec
from airflow_logio.store.records.start_records import Attempt, Start
from airflow_logio.store.records.upkeep_records import BY_PERSON, Collected, QuarantinedInputSet, Retried


class RunLog(ABC):
    """Begins, finds and ends runs."""

    @abstractmethod
    def start_run(
        self,
        spec: RunSpec,
        *,
        concurrent: ConcurrentRuns = ConcurrentRuns.ISOLATED,
        code: bytes | None = None,
        above: int = 0,
    ) -> Run:
        """Get the newest run of `spec.key`. If there is none, or it is superseded, create the next generation.

        The log determines the generation, not `spec`. Raises `IncompatibleRun` if the run exists with another graph
        fingerprint, and `OtherRunUnfinished` instead of creating a run beside an unfinished one of its pipeline where
        `concurrent` forbids that. `code` is kept with a run that is created, under `spec.code_digest`; None if drivers find
        it installed. A run that is created gets the next ordinal of its pipeline, more than `above` where that is
        given: a person says so whose tables know greater ones than a restored log. It is allowed what `spec` says, and what
        a person has let the next run of its partition do. Raises `ConfigurationError` for an `above` that is too great, and
        `IncompatibleRun` for a run that is there and was not allowed all of that.
        """

    @abstractmethod
    def start_attempt(
        self,
        spec: RunSpec,
        attempt: Attempt,
        *,
        concurrent: ConcurrentRuns = ConcurrentRuns.ISOLATED,
        code: bytes | None = None,
    ) -> Start:
        """The run that an attempt of a task starts for a partition: begun, resumed, or computed again (`start_rules`).

        The decision is kept by the transaction that finds or makes the run. A run that is computed again is given up
        before, in a transaction of its own: who dies in between finds it given up, and any attempt begins the next. Raises
        `ProtocolViolation` if it must not be computed again by a clear, else as `start_run`.
        """

    @abstractmethod
    def supersede(
        self, run_id: int, *, because: str | None = None, above: int = 0, allowed: Collection[Allowed] = ()
    ) -> bool:
        """Give a run up for good, so that the next start of its key begins a fresh one. Its rows stay. False if it
        already was.

        `because` is kept with it. The next runs of its pipeline get ordinals above `above`. The next run of its partition,
        whatever its key, is `allowed` that, and no later one; this may be said of a run that was given up before, until that
        next one begins. Groups that are dead or new are halted with it. Raises `UnknownRun`, `ConfigurationError` for an
        ordinal that is too great and for what the run cannot be allowed, and `ProtocolViolation` while groups are alive, or
        if a later run of the partition has begun that would not be allowed it; the error names them.
        """

    @abstractmethod
    def find_run(self, uid: str, *, damaged: bool = False) -> Run:
        """Find a run by its uid, a unique beginning of it, its DAG run id, or ``pipeline@partition``, of which the newest is
        meant. Raises `UnknownRun`.

        Raises `LogInconsistent`, which says what to do, for a run whose row is damaged; with `damaged` it is returned, marked
        (`Run.damage`), so that it can be ended.
        """

    @abstractmethod
    def list_runs(
        self,
        *,
        pipeline: str | None = None,
        dag_ids: Collection[str] | None = None,
        dag_run_id: str | None = None,
        partition: str | None = None,
        partitions: tuple[str, str] | None = None,
        state: RunState | None = None,
        named: str | None = None,
        limit: int = 50,
    ) -> Sequence[Run]:
        """Runs, newest first: of one pipeline, of these DAGs, of DAG runs of one name, of the partition of that key, of those
        from one key to another, both included, in one state, where that is given; and those whose pipeline, DAG, DAG run or
        partition has `named` in its name: ASCII letters in either case, others as the database compares them. Runs whose
        rows are damaged are marked (`Run.damage`)."""

    @abstractmethod
    def finish_run(self, run_id: int) -> bool:
        """Mark the run finished if all its groups are; False if one is not. Raises `ProtocolViolation` if superseded."""

    @abstractmethod
    def told_by(self, run_id: int, task: str) -> Any | None:
        """What `note_told` has kept for that task; None if nothing, or if it cannot be read, which is logged. Raises
        `UnknownRun`."""

    @abstractmethod
    def note_told(self, run_id: int, task: str, value: Any) -> None:
        """Keep what a task has told people or Airflow of the run, for its next attempts: this instead of what was kept.

        `task` is any text that names the task, `value` plain data: JSON. What other tasks have told stays, also if two note
        at once. It lives until the removal of the run begins. Raises
        `UnknownRun`.
        """


class CodeLog(ABC):
    """Which code the drivers of a run get (ADR-63)."""

    @abstractmethod
    def code(self, run_id: int, number: int) -> KeptCode:
        """The code of that number (`Claim.code`), as it was when the run was started or a person took it.

        Raises `UnknownRun`, `LogInconsistent` for a number that the run does not have.
        """

    @abstractmethod
    def take_code(
        self, run_id: int, group: str, digest: str, fingerprint: str, *, archive: bytes | None = None, by: str
    ) -> int:
        """Give the next drivers of a group other code, because a person wants it; returns the number of that code.

        A driver that is alive keeps the code it has: a claim takes the number that is then the group's. For a replica,
        this is about all replicas of its group. If it is the code that the group gets already, nothing changes. `archive`
        is kept with the run, None if the code is installed (`KeptCode`). Raises `ProtocolViolation` for a run that was
        superseded or a group that the run does not have, `UnknownRun`.
        """

    @abstractmethod
    def code_changes(self, run_id: int) -> Sequence[CodeChange]:
        """What `take_code` has changed, the oldest first."""


class UpkeepLog(ABC):
    """Quarantined Input Sets, garbage, and the removal of ended runs."""

    @abstractmethod
    def quarantined(
        self, run_id: int, group: str | None = None, *, limit: int | None = None
    ) -> Sequence[QuarantinedInputSet]:
        """Input Sets that are set aside, the oldest first; no more than `limit` of them."""

    @abstractmethod
    def retry_quarantined(self, run_id: int, group: str | None = None) -> Retried:
        """Put them back among the triggered ones, in one transaction that voids the epochs of all affected drivers.

        Ends of streams behind them are taken back. Groups that had finished become halted; a person launches them.
        """

    @abstractmethod
    def replace_body(
        self, run_id: int, sender: Port, event_id: int, before: StoredBody, header: bytes, body: bytes
    ) -> None:
        """Put another body in the place of an event's, or of a write action's (its channel is `sender.name`), because a
        person wants it, in one transaction that voids the epochs of all drivers of the run: each reads it anew.

        `before` is what that person has seen. Raises `ProtocolViolation`, and changes nothing, if it is not that any more,
        or the run was superseded; `UnknownRun`.
        """

    @abstractmethod
    def collect(self, run_id: int, limit: int) -> Collected:
        """Collect one batch of what the finished groups of a run have left (Section 3.6). Call it again while there is
        `more`."""

    @abstractmethod
    def garbage(self, run_id: int) -> int:
        """The number of rows of EVENT_LOG that `collect` would remove."""

    @abstractmethod
    def removable(self, older_than_seconds: float, *, unfinished: bool = False) -> Sequence[Run]:
        """Runs that ended at least that long ago, the oldest first, and runs whose removal was interrupted.

        With `unfinished`, also runs that have been idle for that long: halted, parked or never launched.
        """

    @abstractmethod
    def remove_run(
        self, run_id: int, limit: int, *, unfinished: bool = False, keep_row: bool = False, reason: str = BY_PERSON
    ) -> Collected:
        """Remove one batch of an ended run's rows from all tables. Call it again while there is `more`.

        The log keeps which run it was, and the `reason` (`RetentionLog.removed_run`), from the first batch on.
        With `keep_row`, the run's own row stays: `removable` finds an interrupted removal by it. It goes when everything
        outside the log is gone.
        Raises `ProtocolViolation` if the run has not ended, `UnknownRun`.
        """

    @abstractmethod
    def references(self, run_id: int, prefix: str) -> Collection[str]:
        """References into the payload store, beginning with `prefix`, that EVENT_DATA holds."""
