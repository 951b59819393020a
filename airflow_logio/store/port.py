"""The store port: what drivers and supervisors ask of the log. Adapters: `sql` (SQLite, PostgreSQL) and `memory`.

Every method is one transaction, but for `listen`. All may raise `LogUnavailable`, which means: nothing is known to be lost,
try again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager

from airflow_logio.errors import FailurePoint
from airflow_logio.protocol.effects import Effects
from airflow_logio.protocol.recovery import LoggedEvent, Recovered
from airflow_logio.protocol.replicas import Placement, Slot
from airflow_logio.protocol.states import GroupState, RunState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.lineage_port import LineageLog
from airflow_logio.store.records import (
    Claim,
    Collected,
    DriverIdentity,
    DriverRecord,
    FenceRow,
    GroupRef,
    GroupStatus,
    LaunchRecipe,
    Load,
    PortProgress,
    QuarantinedInputSet,
    Retried,
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


def stopped(ref: GroupRef, state: str) -> str:
    """Why a driver may not go on whose group was halted or parked by somebody else."""
    return (
        f"group {ref.group!r} is {state}: the driver of incarnation {ref.incarnation} commits nothing more, and exits"
    )


class GroupSession(ABC):
    """The log as one incarnation of a group sees it. `commit` belongs to one thread, the reads to another."""

    ref: GroupRef

    @abstractmethod
    def open(self, *, raise_epoch: bool = False) -> FenceRow:
        """Read the fence (and first raise the epoch, for a rebuild in place); later commits continue from it.

        Raises `Fenced` if the incarnation was replaced, or its group was halted, parked or retired meanwhile.
        """

    @abstractmethod
    def slots(self) -> Mapping[int, int]:
        """Slot → how often it has moved, of the slots that this replica owns and that are not done; to be asked after `open`.

        A move that comes later raises the epoch: while commits pass, the answer holds. Nothing for a group that is no
        replica.
        """

    @abstractmethod
    def commit(self, effects: Effects) -> tuple[Collected, ...]:
        """Apply effects in one transaction behind the fence (design D8), with LogEvent bodies serialized.

        Returns what its effects of garbage collection did, in their order; nothing if the acknowledgement was lost.

        Raises `Fenced`, `EpochVoid`, `LogInconsistent`; an unknown outcome is resolved by a read-back that takes the
        fence row's lock on a new connection, patiently.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise `Fenced` or `EpochVoid` if a commit would be refused now: for a group that has nothing to commit."""

    @abstractmethod
    def fetch_all(
        self, cursors: Mapping[Port, int], *, max_events: int, max_bytes: int
    ) -> Mapping[Port, Sequence[LoggedEvent]]:
        """Undone, unassigned events of receiver ports, each beyond its cursor, in event_id order; something, if there is any.

        At most `max_events` of a port, and `max_bytes` of all: the ports take turns in the order of `cursors`, an event each,
        and the first event always fits; a port whose next event does not fit gets no more. So a port that got nothing is
        served if it comes first the next time. Ports that get nothing are left out. This is delivery, and the Resend step of
        Algorithms 6 and 7 (design D5).
        """

    def fetch(self, receiver: Port, after: int, *, max_events: int, max_bytes: int) -> Sequence[LoggedEvent]:
        """`fetch_all` of one port."""
        return self.fetch_all({receiver: after}, max_events=max_events, max_bytes=max_bytes).get(receiver, ())

    @abstractmethod
    def recover(self, operators: Sequence[str]) -> Recovered:
        """Everything that recovery of these operators reads, in one consistent snapshot."""

    @abstractmethod
    def acknowledged(self, receivers: Sequence[Port]) -> Mapping[Port, tuple[int, int]]:
        """Counter rows of receiver ports, (events, bytes) acknowledged: the other half of back-pressure."""

    @abstractmethod
    def park(self, error: str) -> None:
        """Give up for good: the group's state becomes parked, with the error. Raises `Fenced` if replaced."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Return when something new may be in the log for this group, or after `timeout` seconds."""

    @abstractmethod
    def announce(self, groups: Sequence[str]) -> None:
        """After a commit: wake these groups if they are parked in `wait`. Best effort: they poll anyway."""

    @abstractmethod
    def close(self) -> None: ...


class Hearing(ABC):
    """One listener's share in what a log announces, until it is closed (`LogStore.listen`)."""

    @abstractmethod
    def close(self) -> None:
        """Ring no more. Waits for nothing; harmless when repeated."""


