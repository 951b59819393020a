"""What displays know of one run at one moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_logio.commands import with_log
from airflow_logio.errors import UnknownRun
from airflow_logio.protocol.replicas import Slot
from airflow_logio.protocol.states import CONCLUDED, ENDED, GroupState, RunState
from airflow_logio.status.condition import (
    MISSING_SECONDS,
    RunCondition,
    awaits_airflow,
    condition_of,
    condition_of_run,
    silent_seconds,
)
from airflow_logio.status.recoveries import Recovery, recoveries
from airflow_logio.status.snapshot import Snapshot, SnapshotSeries
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.day_records import DayRead, days_read_by
from airflow_logio.store.records.driver_records import WAIT, CodeChange, DriverRecord
from airflow_logio.store.records.run_records import ReplicatedShape, Run, Supervision
from airflow_logio.store.records.status_records import GroupStatus, ScalingRequest, SupervisorRecord
from airflow_logio.store.records.upkeep_records import QuarantineCount, QuarantinedInputSet
from airflow_logio.store.rules.described_runs import check_whole
from airflow_logio.supervision.presence import last_look, missing, paused

LONG_CALL_SECONDS = 10.0
"""A call of an author's code that has run for so long is shown."""
WORKING = (GroupState.RUNNING, GroupState.DRAINING)
"""States in which a driver works."""


@dataclass(frozen=True, slots=True)
class LastError:
    """Why a group is not running, or why its latest failed driver failed; `incarnation` is that driver's."""

    group: str
    incarnation: int
    text: str
    log_path: str | None
    is_present: bool
    """True if this error made the group dead or parked; False for an error of an earlier driver."""


@dataclass(frozen=True, slots=True)
class Report:
    """`at` is this machine's clock, in seconds since the epoch."""

    at: float
    run: Run
    snapshot: Snapshot
    drivers: Sequence[DriverRecord]
    quarantined: Sequence[QuarantinedInputSet]
    supervisor: SupervisorRecord | None
    """The supervisor that last looked for failed groups of this run."""
    replicated: Sequence[Replicas] = ()
    code_changes: Sequence[CodeChange] = ()
    """Which group got other code than the run has begun with, by whom."""
    log: str | None = None
    """Connection id of the log, for commands in sentences; None for the default."""
    set_aside: Mapping[str, QuarantineCount] = field(default_factory=dict)
    """By group, how many Input Sets are in quarantine: `quarantined` may have fewer."""
    is_paused: bool = False
    """Whether Airflow is known to have paused the DAG of an unfinished run."""
    days_read: Sequence[DayRead] = ()
    """The closed days of folders that it has read, and what has become of them since."""

    @property
    def unsupervised(self) -> str | None:
        """What is wrong if no supervisor looks for failed groups of an unfinished run."""
        if self.has_ended or (self._has_just_begun and not self._is_of_a_terminal) or self._awaits_supervise:
            return None
        return missing(self.run, self.supervisor)

    @property
    def _awaits_supervise(self) -> bool:
        """Task `supervise` has not had its first turn, or cannot have one: that is no failure of it."""
        of_task = self.run.spec.supervision is Supervision.TASK
        return of_task and (self.supervisor is None or self.is_paused)

    @property
    def _has_just_begun(self) -> bool:
        return self.at - self.run.created_at < MISSING_SECONDS

    @property
    def _is_of_a_terminal(self) -> bool:
        return self.run.spec.supervision is Supervision.PROCESS

    @property
    def condition(self) -> RunCondition:
        """The run's state, for people, with the next command."""
        groups = [view.status for view in self.snapshot.groups]
        return condition_seen(self.run, groups, self.at, self.supervisor, self.log, is_paused=self.is_paused)

    @property
    def warnings(self) -> Sequence[str]:
        """Sentences about a DAG that is paused, a missing supervisor, drivers that are silent for longer than their lease,
        and days that the run was computed from and that were replaced since."""
        of_airflow = [paused(self.run) if self.is_paused else None, self.unsupervised]
        stale = [f"computed from {one}" for one in self.days_read if one.is_stale]
        return [*(self._written(one) for one in of_airflow if one), *map(self._of_silence, self._silent), *stale]

    @property
    def _silent(self) -> Sequence[GroupStatus]:
        return [
            view.status
            for view in self.snapshot.groups
            if (silent_seconds(view.status) or 0.0) > self.run.spec.lease.seconds
        ]

    def _written(self, text: str) -> str:
        return with_log(text, self.log)

    @staticmethod
    def _of_silence(status: GroupStatus) -> str:
        where = f"process {status.identity.pid} on {status.identity.host}" if status.identity else "its process"
        return (
            f"group {status.group} is {condition_of(status)}: {where} may have ended or be cut off, and no supervisor has "
            "declared it dead"
        )

    @property
    def recoveries(self) -> Sequence[Recovery]:
        return recoveries(self.drivers)

    @property
    def last_errors(self) -> Sequence[LastError]:
        """One for each group that ever had an error."""
        failed: dict[str, DriverRecord] = {}
        for driver in self.drivers:
            before = failed.get(driver.group)
            if driver.error and (before is None or driver.incarnation > before.incarnation):
                failed[driver.group] = driver
        found = (
            self._last_error(view.status, failed.get(view.name))
            for view in self.snapshot.groups
            if view.name not in self.run.spec.replicated  # its replicas have the errors
        )
        return [error for error in found if error is not None]

    @property
    def long_calls(self) -> Sequence[tuple[str, str]]:
        """(group, what its driver is in and for how long), where a call of the author's code takes long, or something waits
        for an external system."""
        loads = [(view.name, view.status.load) for view in self.snapshot.groups if view.status.state in WORKING]
        return [
            (name, f"in {load.call} for {load.call_seconds:.0f} s")
            for name, load in loads
            if load is not None and (load.call.startswith(WAIT) or load.call_seconds >= LONG_CALL_SECONDS)
        ]

    @property
    def has_ended(self) -> bool:
        """The run is marked as ended; or it no longer moves by itself, as a group is parked or halted and none is running."""
        states = {view.status.state for view in self.snapshot.groups}
        return self.run.state is not RunState.RUNNING or (states <= ENDED and not self.is_finishing)

    @property
    def is_finishing(self) -> bool:
        """Every group has finished, but the run is not yet marked as finished: its supervisor does that next."""
        return self.run.state is RunState.RUNNING and self.snapshot.finished

    def _last_error(self, status: GroupStatus, failed: DriverRecord | None) -> LastError | None:
        """`failed` is the group's latest driver that ended with an error."""
        if status.error and status.state in (GroupState.DEAD, GroupState.PARKED):
            text = self._written(status.error)
            return LastError(status.group, status.incarnation, text, status.log_path, is_present=True)
        if failed is None:
            return None
        text = self._written(failed.error or "")
        return LastError(status.group, failed.incarnation, text, failed.log_path, is_present=False)


