"""Groups and their drivers: claimed, registered, alive, declared dead, parked, asked to stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from airflow_logio.errors import FailurePoint
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupRef, LaunchRecipe, Load, Submission
from airflow_logio.store.records.status_records import GroupStatus


class GroupLog(ABC):
    """States of groups, and the incarnations of their drivers (design D8)."""

    @property
    def ends_old_driver_first(self) -> bool:
        """Whether a driver's process must be ended before its group can be claimed (a store that locks as a whole)."""
        return False

    @abstractmethod
    def groups(self, run_id: int) -> Sequence[GroupStatus]:
        """All groups of a run, by name; none if the log does not have the run."""

    @abstractmethod
    def group(self, run_id: int, group: str) -> GroupStatus:
        """One group of a run. Raises `UnknownRun` for a run or a group that the log does not have."""

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

        The first claim of a run, neither `by_user` nor with `request_id`, raises `NoPlace` if the drivers of other runs
        of its pipeline leave too few of `RunSpec.drivers_at_once`; nothing is changed then.

        If the fence row's lock is held for long, the holder is a driver that was stopped inside a transaction: its
        backend is ended (PostgreSQL).
        """

    @abstractmethod
    def runs_ahead(self, run_ids: Collection[int]) -> Mapping[int, int | None]:
        """If the first claim of a run would find a place now, or is over: how many runs of its pipeline that wait for one
        began before, without those for which there is a place as well. None if there is no place for it, or the
        run was given up.

        In one snapshot, by two statements for each pipeline, however many runs are asked for. Without those that the log
        does not have, and those whose row is damaged."""

    @abstractmethod
    def submitted(self, claim: Claim, *, log_path: str | None, launcher: DriverIdentity | None) -> bool:
        """Note that the claim's driver is on its way. False if the driver was quicker or the claim is void.

        `launcher` is the process on this machine that becomes the driver, or its JVM; None for a driver on a cluster. Of a
        driver that has registered, nothing is changed that it says of itself.
        """

    @abstractmethod
    def register(self, claim: Claim, identity: DriverIdentity, *, reported: Submission | None = None) -> GroupRef:
        """The driver takes its incarnation (nonce compared, once). Raises `Fenced` for any other process.

        `reported` is as what a driver on a cluster was submitted, as it finds out itself.
        """

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
    def declare_dead(
        self,
        ref: GroupRef,
        cause: str,
        *,
        failed_at: FailurePoint | None = None,
        was_taken: bool = False,
        unregistered: bool = False,
    ) -> bool:
        """Declare this incarnation dead, for a supervisor or for the driver itself. False if it was replaced or has
        ended.

        `failed_at` is where an operator's code raised: a claim that finds the same point too often parks the group.
        `was_taken`: its cluster manager took its room, or lost its node; the recovery that follows spends no budget.
        `unregistered`: what was judged is a driver that has not registered; False if it has meanwhile.
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

    @abstractmethod
    def note_launch(self, run_id: int, group: str, recipe: LaunchRecipe) -> None:
        """Note how every supervisor launches the group from now on."""

    @abstractmethod
    def launch_recipe(self, run_id: int, group: str) -> LaunchRecipe | None:
        """The noted recipe, or None. A group without one is launched only by the process that started its run."""
