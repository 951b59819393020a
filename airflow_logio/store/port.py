"""The store port: what drivers and supervisors ask of the log. Adapters: `sql` (SQLite, PostgreSQL) and, for tests,
`airflow_logio.testing.memory_log`.

Every method except `listen` is one transaction. Any method may raise `LogUnavailable`, which means: nothing is known to
be lost, try again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from airflow_logio.errors import FailurePoint
from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight
from airflow_logio.protocol.states import GroupState, RunState, ScalingState
from airflow_logio.store.address_port import AddressBook
from airflow_logio.store.code_records import CodeChange, KeptCode
from airflow_logio.store.lineage_port import LineageLog
from airflow_logio.store.load_records import Load
from airflow_logio.store.output_port import OutputLog
from airflow_logio.store.quarantine_records import QuarantinedInputSet, Retried
from airflow_logio.store.records import (
    Claim,
    Collected,
    DriverIdentity,
    DriverRecord,
    GroupRef,
    GroupStatus,
    LaunchRecipe,
    PortProgress,
    Run,
    RunFigures,
    RunSight,
    RunSpec,
    ScalingRequest,
    SupervisorNote,
    SupervisorRecord,
    UnderWay,
)
from airflow_logio.store.rules.patience import Patience
from airflow_logio.store.session_port import GroupSession


class Hearing(ABC):
    """One listener to the announcements of a log, until it is closed (`LogStore.listen`)."""

    @abstractmethod
    def close(self) -> None:
        """Stop ringing. Never blocks, and is harmless when repeated."""


class LogStore(ABC):
    """The log as launchers, supervisors and displays see it."""

    patience: Patience
    """How long callers should wait for this log while it is unavailable. Only the methods of sessions wait by
    themselves."""

    @property
    def ends_old_driver_first(self) -> bool:
        """Whether a driver's process must be ended before its group can be claimed (a store that locks as a whole)."""
        return False

    # --- runs ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def start_run(self, spec: RunSpec, *, alone: bool = False, code: bytes | None = None) -> Run:
        """Get the newest run of `spec.key`. If there is none, or it is superseded, create the next generation.

        The log determines the generation, not `spec`. Raises `IncompatibleRun` if the run exists with another graph
        fingerprint. With `alone`, raises `OtherRunUnfinished` instead of creating a run while another run of its
        pipeline is unfinished. `code` is kept with a run that is created, under `spec.code_digest`; None if drivers
        find it installed.
        """

    @abstractmethod
    def supersede(self, run_id: int) -> bool:
        """Give a run up for good, so that the next start of its key begins a fresh one. Its rows stay. False if it
        already was.

        Groups that are dead or new are halted with it. Raises `UnknownRun`, and `ProtocolViolation` while groups are
        alive; the error names them.
        """

    @abstractmethod
    def find_run(self, uid: str) -> Run:
        """Find a run by its uid, a unique beginning of it, or its DAG run id. Raises `UnknownRun`."""

    @abstractmethod
    def list_runs(
        self,
        *,
        pipeline: str | None = None,
        dag_ids: Collection[str] | None = None,
        dag_run_id: str | None = None,
        state: RunState | None = None,
        named: str | None = None,
        limit: int = 50,
    ) -> Sequence[Run]:
        """Runs, newest first: of one pipeline, of these DAGs, of DAG runs of one name, in one state, where that is given; and
        those whose pipeline, DAG or DAG run has `named` in its name: ASCII letters in either case, others as the database
        compares them."""

    @abstractmethod
    def finish_run(self, run_id: int) -> bool:
        """Mark the run finished if all its groups are; False if one is not. Raises `ProtocolViolation` if superseded."""

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

    # --- garbage ------------------------------------------------------------------------------------------------------

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
    def remove_run(self, run_id: int, limit: int, *, unfinished: bool = False, keep_row: bool = False) -> Collected:
        """Remove one batch of an ended run's rows from all tables. Call it again while there is `more`.

        With `keep_row`, the run's own row stays: `removable` finds an interrupted removal by it. It goes when everything
        outside the log is gone.
        Raises `ProtocolViolation` if the run has not ended, `UnknownRun`.
        """

    # --- groups -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def groups(self, run_id: int) -> Sequence[GroupStatus]: ...

    @abstractmethod
    def group(self, run_id: int, group: str) -> GroupStatus: ...

    @abstractmethod
    def claim(
        self,
        run_id: int,
        group: str,
        *,
        expected: int,
        reason: str,
        by_user: bool = False,
        request_id: int | None = None,
    ) -> Claim:
        """Raise the incarnation from `expected` to `expected + 1` and commit: from then on the old driver is fenced.

        Compare-and-set: raises `Fenced` if another process claimed meanwhile, `ProtocolViolation` if the state table
        forbids it, `BudgetSpent` (and parks the group) if the recovery budget is spent. Claims `by_user` spend none of
        the budget. With `request_id`, raises `ProtocolViolation` if that request to scale was superseded or settled: a
        replica that is launched for it now would be in no plan.

        If the fence row's lock is held for long, the holder is a driver that was stopped inside a transaction: its
        backend is ended (PostgreSQL).
        """

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

    @abstractmethod
    def submitted(self, claim: Claim, *, log_path: str | None, launcher: DriverIdentity | None) -> bool:
        """Note that spark-submit was started for the claim. False if the driver was quicker or the claim is void."""

    @abstractmethod
    def register(self, claim: Claim, identity: DriverIdentity) -> GroupRef:
        """The driver takes its incarnation (nonce compared, once). Raises `Fenced` for any other process."""

    @abstractmethod
    def heartbeat(
        self, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None = None
    ) -> GroupState:
        """Write the heartbeat row of this incarnation and return the desired state. Raises `Fenced` if replaced."""

    @abstractmethod
    def check_heartbeats(self) -> None:
        """Write where heartbeats are written, and take it back. Raises `LogUnavailable` if that is refused: then no driver
        can say that it is alive (a full disk); `HeartbeatsHeld` if a process holds their lock (a driver that is stopped).

        Cheap to call for each of many late drivers: within a second of the last attempt, that one's result holds.
        """

    @abstractmethod
    def declare_dead(self, ref: GroupRef, cause: str, *, failed_at: FailurePoint | None = None) -> bool:
        """Declare this incarnation dead, for a supervisor or for the driver itself. False if it was replaced or has
        ended.

        `failed_at` is where an operator's code raised: a claim that finds the same point too often parks the group.
        """

    @abstractmethod
    def park(self, ref: GroupRef, error: str) -> bool:
        """A supervisor gives up on this incarnation; False if it was replaced or has ended."""

    @abstractmethod
    def request(self, run_id: int, group: str, desired: GroupState, *, incarnation: int | None = None) -> bool:
        """Set the desired state (running, draining or halted); the driver obeys with its next heartbeat.

        With `incarnation`, only while that one is current; False if it was replaced. Raises `ProtocolViolation` for a
        request that no driver would obey: for a group that the run does not have, or to drain a group that has no
        sources or is halted.
        """

    @abstractmethod
    def halted(self, ref: GroupRef) -> bool:
        """Note that the driver of this incarnation was stopped on request. False if it was replaced or has ended.

        Raises the epoch: a driver that still runs is refused when it commits, and cannot rebuild itself.
        """

    # --- replicas -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def slots(self, run_id: int, group: str) -> Sequence[Slot]:
        """The slots of a replicated group, by number. Raises `UnknownRun`, and `ProtocolViolation` for any other group."""

    @abstractmethod
    def slots_of_run(self, run_id: int) -> Mapping[str, Sequence[Slot]]:
        """Replicated group → its slots, by number, for all of them; in one statement."""

    @abstractmethod
    def rescale(
        self,
        run_id: int,
        group: str,
        placement: Placement,
        *,
        retire: Collection[str] = (),
        request_id: int | None = None,
    ) -> int:
        """Give slots to other replicas and retire replicas, in one transaction. Returns how many slots have moved.

        Slots that are not named stay. The epochs of all affected replicas are raised: what they have in memory is void,
        and their next commit is refused. Their fences are locked in the same way as by their commits, so that a step of
        a replica is either in the log before its slot moves, or never.

        Raises `ProtocolViolation` if a slot is done or unknown, if a replica that would get one does not run or was
        asked to halt, if a replica to retire would keep a slot that is not done, or if the run has ended. With
        `request_id`, raises it also if that request is no longer open: the caller is late. Raises `UnknownRun`, and
        `ReplicaBusy` if a replica is stopped inside a transaction or another process moves slots of the group for seconds
        (on SQLite that shuts every process out: `LogUnavailable`). When it raises, nothing is changed.
        """

    @abstractmethod
    def slots_sight(self, groups: Collection[tuple[int, str]]) -> Mapping[tuple[int, str], SlotsSight]:
        """(run id, replicated group) → its slots, and whether it has work; in as many statements as for one of them.

        Without those that the log does not have.
        """

    @abstractmethod
    def request_scaling(
        self, run_id: int, group: str, replicas: int, *, by: str, reason: str = "", key: str | None = None
    ) -> ScalingRequest:
        """Ask for a number of replicas. Older open requests for the group are refused because of it.

        If there is a request with the same `key`, it is returned, whatever its state. Raises `UnknownRun`, and
        `ProtocolViolation` for a number that the group cannot have or a run that has ended.
        """

    @abstractmethod
    def scalings(self, run_id: int, group: str | None = None) -> Sequence[ScalingRequest]:
        """All requests, the newest first."""

    @abstractmethod
    def settle_scaling(self, request_id: int, state: ScalingState, note: str = "") -> bool:
        """Accept, conclude or refuse a request (compare-and-set). False if it was settled otherwise.

        If it is already in that state, nothing changes and the answer is True. Raises `ProtocolViolation` if there is
        no such request.
        """

    # --- supervision --------------------------------------------------------------------------------------------------

    @abstractmethod
    def note_launch(self, run_id: int, group: str, recipe: LaunchRecipe) -> None:
        """Note how every supervisor launches the group from now on."""

    @abstractmethod
    def launch_recipe(self, run_id: int, group: str) -> LaunchRecipe | None:
        """The noted recipe, or None. A group without one is launched only by the process that started its run."""

    def note_supervisor(self, name: str, *, pipeline: str | None = None, run_uid: str | None = None) -> None:
        """`note_supervisors` of one."""
        self.note_supervisors([SupervisorNote(name, pipeline, run_uid)])

    @abstractmethod
    def note_supervisors(self, notes: Sequence[SupervisorNote]) -> None:
        """Supervisors of these names are about to look for failed groups. Of two notes of one name the last one counts."""

    @abstractmethod
    def forget_supervisor(self, name: str) -> None:
        """The supervisor of that name looks no more. Nothing happens if there is none."""

    @abstractmethod
    def supervisors(self) -> Sequence[SupervisorRecord]:
        """All supervisors that have looked for failed groups, the latest first."""

    @abstractmethod
    def sight(self, uids: Collection[str] | None) -> Sequence[RunSight]:
        """The runs of these uids, whatever their state, or all that go on (None): oldest first, in one snapshot.

        Uids that the log does not have are left out. One statement on PostgreSQL, however many runs are asked for; one more
        for runs that this store sees for the first time, and one more if a run among them has replicated groups.
        """

    def unfinished(
        self, *, pipeline: str | None = None, run_uid: str | None = None
    ) -> Sequence[tuple[Run, Sequence[GroupStatus]]]:
        """Runs that go on, oldest first, with their groups, in one snapshot: all, of one pipeline, or this one."""
        seen = self.sight(None if run_uid is None else [run_uid])
        return [
            (one.run, one.groups)
            for one in seen
            if one.run.state is RunState.RUNNING and pipeline in (None, one.run.spec.key.pipeline)
        ]

    @abstractmethod
    def listen(self, ring: Callable[[], None]) -> Hearing | None:
        """Have `ring` called when any process declares a driver dead in this log. None if this log cannot announce
        that.

        `ring` is also called when listening begins, or has begun already: the listener has to look for what was
        announced before. Like every wake-up, this is a hint: an announcement may be lost, so listeners poll as well.
        `ring` is called in any thread, and must neither block nor query the log. The store may be disposed of before
        the hearing is closed. `listen` never blocks, and raises nothing if the log is unavailable.
        """

    # --- what drivers have printed ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def output(self) -> OutputLog: ...

    # --- where drivers hand over bodies directly ----------------------------------------------------------------------

    @property
    @abstractmethod
    def addresses(self) -> AddressBook: ...

    # --- lineage ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def lineage(self, run: Run) -> AbstractContextManager[LineageLog]:
        """The rows that lineage queries join, in one snapshot; the queries are in `store/lineage/queries.py`."""

    # --- figures ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def drivers(self, run_id: int) -> Sequence[DriverRecord]:
        """Every driver that the run has had, one record per incarnation, in the order in which they were claimed."""

    @abstractmethod
    def progress(self, run_id: int) -> Sequence[PortProgress]: ...

    @abstractmethod
    def under_way(self, run_id: int) -> UnderWay:
        """What is acknowledged or logged, and not done yet. Reads counters, not events."""

    @abstractmethod
    def figures(self, run_ids: Collection[int]) -> Mapping[int, RunFigures]:
        """`progress`, `under_way`, `drivers`, and numbers of `quarantined`, of many runs in as many statements as of one."""

    @abstractmethod
    def references(self, run_id: int, prefix: str) -> Collection[str]:
        """References into the payload store, beginning with `prefix`, that EVENT_DATA holds."""

    @abstractmethod
    def session(self, ref: GroupRef) -> GroupSession: ...

    @abstractmethod
    def dispose(self) -> None:
        """Close every connection."""
