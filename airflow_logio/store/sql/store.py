"""`LogStore` over SQL: SQLite (one host) and PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_logio.errors import FailurePoint, Fenced, UnknownRun
from airflow_logio.protocol.replicas import Placement, Slot, SlotsSight
from airflow_logio.protocol.states import GroupState, RunState, ScalingState
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.lineage_port import LineageLog
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.port.unfenced_port import AddressBook, OutputLog
from airflow_logio.store.port.watch_port import Hearing
from airflow_logio.store.records.driver_records import (
    Claim,
    CodeChange,
    DriverIdentity,
    DriverRecord,
    GroupRef,
    KeptCode,
    LaunchRecipe,
    Load,
    Refused,
)
from airflow_logio.store.records.run_records import Run, RunSpec
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
from airflow_logio.store.records.upkeep_records import Collected, QuarantinedInputSet, Retried
from airflow_logio.store.rules.patience import Patience
from airflow_logio.store.rules.scaling_rules import Rescaling, shape_of
from airflow_logio.store.sql import (
    backends,
    beats,
    code_changes,
    drivers,
    failure_channel,
    generations,
    group_statuses,
    groups,
    hearings,
    maintenance,
    quarantine,
    runs,
    scaling_requests,
    schema,
    sights,
    slot_moves,
    slots,
    supervisors,
    wake,
)
from airflow_logio.store.sql.address_book import SqlAddressBook
from airflow_logio.store.sql.beat_check import BeatCheck
from airflow_logio.store.sql.engines import LockTimeout, TransactionConflict, beat_engine, log_engine, reading, writing
from airflow_logio.store.sql.kept_runs import KeptRuns
from airflow_logio.store.sql.lineage_log import SqlLineageLog
from airflow_logio.store.sql.output_log import SqlOutputLog
from airflow_logio.store.sql.session import SqlGroupSession
from airflow_logio.store.sql.wake import PostgresWaker, SqliteWaker, Waker

log = logging.getLogger(__name__)

T = TypeVar("T")


class SqlLogStore(LogStore):
    """Open with `open_store`, which checks the schema. On PostgreSQL, `engine` and `beats` are the same."""

    def __init__(self, engine: Engine, beats: Engine, *, patience: Patience | None = None) -> None:
        self.engine = engine
        self.beats = beats
        self.patience = patience or Patience()
        self._runs = KeptRuns()
        self._sessions: WeakSet[SqlGroupSession] = WeakSet()
        self._beat_check = BeatCheck(beats, is_alone=beats is not engine)

    @classmethod
    def at(
        cls, url: str, *, application: str = "logio", patience: Patience | None = None, connections: int | None = None
    ) -> SqlLogStore:
        """The log at `url`; `application` names the sessions on PostgreSQL, of which there are at most `connections`."""
        engine = log_engine(url, application=application, connections=connections)
        return cls(engine, beat_engine(url, engine), patience=patience)

    @property
    def ends_old_driver_first(self) -> bool:
        """A stopped writer shuts every process out of an SQLite file: its process must end before the fence can be
        raised."""
        return self.engine.dialect.name == "sqlite"

    # --- runs ---------------------------------------------------------------------------------------------------------

    def start_run(self, spec: RunSpec, *, alone: bool = False, code: bytes | None = None) -> Run:
        with writing(self.engine) as connection:
            return generations.start(connection, spec, alone=alone, code=code)

    def supersede(self, run_id: int) -> bool:
        try:
            return self._supersede(run_id)
        except LockTimeout:  # a driver that was declared dead was stopped inside a transaction
            for status in self.groups(run_id):
                if status.state is GroupState.DEAD:
                    self.end_backends(run_id, status.group, status.incarnation)
        except TransactionConflict as error:
            log.info("retrying: %s", error)
        return self._supersede(run_id)

    def _supersede(self, run_id: int) -> bool:
        with writing(self.engine) as connection:
            return generations.supersede(connection, self._run(connection, run_id))

    def find_run(self, uid: str) -> Run:
        with reading(self.engine) as connection:
            return runs.find(connection, uid)

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
        if dag_ids is not None and not dag_ids:
            return []
        given = {"pipeline": pipeline, "dag_run_id": dag_run_id, "state": state}
        with reading(self.engine) as connection:
            return runs.newest(connection, dag_ids, limit, named, **given)

    def finish_run(self, run_id: int) -> bool:
        with writing(self.engine) as connection:
            return runs.finish(connection, run_id)

    def quarantined(
        self, run_id: int, group: str | None = None, *, limit: int | None = None
    ) -> Sequence[QuarantinedInputSet]:
        with reading(self.engine) as connection:
            return quarantine.quarantined(connection, run_id, group, limit)

    def retry_quarantined(self, run_id: int, group: str | None = None) -> Retried:
        with writing(self.engine) as connection:
            return quarantine.retry(connection, self._run(connection, run_id), group)

    # --- garbage ------------------------------------------------------------------------------------------------------

    def collect(self, run_id: int, limit: int) -> Collected:
        with writing(self.engine) as connection:
            return maintenance.collect(connection, run_id, limit)

    def garbage(self, run_id: int) -> int:
        with reading(self.engine) as connection:
            return maintenance.garbage(connection, run_id)

    def removable(self, older_than_seconds: float, *, unfinished: bool = False) -> Sequence[Run]:
        with reading(self.engine) as connection:
            return maintenance.removable(connection, older_than_seconds, unfinished=unfinished)

    def remove_run(self, run_id: int, limit: int, *, unfinished: bool = False, keep_row: bool = False) -> Collected:
        with writing(self.engine) as connection:
            removed = maintenance.remove(connection, run_id, limit, unfinished=unfinished, keep_row=keep_row)
        with writing(self.beats) as connection:
            maintenance.remove_beats(connection, run_id)
        self._runs.drop(run_id)
        return removed

    # --- inside -------------------------------------------------------------------------------------------------------

    def _run(self, connection: Connection, run_id: int) -> Run:
        run = self._runs.get(run_id)
        if run is None:
            row = connection.execute(sa.select(schema.run).where(schema.run.c.run_id == run_id)).one_or_none()
            if row is None:
                raise UnknownRun(f"no run {run_id} is in the log")
            run = runs.to_run(row)
            self._runs.keep(run)
        return run

    # --- groups -------------------------------------------------------------------------------------------------------

    def groups(self, run_id: int) -> Sequence[GroupStatus]:
        with reading(self.engine) as connection:
            return group_statuses.statuses(connection, self.beats, [run_id])[run_id]

    def group(self, run_id: int, group: str) -> GroupStatus:
        with reading(self.engine) as connection:
            found = group_statuses.statuses(connection, self.beats, [run_id], group)[run_id]
        if not found:
            with reading(self.engine) as connection:
                run = self._run(connection, run_id)
            raise UnknownRun(f"run {run.spec.key} has no group {group!r}; it has {', '.join(run.spec.groups)}")
        return found[0]

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
        def attempt() -> Claim | Refused:
            return self._claim(run_id, group, expected, reason, by_user=by_user, request_id=request_id)

        made = self._past_stopped_driver(GroupRef(run_id, group, expected), attempt)
        if isinstance(made, Refused):
            raise made.error
        return made

    def _past_stopped_driver(self, ref: GroupRef, attempt: Callable[[], T]) -> T:
        """A driver that holds the fence row's lock for longer than a transaction takes was stopped inside one."""
        try:
            return attempt()
        except LockTimeout:
            self.end_backends(ref.run_id, ref.group, ref.incarnation)
        except TransactionConflict as error:
            log.info("retrying: %s", error)
        return attempt()

    def _claim(
        self, run_id: int, group: str, expected: int, reason: str, *, by_user: bool, request_id: int | None
    ) -> Claim | Refused:
        with writing(self.engine) as connection:
            run = self._run(connection, run_id)
            return groups.claim(
                connection, run, group, expected=expected, reason=reason, by_user=by_user, request_id=request_id
            )

    def end_backends(self, run_id: int, group: str, incarnation: int) -> int:
        """End the database sessions of a driver (none on SQLite) and return how many there were."""
        if self.engine.dialect.name != "postgresql":
            return 0
        with writing(self.engine) as connection:
            return backends.end(connection, run_id, group, incarnation)

    def code(self, run_id: int, number: int) -> KeptCode:
        with reading(self.engine) as connection:
            return code_changes.kept(connection, self._run(connection, run_id), number)

    def take_code(
        self, run_id: int, group: str, digest: str, fingerprint: str, *, archive: bytes | None = None, by: str
    ) -> int:
        with writing(self.engine) as connection:
            run = self._run(connection, run_id)
            return code_changes.take(connection, run, group, digest, fingerprint, by, archive)

    def code_changes(self, run_id: int) -> Sequence[CodeChange]:
        with reading(self.engine) as connection:
            return code_changes.changes(connection, run_id)

    def submitted(self, claim: Claim, *, log_path: str | None, launcher: DriverIdentity | None) -> bool:
        with writing(self.engine) as connection:
            return groups.submitted(connection, claim, log_path, launcher)

    def register(self, claim: Claim, identity: DriverIdentity) -> GroupRef:
        with writing(self.engine) as connection:
            if not groups.register(connection, claim, identity):
                raise Fenced(
                    f"incarnation {claim.incarnation} of group {claim.group!r} cannot be registered: it was replaced, "
                    "ended, or another process holds it; this driver exits before its first read"
                )
        return GroupRef(claim.run_id, claim.group, claim.incarnation, claim.code)

    def heartbeat(
        self, ref: GroupRef, beat: int, *, ready: bool, rss_bytes: int, load: Load | None = None
    ) -> GroupState:
        with reading(self.engine) as connection:
            desired = beats.wish(connection, ref)
        # A slow disk must not look like the death of every driver.
        with writing(self.beats, durable=False) as connection:
            beats.write(connection, ref, beat, ready=ready, rss_bytes=rss_bytes, load=load)
        return desired

    def check_heartbeats(self) -> None:
        self._beat_check.check()

    def declare_dead(self, ref: GroupRef, cause: str, *, failed_at: FailurePoint | None = None) -> bool:
        declared = self._end(ref, GroupState.DEAD, cause, failed_at)
        if declared:
            failure_channel.ring(self.engine)
        return declared

    def park(self, ref: GroupRef, error: str) -> bool:
        return self._end(ref, GroupState.PARKED, error)

    def halted(self, ref: GroupRef) -> bool:
        return self._end(ref, GroupState.HALTED, None)

    def _end(self, ref: GroupRef, target: GroupState, error: str | None, failed_at: FailurePoint | None = None) -> bool:
        def attempt() -> bool:
            with writing(self.engine) as connection:
                moved = groups.move(connection, ref, target, error=error)
                if moved:
                    groups.end_driver(connection, ref, error, failed_at)
                return moved

        return self._past_stopped_driver(ref, attempt)

    def request(self, run_id: int, group: str, desired: GroupState, *, incarnation: int | None = None) -> bool:
        with writing(self.engine) as connection:
            return groups.request(connection, self._run(connection, run_id), group, desired, incarnation)

    # --- replicas -----------------------------------------------------------------------------------------------------

    def slots(self, run_id: int, group: str) -> Sequence[Slot]:
        with reading(self.engine) as connection:
            shape_of(self._run(connection, run_id), group)
            return slots.of_group(connection, run_id, group)

    def slots_of_run(self, run_id: int) -> Mapping[str, Sequence[Slot]]:
        with reading(self.engine) as connection:
            return slots.of_run(connection, run_id)

    def rescale(
        self,
        run_id: int,
        group: str,
        placement: Placement,
        *,
        retire: Collection[str] = (),
        request_id: int | None = None,
    ) -> int:
        def attempt() -> Rescaling:
            with writing(self.engine) as connection:
                run = self._run(connection, run_id)
                return slot_moves.rescale(connection, run, group, placement, retire, request_id)

        try:
            done = attempt()
        except LockTimeout:
            raise
        except TransactionConflict as error:
            log.info("retrying: %s", error)
            done = attempt()
        wake.announce(self.engine, run_id, sorted(done.concerned))
        return done.count

    def slots_sight(self, groups: Collection[tuple[int, str]]) -> Mapping[tuple[int, str], SlotsSight]:
        with reading(self.engine) as connection:
            found: dict[int, Run] = {}
            for run_id in {run_id for run_id, _ in groups}:
                with suppress(UnknownRun):
                    found[run_id] = self._run(connection, run_id)
            return slots.sight(connection, found, groups)

    def request_scaling(
        self, run_id: int, group: str, replicas: int, *, by: str, reason: str = "", key: str | None = None
    ) -> ScalingRequest:
        with writing(self.engine) as connection:
            run = self._run(connection, run_id)
            return scaling_requests.request(connection, run, group, replicas, by=by, reason=reason, key=key)

    def scalings(self, run_id: int, group: str | None = None) -> Sequence[ScalingRequest]:
        with reading(self.engine) as connection:
            return scaling_requests.requests(connection, run_id, group)

    def settle_scaling(self, request_id: int, state: ScalingState, note: str = "") -> bool:
        with writing(self.engine) as connection:
            return scaling_requests.settle(connection, request_id, state, note)

    # --- supervision --------------------------------------------------------------------------------------------------

    def note_launch(self, run_id: int, group: str, recipe: LaunchRecipe) -> None:
        with writing(self.engine) as connection:
            supervisors.note_launch(connection, run_id, group, recipe)

    def launch_recipe(self, run_id: int, group: str) -> LaunchRecipe | None:
        with reading(self.engine) as connection:
            return supervisors.launch_recipe(connection, run_id, group)

    def note_supervisors(self, notes: Sequence[SupervisorNote]) -> None:
        if notes:
            with writing(self.beats) as connection:
                supervisors.note(connection, notes)

    def forget_supervisor(self, name: str) -> None:
        with writing(self.beats) as connection:
            supervisors.forget(connection, name)

    def supervisors(self) -> Sequence[SupervisorRecord]:
        with reading(self.beats) as connection:
            return supervisors.supervisors(connection)

    def sight(self, uids: Collection[str] | None) -> Sequence[RunSight]:
        if uids is not None and not uids:
            return []
        with reading(self.engine) as connection:
            return sights.sight(connection, self.beats, uids, self._runs)

    def listen(self, ring: Callable[[], None]) -> Hearing | None:
        return hearings.hear(self.engine, ring)

    @property
    def output(self) -> OutputLog:
        return SqlOutputLog(self.beats)

    @property
    def addresses(self) -> AddressBook:
        return SqlAddressBook(self.beats)

    # --- lineage ------------------------------------------------------------------------------------------------------

    @contextmanager
    def lineage(self, run: Run) -> Iterator[LineageLog]:
        with reading(self.engine) as connection:
            yield SqlLineageLog(connection, run)

    # --- figures ------------------------------------------------------------------------------------------------------

    def drivers(self, run_id: int) -> Sequence[DriverRecord]:
        return drivers.driver_records(self.engine, self.beats, [run_id])[run_id]

    def progress(self, run_id: int) -> Sequence[PortProgress]:
        with reading(self.engine) as connection:
            return runs.counters(connection, [run_id])[run_id][0]

    def under_way(self, run_id: int) -> UnderWay:
        with reading(self.engine) as connection:
            return runs.counters(connection, [run_id])[run_id][1]

    def figures(self, run_ids: Collection[int]) -> Mapping[int, RunFigures]:
        if not run_ids:
            return {}
        # The drivers first: the counters include everything that they have done by then.
        records = drivers.driver_records(self.engine, self.beats, run_ids)
        with reading(self.engine) as connection:
            found = runs.counters(connection, run_ids)
            aside = quarantine.counts(connection, run_ids)
        return {run_id: RunFigures(*found[run_id], records[run_id], aside.get(run_id, {})) for run_id in run_ids}

    def references(self, run_id: int, prefix: str) -> Collection[str]:
        table = schema.event_data
        named = sa.select(table.c.ref).where(table.c.run_id == run_id, table.c.ref.startswith(prefix, autoescape=True))
        with reading(self.engine) as connection:
            return frozenset(connection.execute(named).scalars())

    def session(self, ref: GroupRef) -> GroupSession:
        waker: Waker
        if self.engine.dialect.name == "postgresql":
            waker = PostgresWaker(self.engine, ref)
        else:
            waker = SqliteWaker(self.engine)
        session = SqlGroupSession(self.engine, ref, waker, self.patience)
        self._sessions.add(session)
        return session

    def dispose(self) -> None:
        for session in tuple(self._sessions):
            session.close()
        self.engine.dispose()
        if self.beats is not self.engine:
            self.beats.dispose()