class LogStore(ABC):
    """The log as launchers, supervisors and displays see it."""

    patience: Patience
    """How long to wait for this log while it is unavailable; for callers, as no method but those of sessions waits itself."""

    @property
    def ends_old_driver_first(self) -> bool:
        """Whether a driver's process must be ended before its group can be claimed (a store that locks as a whole)."""
        return False

    # --- runs ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def start_run(self, spec: RunSpec, *, alone: bool = False) -> Run:
        """Get the newest run of `spec.key`, or create it: the first, or the next generation if the newest is superseded.

        The log says which generation it is, not `spec`. Raises `IncompatibleRun` if the run exists with another graph
        fingerprint and, `alone`, `OtherRunUnfinished` instead of creating one while another of its pipeline is unfinished.
        """

    @abstractmethod
    def supersede(self, run_id: int) -> bool:
        """Give a run up for good, so that the next start of its key begins a fresh one; its rows stay. False if it was.

        Groups that are dead or new are halted with it. Raises `ProtocolViolation`, naming them, while groups are alive, and
        `UnknownRun`.
        """

    @abstractmethod
    def find_run(self, uid: str) -> Run:
        """Raises `UnknownRun`."""

    @abstractmethod
    def list_runs(self, *, pipeline: str | None = None, limit: int = 50) -> Sequence[Run]:
        """Newest first."""

    @abstractmethod
    def finish_run(self, run_id: int) -> bool:
        """Mark the run finished if all its groups are; False if one is not. Raises `ProtocolViolation` if superseded."""

    @abstractmethod
    def quarantined(self, run_id: int, group: str | None = None) -> Sequence[QuarantinedInputSet]:
        """Input Sets that are set aside, the oldest first."""

    @abstractmethod
    def retry_quarantined(self, run_id: int, group: str | None = None) -> Retried:
        """Put them back among the triggered ones, in one transaction that voids the epochs of all drivers concerned.

        Ends of streams behind them are taken back; groups that had finished become halted, to be launched by a person.
        """

    # --- garbage ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def collect(self, run_id: int, limit: int) -> Collected:
        """One batch of what the finished groups of a run have left (Section 3.6); again while there is `more`."""

    @abstractmethod
    def garbage(self, run_id: int) -> int:
        """The number of rows of EVENT_LOG that `collect` would remove."""

    @abstractmethod
    def removable(self, older_than_seconds: float, *, unfinished: bool = False) -> Sequence[Run]:
        """Runs that ended so long ago, the oldest first, and those whose removal was interrupted.

        With `unfinished` also runs that nobody has gone on with for so long: halted, parked or never launched.
        """

    @abstractmethod
    def remove_run(self, run_id: int, limit: int, *, unfinished: bool = False) -> Collected:
        """One batch of an ended run's removal from all tables; again while there is `more`.

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

        Compare-and-set: raises `Fenced` if somebody else claimed meanwhile, `ProtocolViolation` if the state table
        forbids it, `BudgetSpent` (and parks the group) if the recovery budget is spent; `by_user` claims spend none.
        With `request_id`, `ProtocolViolation` if that request to scale has given way to a newer one, or is settled: a
        replica that is launched for it now would be in nobody's plan.
        Whatever holds the fence row's lock for long is a stopped driver inside a transaction: its backend is ended
        (PostgreSQL).
        """

    @abstractmethod
    def submitted(self, claim: Claim, *, log_path: str | None, launcher: DriverIdentity | None) -> bool:
        """spark-submit was started for the claim; False if the driver was quicker or the claim is void."""

    @abstractmethod
    def register(self, claim: Claim, identity: DriverIdentity) -> GroupRef:
        """The driver takes its incarnation (nonce compared, once). Raises `Fenced` for everybody else."""

    @abstractmethod
    def heartbeat(
        self, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None = None
    ) -> GroupState:
        """Write the heartbeat row of this incarnation; returns the desired state. Raises `Fenced` if replaced."""

    @abstractmethod
    def declare_dead(self, ref: GroupRef, cause: str, *, failed_at: FailurePoint | None = None) -> bool:
        """A supervisor saw this incarnation dead, or it says so itself; False if it was replaced or has ended.

        `failed_at` is where an operator's code raised: a claim that finds the same point too often parks the group.
        """

    @abstractmethod
    def park(self, ref: GroupRef, error: str) -> bool:
        """A supervisor gives up on this incarnation; False if it was replaced or has ended."""

    @abstractmethod
    def request(self, run_id: int, group: str, desired: GroupState, *, incarnation: int | None = None) -> bool:
        """Set the desired state (running, draining or halted); the driver obeys with its next heartbeat.

        With `incarnation` only while that one holds; False if it was replaced. Raises `ProtocolViolation` for a wish that
        nobody would obey: of a group that the run does not have, to drain of one without sources or one that is halted.
        """

    @abstractmethod
    def halted(self, ref: GroupRef) -> bool:
        """The driver of this incarnation has been stopped on request; False if it was replaced or has ended.

        Raises the epoch: what a driver that still runs would commit is refused, and it cannot rebuild itself.
        """

    # --- replicas -----------------------------------------------------------------------------------------------------

    @abstractmethod
    def slots(self, run_id: int, group: str) -> Sequence[Slot]:
        """The slots of a replicated group, by number. Raises `UnknownRun`, and `ProtocolViolation` for any other group."""

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
        """Give slots to other replicas, and retire replicas, in one transaction; returns how many slots have moved.

        Slots that are not named stay. The epochs of all replicas concerned are raised: what they have in memory is void, and
        what they would commit is refused. Their fences are locked as their commits lock them, so that a step of a replica
        is either in the log before its slot moves, or never.

        Raises `ProtocolViolation` if a slot is done or unknown, if a replica that is to get one does not run or was asked to
        halt, if one that is to retire would keep a slot that is not done, or if the run has ended; `UnknownRun`;
        with `request_id`, `ProtocolViolation` if that request is no longer open: somebody who went by it is late;
        `ReplicaBusy` if a replica is stopped inside a transaction (on SQLite that shuts everyone out: `LogUnavailable`).
        Nothing is changed then.
        """

    @abstractmethod
    def has_work(self, run_id: int, group: str) -> bool:
        """Whether anything of a replicated group waits for a replica: an event, an end of stream, a write action, an Input
        Set that is triggered (or was quarantined, and is retried), an Output Set that is not sent.

        What is in Input Sets that wait for more is no such work: a group may sleep with windows open.
        """

    @abstractmethod
    def request_scaling(
        self, run_id: int, group: str, replicas: int, *, by: str, reason: str = "", key: str | None = None
    ) -> ScalingRequest:
        """Ask for a number of replicas; older requests for the group that are open are refused with that.

        The request of the same `key` is returned if there is one, whatever has become of it. Raises `UnknownRun`, and
        `ProtocolViolation` for a number that the group cannot have or a run that has ended.
        """

    @abstractmethod
    def scalings(self, run_id: int, group: str | None = None) -> Sequence[ScalingRequest]:
        """All requests, the newest first."""

    @abstractmethod
    def settle_scaling(self, request_id: int, state: ScalingState, note: str = "") -> bool:
        """Accept, conclude or refuse a request (compare-and-set): False if that was settled otherwise.

        True as well if it is in that state already: then nothing changes. Raises `ProtocolViolation` if there is none.
        """

    # --- supervision --------------------------------------------------------------------------------------------------

    @abstractmethod
    def note_launch(self, run_id: int, group: str, recipe: LaunchRecipe) -> None:
        """How the group is to be launched from now on, whoever recovers it."""

    @abstractmethod
    def launch_recipe(self, run_id: int, group: str) -> LaunchRecipe | None:
        """None if nobody has said: such a group is launched only by the process that started its run."""

    def note_supervisor(self, name: str, *, pipeline: str | None = None, run_uid: str | None = None) -> None:
        """`note_supervisors` of one."""
        self.note_supervisors([SupervisorNote(name, pipeline, run_uid)])

    @abstractmethod
    def note_supervisors(self, notes: Sequence[SupervisorNote]) -> None:
        """Supervisors of these names are about to look for failed groups. Of two notes of one name the last one counts."""

    @abstractmethod
    def supervisors(self) -> Sequence[SupervisorRecord]:
        """Everybody who has looked for failed groups, the latest first."""

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
        """Have `ring` called when a driver is declared dead in this log, by whatever process; None where that cannot be.

        It is also called when listening begins, or has begun: what was announced before that must be looked for. A hint, as
        every wake-up: an announcement may be lost, and whoever listens polls as well. `ring` is called in any thread, and
        must neither wait nor ask the log. The store may be disposed of before the hearing is closed. Waits for nothing,
        and raises nothing if the log is unavailable.
        """

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
        """`progress`, `under_way` and `drivers` of several runs, in as many statements as of one."""

    @abstractmethod
    def references(self, run_id: int, prefix: str) -> Collection[str]:
        """References into the payload store, beginning with `prefix`, that EVENT_DATA holds."""

    @abstractmethod
    def session(self, ref: GroupRef) -> GroupSession: ...

    @abstractmethod
    def dispose(self) -> None:
        """Close every connection."""
