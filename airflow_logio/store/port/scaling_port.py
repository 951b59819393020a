"""Replicas: the slots they own, moves of slots, requests to scale (Algorithms 12 and 13, design D11)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight
from airflow_logio.protocol.states import ScalingState
from airflow_logio.store.records.status_records import ScalingRequest


class ScalingLog(ABC):
    """Slots of replicated groups, and requests to scale."""

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
