"""What observers ask: who supervises, how runs stand, their figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from airflow_logio.protocol.states import RunState
from airflow_logio.protocol.values import Port
from airflow_logio.store.records.day_records import DayRead, LateArrival, PartitionBounds, PartitionRun
from airflow_logio.store.records.driver_records import DriverRecord
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import (
    GroupStatus,
    PortProgress,
    RunFigures,
    RunSight,
    SupervisorNote,
    SupervisorRecord,
    UnderWay,
)


class Hearing(ABC):
    """One listener to the announcements of a log, until it is closed (`LogStore.listen`)."""

    @abstractmethod
    def close(self) -> None:
        """Stop ringing. Never blocks, and is harmless when repeated."""


class WatchLog(ABC):
    """Runs as supervisors and displays see them."""

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
        """The runs of these uids, whatever their state, or all that are unfinished (None): oldest first, in one snapshot.

        Uids that the log does not have are left out. One statement on PostgreSQL, however many runs are asked for; one more
        for runs that this store sees for the first time, and one more if a run among them has replicated groups.
        """

    def unfinished(
        self, *, pipeline: str | None = None, run_uid: str | None = None
    ) -> Sequence[tuple[Run, Sequence[GroupStatus]]]:
        """Unfinished runs, oldest first, with their groups, in one snapshot: all, of one pipeline, or this one."""
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

    @abstractmethod
    def drivers(self, run_id: int) -> Sequence[DriverRecord]:
        """Every driver that the run has had, one record per incarnation, in the order in which they were claimed."""

    @abstractmethod
    def progress(self, run_id: int) -> Sequence[PortProgress]:
        """Counters of the ports of a run, by port and direction."""

    @abstractmethod
    def under_way(self, run_id: int) -> UnderWay:
        """What is acknowledged or logged, and not done yet. Reads counters, not events."""

    @abstractmethod
    def figures(self, run_ids: Collection[int]) -> Mapping[int, RunFigures]:
        """`progress`, `under_way`, `drivers`, and numbers of `quarantined`, of many runs in as many statements as of one."""

    @abstractmethod
    def partition_bounds(self, pipeline: str) -> PartitionBounds | None:
        """From which partition to which one runs of a pipeline are in the log; None if it has no run of a partition."""

    @abstractmethod
    def partition_runs(self, pipeline: str, bounds: PartitionBounds, *, most: int) -> Sequence[PartitionRun]:
        """The runs of all partitions within the bounds, both included, the last partition first, and of a partition the
        youngest run first; at most so many. Runs that are being removed are left out. One statement, by an index."""

    @abstractmethod
    def partition_records(
        self, pipeline: str, bounds: PartitionBounds, operators: Collection[str]
    ) -> Mapping[int, Mapping[tuple[Port, str], int]]:
        """Run → (port, direction) → how many records these operators have sent or written, as `PortProgress` has them, for
        the runs of the partitions within the bounds. What has sent nothing is left out. One statement, by an index."""

    @abstractmethod
    def late_arrivals(
        self, pipeline: str, partitions: PartitionBounds, brought_by: PartitionBounds, operators: Collection[str]
    ) -> Sequence[LateArrival]:
        """Records of these partitions that came with runs of the partitions within `brought_by`, as these operators have
        counted them; also with runs that do not stand any more. By partition, then by run. One statement, by indexes."""

    @abstractmethod
    def computed_from(self, uid: str) -> Sequence[Run]:
        """The runs that have noted a day as this run had left it, or was filling it, in the order in which they have begun;
        not those that were given up since."""

    @abstractmethod
    def days_read(self, run_ids: Collection[int]) -> Mapping[int, Sequence[DayRead]]:
        """Run → the days that it has read, and what has become of each since, for the runs that have noted some: the
        transaction that begins a run notes them. One statement, by indexes."""