def condition_seen(
    run: Run,
    groups: Sequence[GroupStatus],
    at: float,
    looked: SupervisorRecord | None,
    log: str | None,
    *,
    is_paused: bool = False,
) -> RunCondition:
    """The condition of a run, with a command that asks the log that was asked now, by its connection id."""
    found = condition_of_run(run, groups, at, looked, is_paused=is_paused)
    return RunCondition(found.word, with_log(found.next_step, log))


IsPaused = Callable[[str], bool]
"""Whether Airflow is known to have paused the DAG of this id."""


def not_known(_dag_id: str) -> bool:
    """For a reader without an Airflow to ask."""
    return False


class Reporter:
    """Looks at one run, and keeps what rates need between two looks.

    `run` is the run, or a name for `LogStore.find_run`, `log` the connection id that commands in sentences name. Of
    quarantined Input Sets, a report has the `most_quarantined` oldest ones. A look has the same few statements however large
    the run is. `is_paused` asks Airflow about the DAG of an unfinished run.
    """

    def __init__(
        self,
        store: LogStore,
        run: str | Run,
        *,
        log: str | None = None,
        most_quarantined: int | None = None,
        is_paused: IsPaused = not_known,
    ) -> None:
        self._store = store
        self._is_paused = is_paused
        self._wanted = run
        self._log = log
        self._most_quarantined = most_quarantined
        self._watched: tuple[str, SnapshotSeries] | None = None
        """The run's uid, and its snapshots."""

    def look(self) -> Report:
        """Raises `UnknownRun`, `LogUnavailable`."""
        store = self._store
        if self._watched is None:
            first = self._wanted if isinstance(self._wanted, Run) else store.find_run(self._wanted)
            self._watched = first.uid, SnapshotSeries(first)
        uid, series = self._watched  # a later run of the same name is another run
        seen = store.sight([uid])
        run = check_whole(seen[0].run) if seen else _found(store, uid)  # removed meanwhile, or without groups
        groups = seen[0].groups if seen else ()
        # The drivers are read before the counters, which include everything that they have done by then.
        figures = store.figures([run.run_id])[run.run_id]
        return Report(
            time.time(),
            run,
            series.next(groups, figures.ports, figures.under_way),
            figures.drivers,
            store.quarantined(run.run_id, limit=self._most_quarantined),
            last_look(store.supervisors(), run),
            replicas_of(store, run, groups),
            store.code_changes(run.run_id),
            self._log,
            figures.quarantined,
            is_paused=awaits_airflow(run) and self._is_paused(run.spec.key.dag_id),
            days_read=store.days_read([run.run_id]).get(run.run_id, ()) if days_read_by(run.spec) else (),
        )


def _found(store: LogStore, uid: str) -> Run:
    run = store.find_run(uid)
    if run.uid != uid:  # a DAG run may be named as this one's uid is
        raise UnknownRun(f"run {uid} is no longer in the log")
    return run


# --- replicated groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Replicas:
    """A replicated group at one moment."""

    group: str
    shape: ReplicatedShape
    slots: Sequence[Slot]
    requests: Sequence[ScalingRequest]
    """The newest first."""
    statuses: Mapping[str, GroupStatus]
    """The states of all replicas, in their order."""

    @property
    def in_use(self) -> list[GroupStatus]:
        return [status for status in self.statuses.values() if status.state not in CONCLUDED]

    @property
    def shown(self) -> list[GroupStatus]:
        """Replicas worth showing: in use, or finished while owning slots."""
        return [status for status in self.statuses.values() if status.state is not GroupState.RETIRED]

    def owned_by(self, replica: str) -> list[int]:
        """Numbers of the slots that a replica owns, including finished ones."""
        return [slot.number for slot in self.slots if slot.owner == replica]

    @property
    def done(self) -> int:
        return sum(slot.done for slot in self.slots)


def replicas_of(store: LogStore, run: Run, groups: Sequence[GroupStatus]) -> Sequence[Replicas]:
    """All replicated groups of a run; `groups` are the states of its groups. Raises `LogUnavailable`."""
    if not run.spec.replicated:
        return ()
    requests = store.scalings(run.run_id)
    slots = store.slots_of_run(run.run_id)
    statuses = {status.group: status for status in groups}
    return [
        Replicas(
            group,
            shape,
            slots.get(group, ()),
            [one for one in requests if one.group == group],
            {name: statuses[name] for name in shape.replicas if name in statuses},
        )
        for group, shape in run.spec.replicated.items()
    ]
