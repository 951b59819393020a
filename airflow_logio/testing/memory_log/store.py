"""`LogStore` in memory: for users' tests, the simulator and the contract suite. Thread-safe; one process."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec

from airflow_logio.errors import FailurePoint, Fenced, RunRemoved, UnknownRun
from airflow_logio.protocol.effects import LATE
from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight
from airflow_logio.protocol.states import LAUNCHING, GroupState, RunState, ScalingState
from airflow_logio.protocol.values import Port
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LineageLog, StoredBody
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.port.unfenced_port import KEPT_INCARNATIONS, AddressBook, DirectAddress, OutputLog, OutputPart
from airflow_logio.store.port.watch_port import Hearing
from airflow_logio.store.records.day_records import DayRead, LateArrival, PartitionBounds, PartitionRun
from airflow_logio.store.records.driver_records import (
    Claim,
    CodeChange,
    DriverIdentity,
    DriverRecord,
    GroupRef,
    KeptCode,
    LaunchRecipe,
    LeftDriver,
    Load,
    ManagerSaid,
    Refused,
    Submission,
)
from airflow_logio.store.records.run_records import Allowed, ConcurrentRuns, Run, RunSpec
from airflow_logio.store.records.start_records import Attempt, Start
from airflow_logio.store.records.status_records import (
    GroupStatus,
    PortProgress,
    RunFigures,
    RunSight,
    ScalingRequest,
    SupervisorNote,
    SupervisorRecord,
    UnderWay,
)
from airflow_logio.store.records.upkeep_records import BY_PERSON, Collected, QuarantinedInputSet, RemovedRun, Retried
from airflow_logio.store.rules.removed_rules import said_of, when_and_why
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.testing.memory_log import groups, retention, runs, slots
from airflow_logio.testing.memory_log.lineage_log import MemoryLineageLog
from airflow_logio.testing.memory_log.session import MemoryGroupSession
from airflow_logio.testing.memory_log.tables import BeatRow, GroupKey, RunRow, SupervisorRow, Tables

log = logging.getLogger(__name__)


class MemoryHearing(Hearing):
    """One listener to the announcements of a log."""

    def __init__(self, hearings: Hearings, ring: Callable[[], None]) -> None:
        self._hearings = hearings
        self.ring = ring

    def close(self) -> None:
        self._hearings.leave(self)


class Hearings:
    """All listeners to one log's failures. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: set[MemoryHearing] = set()

    def join(self, ring: Callable[[], None]) -> MemoryHearing:
        """Rings once, because listening has begun."""
        hearing = MemoryHearing(self, ring)
        with self._lock:
            self._all.add(hearing)
        ring()
        return hearing

    def leave(self, hearing: MemoryHearing) -> None:
        with self._lock:
            self._all.discard(hearing)

    def announce(self) -> None:
        """Call it after the commit: the listeners then read the log."""
        with self._lock:
            heard_by = tuple(self._all)
        for hearing in heard_by:
            try:
                hearing.ring()
            except Exception as error:  # an event loop that has ended
                log.debug("a listener was not rung: %s", error)


class MemoryOutputLog(OutputLog):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def add(self, ref: GroupRef, number: int, position: int, text: str, *, mark: str = "", oldest: int = 1) -> None:
        tables, group = self._tables, GroupKey(ref.run_id, ref.group)
        with tables.transaction():  # what is not put wakes no session, as with heartbeats
            parts = tables.output.setdefault((group, ref.incarnation), {})
            part = OutputPart(ref.group, ref.incarnation, number, position, mark, tables.now(), text)
            parts.setdefault(number, part)
            for gone in [one for one in parts if one < oldest]:
                del parts[gone]
            if number == 1:
                first = ref.incarnation - KEPT_INCARNATIONS
                for old in [key for key in tables.output if key[0] == group and key[1] < first]:
                    del tables.output[old]

    def parts(
        self, run_id: int, group: str, incarnation: int, *, after: int = 0, most: int | None = None
    ) -> Sequence[OutputPart]:
        with self._tables.transaction():
            parts = self._tables.output.get((GroupKey(run_id, group), incarnation), {})
            found = [parts[number] for number in sorted(parts) if number > after]
        return found if most is None else found[max(0, len(found) - most) :]

    def written_since(self, run_ids: Collection[int], at: float, *, most: int) -> Mapping[int, Sequence[OutputPart]]:
        found: dict[int, list[OutputPart]] = {}
        with self._tables.transaction():
            for key, incarnation in sorted(self._tables.output):
                parts = self._tables.output[key, incarnation]
                late = [parts[number] for number in sorted(parts) if parts[number].at > at][-most:]
                if key.run_id in run_ids and late:
                    found.setdefault(key.run_id, []).extend(late)
        return found


