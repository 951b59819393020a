"""Drivers that were submitted to a cluster manager: as what, what the manager says, and whether their end is confirmed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from airflow_logio.store.records.driver_records import Claim, GroupRef, LeftDriver, ManagerSaid, Submission


class ClusterLog(ABC):
    """What the log knows of drivers on clusters. None of it decides who may commit."""

    @abstractmethod
    def submitting(self, claim: Claim, submission: Submission) -> bool:
        """A driver of this claim is about to be submitted, as this. False if the claim is void, or something was noted before
        it: then nothing may be submitted."""

    @abstractmethod
    def note_id(self, ref: GroupRef, submission: Submission) -> None:
        """The manager's id of what was submitted is known, whatever has become of the claim. The first id stays; the end of
        the driver is asked for again if it was taken for confirmed."""

    @abstractmethod
    def note_said(self, ref: GroupRef, said: ManagerSaid) -> None:
        """What its manager says of a driver that has not registered; nothing happens once it has, or was replaced. Observers
        without a way to the manager use it (`GroupStatus.manager_said`)."""

    @abstractmethod
    def left_on_clusters(self, run_ids: Collection[int] | None = None, *, most: int = 1000) -> Sequence[LeftDriver]:
        """Drivers that are of no use any more and may still have room on a cluster: replaced ones, and those of groups or
        runs that have ended, as long as `note_gone` was not called. The newest claims first: room that is waited for
        was taken lately. None: of all runs."""

    @abstractmethod
    def note_taken(self, ref: GroupRef) -> None:
        """It is learned late that the manager took this driver's room, or lost its node: the recovery that followed spends no
        budget."""

    @abstractmethod
    def note_gone(self, ref: GroupRef) -> None:
        """The manager has confirmed the end of all that was submitted for this incarnation: it is not asked for again."""