class MemoryAddressBook(AddressBook):
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def put(self, ref: GroupRef, address: DirectAddress) -> None:
        key = GroupKey(ref.run_id, ref.group)
        with self._tables.transaction():  # what is not put wakes no session, as with heartbeats
            before = self._tables.addresses.get(key)
            if before is None or before.incarnation <= address.incarnation:
                self._tables.addresses[key] = address

    def of_group(self, run_id: int, group: str) -> DirectAddress | None:
        with self._tables.transaction():
            return self._tables.addresses.get(GroupKey(run_id, group))


class MemoryLogStore(LogStore):
    """Every instance is a log of its own; sessions of one instance share it, as drivers share a database."""

    ends_old_driver_first = False

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.patience = Patience()
        self.tables = Tables(clock)
        self._uid = uuid.uuid4().hex
        self._hearings = Hearings()

    # --- runs ---------------------------------------------------------------------------------------------------------

    def start_run(
        self,
        spec: RunSpec,
        *,
        concurrent: ConcurrentRuns = ConcurrentRuns.ISOLATED,
        code: bytes | None = None,
        above: int = 0,
    ) -> Run:
        with self.tables.transaction():
            return runs.start(self.tables, spec, concurrent=concurrent, code=code, above=above)

    def start_attempt(
        self,
        spec: RunSpec,
        attempt: Attempt,
        *,
        concurrent: ConcurrentRuns = ConcurrentRuns.ISOLATED,
        code: bytes | None = None,
    ) -> Start:
        with self.tables.transaction():
            return runs.start_attempt(self.tables, spec, attempt, concurrent=concurrent, code=code)

    def supersede(
        self, run_id: int, *, because: str | None = None, above: int = 0, allowed: Collection[Allowed] = ()
    ) -> bool:
        with self.tables.transaction():
            return runs.supersede(self.tables, run_id, because=because, above=above, allowed=allowed)

    def find_run(self, uid: str, *, damaged: bool = False) -> Run:
        with self.tables.transaction():
            newest_first = list(reversed(self.tables.runs.values()))
        exact = [row for row in newest_first if row.uid == uid]
        exact = exact or [row for row in newest_first if row.dag_run_id == uid]
        matching = exact or [row for row in newest_first if row.uid.startswith(uid)]
        if not matching:
            there = (row for row in newest_first if row.spec.partition and row.state is not RunState.REMOVING)
            matching = exact = [row for row in there if uid == f"{row.spec.key.pipeline}@{row.spec.partition}"]
        if not matching:
            if (removed := self.removed_run(uid)) is not None:
                raise RunRemoved(said_of(removed), when_and_why(removed))
            raise UnknownRun(f"no run {uid!r} is in the log; `logio status` lists the runs")
        if not exact and len(matching) > 1:
            raise UnknownRun(f"{uid!r} is the beginning of {len(matching)} runs")
        return matching[0].as_run()

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
        part = (named or "").lower()

        def is_meant(row: RunRow) -> bool:
            key, name = row.spec.key, row.dag_run_id
            return (
                pipeline in (None, key.pipeline)
                and (dag_ids is None or key.dag_id in dag_ids)
                and dag_run_id in (None, name)
                and partition in (None, row.spec.partition)
                and (partitions is None or partitions[0] <= (row.spec.partition or "") <= partitions[1])
                and state in (None, row.state)
                and any(part in said.lower() for said in (key.pipeline, key.dag_id, name, row.spec.partition or ""))
            )

        with self.tables.transaction():
            rows = [row for row in self.tables.runs.values() if is_meant(row)]
            return [row.as_run() for row in reversed(rows)][:limit]

    def finish_run(self, run_id: int) -> bool:
        with self.tables.transaction():
            return runs.finish(self.tables, run_id)

    def told_by(self, run_id: int, task: str) -> Any | None:
        with self.tables.transaction():
            return runs.told_by(self.tables, run_id, task)

    def note_told(self, run_id: int, task: str, value: Any) -> None:
        with self.tables.transaction():
            runs.note_told(self.tables, run_id, task, value)

    def quarantined(
        self, run_id: int, group: str | None = None, *, limit: int | None = None
    ) -> Sequence[QuarantinedInputSet]:
        with self.tables.transaction():
            return runs.quarantined(self.tables, run_id, group)[:limit]

    def retry_quarantined(self, run_id: int, group: str | None = None) -> Retried:
        with self.tables.transaction():
            return runs.retry_quarantined(self.tables, run_id, group)

    def replace_body(
        self, run_id: int, sender: Port, event_id: int, before: StoredBody, header: bytes, body: bytes
    ) -> None:
        with self.tables.transaction():
            runs.replace_body(self.tables, run_id, sender, event_id, before, header, body)

    # --- garbage ------------------------------------------------------------------------------------------------------

    def collect(self, run_id: int, limit: int) -> Collected:
        with self.tables.transaction():
            return retention.collect_run(self.tables, run_id, limit)

    def garbage(self, run_id: int) -> int:
        with self.tables.transaction():
            return retention.garbage(self.tables, run_id)

    def removable(self, older_than_seconds: float, *, unfinished: bool = False) -> Sequence[Run]:
        with self.tables.transaction():
            return retention.removable(self.tables, older_than_seconds, unfinished=unfinished)

    def remove_run(
        self, run_id: int, limit: int, *, unfinished: bool = False, keep_row: bool = False, reason: str = BY_PERSON
    ) -> Collected:
        with self.tables.transaction():
            return retention.remove(self.tables, run_id, limit, unfinished=unfinished, keep_row=keep_row, reason=reason)

    def take_turns(self, pause_seconds: float, *, pipeline: str | None = None) -> Mapping[str, float]:
        with self.tables.transaction():
            return retention.take_turns(self.tables, pause_seconds, pipeline)

    def expired(self, pipeline: str, limit: int) -> Sequence[Run]:
        with self.tables.transaction():
            return retention.expired(self.tables, pipeline, limit)

    def removed_up_to(self, pipeline: str) -> int:
        with self.tables.transaction():
            return retention.removed_up_to(self.tables, pipeline)

    def removed_run(self, name: str) -> RemovedRun | None:
        with self.tables.transaction():
            return retention.removed_run(self.tables, name)

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
        with self.tables.transaction():
            found = sorted(self.tables.removed.values(), key=lambda one: one.ordinal, reverse=not oldest_first)
        return [
            one
            for one in found
            if pipeline in (None, one.key.pipeline)
            and dag_run_id in (None, one.key.dag_run_id)
            and (partitions is None or partitions[0] <= (one.partition or "") <= partitions[1])
            and (ordinals is None or ordinals[0] <= one.ordinal <= ordinals[1])
        ][:limit]

    def pipelines_due(self) -> Mapping[str, Mapping[str, str]]:
        with self.tables.transaction():
            return {name: due for name, due in sorted(self.tables.due.items()) if due is not None}

    def first_partition(self, pipeline: str) -> str | None:
        with self.tables.transaction():
            runs_ = [row.spec for row in self.tables.runs.values() if row.spec.key.pipeline == pipeline]
            gone = [one.partition for one in self.tables.removed.values() if one.key.pipeline == pipeline]
        return min((key for key in (*(one.partition for one in runs_), *gone) if key is not None), default=None)

    def give_up_removed(self, uid: str) -> bool:
        with self.tables.transaction():
            return retention.give_up_removed(self.tables, uid)

    # --- groups -------------------------------------------------------------------------------------------------------

    def groups(self, run_id: int) -> Sequence[GroupStatus]:
        with self.tables.transaction():
            return [groups.status_of(self.tables, key) for key in sorted(self.tables.groups) if key.run_id == run_id]

    def group(self, run_id: int, group: str) -> GroupStatus:
        with self.tables.transaction():
            if GroupKey(run_id, group) not in self.tables.groups:
                raise UnknownRun(f"run {run_id} has no group {group!r}")
            return groups.status_of(self.tables, GroupKey(run_id, group))

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
        with self.tables.transaction():
            key = GroupKey(run_id, group)
            made = groups.claim(self.tables, key, expected, reason, by_user=by_user, request_id=request_id)
        if isinstance(made, Refused):
            raise made.error
        return made

    def runs_ahead(self, run_ids: Collection[int]) -> Mapping[int, int | None]:
        with self.tables.transaction():
            return groups.ahead(self.tables, run_ids)

    def code(self, run_id: int, number: int) -> KeptCode:
        with self.tables.transaction():
            return runs.kept_code(self.tables, run_id, number)

    def take_code(
        self, run_id: int, group: str, digest: str, fingerprint: str, *, archive: bytes | None = None, by: str
    ) -> int:
        with self.tables.transaction():
            return runs.take_code(self.tables, run_id, group, digest, fingerprint, by, archive)

    def code_changes(self, run_id: int) -> Sequence[CodeChange]:
        with self.tables.transaction():
            return runs.code_changes(self.tables, run_id)

    def submitted(self, claim: Claim, *, log_path: str | None, launcher: DriverIdentity | None) -> bool:
        with self.tables.transaction():
            return groups.submitted(self.tables, claim, log_path, launcher)

    def register(self, claim: Claim, identity: DriverIdentity, *, reported: Submission | None = None) -> GroupRef:
        with self.tables.transaction():
            return groups.register(self.tables, claim, identity, reported)

    def heartbeat(
        self, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None = None
    ) -> GroupState:
        tables, key = self.tables, GroupKey(ref.run_id, ref.group)
        with tables.transaction():
            fence = tables.fences.get(key)
            if fence is None or fence.incarnation != ref.incarnation:
                raise Fenced(f"group {ref.group!r}: incarnation {ref.incarnation} was replaced")
            tables.beats[key, ref.incarnation] = BeatRow(beat, tables.now(), ready, rss_bytes, load)  # wakes no session
            return tables.groups[key].desired

    def check_heartbeats(self) -> None:
        pass

    def declare_dead(
        self,
        ref: GroupRef,
        cause: str,
        *,
        failed_at: FailurePoint | None = None,
        was_taken: bool = False,
        unregistered: bool = False,
    ) -> bool:
        with self.tables.transaction():
            if unregistered and self.tables.groups[GroupKey(ref.run_id, ref.group)].state not in LAUNCHING:
                return False
            declared = groups.end(self.tables, ref, GroupState.DEAD, cause, failed_at, was_taken=was_taken)
        if declared:
            self._hearings.announce()
        return declared

    def park(self, ref: GroupRef, error: str) -> bool:
        with self.tables.transaction():
            return groups.end(self.tables, ref, GroupState.PARKED, error)

    def halted(self, ref: GroupRef) -> bool:
        with self.tables.transaction():
            return groups.end(self.tables, ref, GroupState.HALTED, None)

    def request(self, run_id: int, group: str, desired: GroupState, *, incarnation: int | None = None) -> bool:
        with self.tables.transaction():
            return groups.request(self.tables, GroupKey(run_id, group), desired, incarnation)

    # --- drivers on clusters ------------------------------------------------------------------------------------------

    def submitting(self, claim: Claim, submission: Submission) -> bool:
        with self.tables.transaction():
            return groups.submitting(self.tables, claim, submission)

    def note_id(self, ref: GroupRef, submission: Submission) -> None:
        with self.tables.transaction():
            groups.note_id(self.tables, ref, submission)

    def note_said(self, ref: GroupRef, said: ManagerSaid) -> None:
        with self.tables.transaction():
            groups.note_said(self.tables, ref, said)

    def note_taken(self, ref: GroupRef) -> None:
        with self.tables.transaction():
            groups.note_of_driver(self.tables, ref, was_taken=True)

    def note_gone(self, ref: GroupRef) -> None:
        with self.tables.transaction():
            groups.note_of_driver(self.tables, ref, gone_at=self.tables.now())

    def left_on_clusters(self, run_ids: Collection[int] | None = None, *, most: int = 1000) -> Sequence[LeftDriver]:
        with self.tables.transaction():
            return groups.left_on_clusters(self.tables, run_ids, most)

    # --- replicas -----------------------------------------------------------------------------------------------------

    def slots(self, run_id: int, group: str) -> Sequence[Slot]:
        with self.tables.transaction():
            return slots.of_group(self.tables, run_id, group)

    def slots_of_run(self, run_id: int) -> Mapping[str, Sequence[Slot]]:
        with self.tables.transaction():
            replicated = self.tables.runs[run_id].spec.replicated
            return {group: slots.of_group(self.tables, run_id, group) for group in replicated}

    def rescale(
        self,
        run_id: int,
        group: str,
        placement: Placement,
        *,
        retire: Collection[str] = (),
        request_id: int | None = None,
    ) -> int:
        with self.tables.transaction():
            return slots.rescale(self.tables, run_id, group, placement, retire, request_id)

    def slots_sight(self, groups: Collection[tuple[int, str]]) -> Mapping[tuple[int, str], SlotsSight]:
        with self.tables.transaction():
            return slots.sight(self.tables, groups)

    def request_scaling(
        self, run_id: int, group: str, replicas: int, *, by: str, reason: str = "", key: str | None = None
    ) -> ScalingRequest:
        with self.tables.transaction():
            return slots.request(self.tables, run_id, group, replicas, by=by, reason=reason, key=key)

    def scalings(self, run_id: int, group: str | None = None) -> Sequence[ScalingRequest]:
        with self.tables.transaction():
            return slots.requests(self.tables, run_id, group)

    def settle_scaling(self, request_id: int, state: ScalingState, note: str = "") -> bool:
        with self.tables.transaction():
            return slots.settle(self.tables, request_id, state, note)

    # --- supervision --------------------------------------------------------------------------------------------------

    def note_launch(self, run_id: int, group: str, recipe: LaunchRecipe) -> None:
        tables, key = self.tables, GroupKey(run_id, group)
        with tables.transaction():
            if key in tables.groups:
                stored = msgspec.json.decode(msgspec.json.encode(recipe), type=LaunchRecipe)
                tables.put(tables.groups, key, replace(tables.groups[key], launch=stored))

    def launch_recipe(self, run_id: int, group: str) -> LaunchRecipe | None:
        with self.tables.transaction():
            row = self.tables.groups.get(GroupKey(run_id, group))
        return None if row is None else row.launch

    def note_supervisors(self, notes: Sequence[SupervisorNote]) -> None:
        tables = self.tables
        with tables.transaction():
            for one in notes:
                tables.supervisors[one.name] = SupervisorRow(one.pipeline, one.run_uid, tables.now())

    def forget_supervisor(self, name: str) -> None:
        with self.tables.transaction():
            self.tables.supervisors.pop(name, None)

    def supervisors(self) -> Sequence[SupervisorRecord]:
        tables = self.tables
        with tables.transaction():
            found = [
                SupervisorRecord(name, row.pipeline, row.run_uid, tables.now() - row.at)
                for name, row in tables.supervisors.items()
            ]
        return sorted(found, key=lambda record: (record.age_seconds, record.name))

    def sight(self, uids: Collection[str] | None) -> Sequence[RunSight]:
        tables = self.tables
        with tables.transaction():
            seen = [
                row
                for row in tables.runs.values()
                if (row.state is RunState.RUNNING if uids is None else row.uid in uids)
            ]
            return [
                RunSight(
                    row.as_run(),
                    [groups.status_of(tables, key) for key in sorted(tables.groups) if key.run_id == row.run_id],
                    slots.latest_requests(tables, row.run_id),
                )
                for row in seen
            ]

    def listen(self, ring: Callable[[], None]) -> Hearing | None:
        return self._hearings.join(ring)

    @property
    def output(self) -> OutputLog:
        return MemoryOutputLog(self.tables)

    @property
    def addresses(self) -> AddressBook:
        return MemoryAddressBook(self.tables)

    # --- lineage ------------------------------------------------------------------------------------------------------

    @contextmanager
    def lineage(self, run: Run) -> Iterator[LineageLog]:
        with self.tables.transaction():
            snapshot = MemoryLineageLog(self.tables, run)
        yield snapshot

    # --- figures ------------------------------------------------------------------------------------------------------

    def drivers(self, run_id: int) -> Sequence[DriverRecord]:
        with self.tables.transaction():
            return groups.driver_records(self.tables, run_id)

    def progress(self, run_id: int) -> Sequence[PortProgress]:
        with self.tables.transaction():
            counters = self.tables.counters.items()
            rows = [row for (run, _, way), row in counters if run == run_id and way != LATE]
        return sorted(rows, key=lambda row: (row.port, row.direction))

    def under_way(self, run_id: int) -> UnderWay:
        with self.tables.transaction():
            return groups.under_way(self.tables, run_id)

    def figures(self, run_ids: Collection[int]) -> Mapping[int, RunFigures]:
        return {
            run_id: RunFigures(
                self.progress(run_id),
                self.under_way(run_id),
                self.drivers(run_id),
                runs.quarantine_counts(self.quarantined(run_id)),
            )
            for run_id in run_ids
        }

    def computed_from(self, uid: str) -> Sequence[Run]:
        with self.tables.transaction():
            return runs.computed_from(self.tables, uid)

    def days_read(self, run_ids: Collection[int]) -> Mapping[int, Sequence[DayRead]]:
        with self.tables.transaction():
            return runs.days_read(self.tables, run_ids)

    def partition_bounds(self, pipeline: str) -> PartitionBounds | None:
        with self.tables.transaction():
            return runs.partition_bounds(self.tables, pipeline)

    def partition_runs(self, pipeline: str, bounds: PartitionBounds, *, most: int) -> Sequence[PartitionRun]:
        with self.tables.transaction():
            return runs.partition_runs(self.tables, pipeline, bounds, most)

    def partition_records(
        self, pipeline: str, bounds: PartitionBounds, operators: Collection[str]
    ) -> Mapping[int, Mapping[tuple[Port, str], int]]:
        with self.tables.transaction():
            return runs.partition_records(self.tables, pipeline, bounds, operators)

    def late_arrivals(
        self, pipeline: str, partitions: PartitionBounds, brought_by: PartitionBounds, operators: Collection[str]
    ) -> Sequence[LateArrival]:
        with self.tables.transaction():
            return runs.late_arrivals(self.tables, pipeline, partitions, brought_by, operators)

    def references(self, run_id: int, prefix: str) -> Collection[str]:
        with self.tables.transaction():
            bodies = self.tables.bodies.items()
            return frozenset(
                row.ref for key, row in bodies if key.run_id == run_id and row.ref and row.ref.startswith(prefix)
            )

    def log_uid(self) -> str:
        return self._uid

    def session(self, ref: GroupRef) -> GroupSession:
        return MemoryGroupSession(self.tables, ref)

    def dispose(self) -> None:
        """There is nothing to close."""
