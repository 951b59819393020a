"""One incarnation of a group in its process: register, load, run epochs, end."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.driver.endings import EXIT_CODES, Ending, cause_of, declare_dead, ending_of, lost_commits, park
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.epochs import Epochs
from airflow_logio.driver.services import Services
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import Fenced, LogioError, LogUnavailable, OperatorFailed
from airflow_logio.launch import bundle
from airflow_logio.launch.driver_config import FINISHED, DriverConfig, needs_spark
from airflow_logio.launch.processes import own_identity
from airflow_logio.protocol.states import ALIVE, GroupState, RunState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef
from airflow_logio.store.records.run_records import Allowed, Run
from airflow_logio.store.records.upkeep_records import RemovedRun
from airflow_logio.store.rules.run_rules import check_graph
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads, sweep_group

log = logging.getLogger(__name__)

MOST_GIVEN_UP = 1_000
"""How many runs are looked for that were given up: of one DAG run, and of one partition."""


class Driver:
    """One incarnation. `run` returns the exit code. `sessions` may have begun to make the Spark session."""

    def __init__(self, config: DriverConfig, sessions: SparkSessions) -> None:
        self._config = config
        self._sessions = sessions
        claim = config.claim
        self._store: LogStore = Patience().call("opening the log", lambda: open_store(config.log_url, driver=claim))
        self._payloads: Payloads | None = None
        self._run: Run | None = None
        """None until it is read from the log."""

    def run(self) -> int:
        claim = self._config.claim
        crash_here(CrashPoint.BEFORE_REGISTER)
        identity, reported = own_identity(), self._config.submission
        try:
            ref = self._store.patience.call(
                "registering", lambda: self._store.register(claim, identity, reported=reported)
            )
        except Fenced as error:
            log.warning("%s", error)
            return EXIT_CODES[Ending.REPLACED]
        crash_here(CrashPoint.AFTER_REGISTER)
        log.info("group %s, incarnation %d: registered, pid %d", ref.group, ref.incarnation, os.getpid())
        with Services(self._config, self._store, ref, self._sessions, identity.parent_pid) as services:
            try:
                self._drive(ref, services)
            except Exception as error:
                return self._ended(ref, error)
        return FINISHED

    def _drive(self, ref: GroupRef, services: Services) -> None:
        """Returns when the group has finished or halted; raises whatever else ends this incarnation."""
        if self._config.payloads:
            self._payloads = Payloads(self._config.payloads)
        pipeline = self._load()
        services.calls.limits = pipeline.limits
        self._prepare_spark(pipeline, ref, services)
        run = self._read_run()
        _check_fingerprint(pipeline, run, ref)
        self._sessions.patience = run.spec.replay_seconds
        self._hear_wish(ref, services)
        services.standby.begin(run)
        settings = self._settings(pipeline, run, ref, services)
        self._sweep(ref, below=ref.incarnation)
        gc.freeze()  # what is loaded stays; searches for cycles, during which all threads stand still, now leave it out
        if Epochs(settings, self._store, ref).run():
            self._sweep(ref, below=ref.incarnation + 1)
            if settings.direct is not None:
                settings.direct.may_linger()

    def _load(self) -> Pipeline:
        config = self._config
        return bundle.load(bundle.PipelineRef(config.module, config.attr, Path(config.bundle_root)))

    def _prepare_spark(self, pipeline: Pipeline, ref: GroupRef, services: Services) -> None:
        if not needs_spark(pipeline, ref.group):
            services.needs_no_spark.set()
            return
        self._sessions.shared_by(sum(needs_spark(pipeline, group) for group in pipeline.applications))
        self._sessions.begin()
        if ref.incarnation > 1:
            threading.Thread(target=self._sessions.end_earlier, name="logio-earlier", daemon=True).start()

    def _read_run(self) -> Run:
        uid = self._config.claim.run_uid
        self._run = run = self._store.patience.call("reading the run", lambda: self._store.find_run(uid))
        return run

    def _hear_wish(self, ref: GroupRef, services: Services) -> None:
        """Called before anything is read: a driver that recovers a draining group reads nothing further."""
        status = self._store.patience.call("reading the wish", lambda: self._store.group(ref.run_id, ref.group))
        if status.desired in services.wishes:
            services.wishes[status.desired].set()

    def _settings(self, pipeline: Pipeline, run: Run, ref: GroupRef, services: Services) -> EpochSettings:
        ended = self._store.patience.call("reading the runs that were given up", lambda: given_up(self._store, run))
        log_uid = self._store.patience.call("reading the uid of the log", self._store.log_uid)
        identity = WriterIdentity(
            run.uid,
            ref.incarnation,
            run.created_at,
            ended,
            pipeline=run.spec.key.pipeline,
            log_uid=log_uid,
            ordinal=run.ordinal,
            takes_over=Allowed.TAKE_OVER in run.spec.allowed,
            may_be_empty=Allowed.EMPTY in run.spec.allowed,
        )
        connections = Connections(
            pipeline.name,
            self._config.connections,
            identity,
            run.spec.replay_seconds,
            services.calls,
            run.spec.params,
        )
        return EpochSettings(
            pipeline.for_run(run.spec.params),
            run,
            ref.group,
            connections,
            self._sessions,
            partial(self._hold_sources, run, services.drain),
            services.halt,
            services.drain,
            slots_of=partial(self._store.slots, run.run_id),
            load=services.meter,
            payloads=self._payloads,
            direct=services.open_direct_channel(pipeline, ref, self._store, self._config.log_url),
        )

    def _hold_sources(self, run: Run, drain: threading.Event, stopping: threading.Event) -> None:
        """A benchmark's sources wait until every group is ready; a recovered driver does not wait."""
        held = run.spec.hold_sources and self._config.claim.incarnation == 1
        while held and not stopping.is_set() and not drain.is_set():
            try:
                groups = self._store.groups(run.run_id)
                if all(group.ready or group.state is GroupState.RETIRED for group in groups):
                    return
            except LogUnavailable as error:
                log.debug("waiting for the groups: %s", error)
            stopping.wait(0.1)

    def _ended(self, ref: GroupRef, error: Exception) -> int:
        """Tell the log what it should know of an end with this error; returns the exit code. Raises `LogioError`."""
        if isinstance(error, Fenced) and self._is_latest(ref):
            error = lost_commits(ref, error)
        ending = ending_of(error)
        match ending:
            case Ending.REPLACED:
                log.warning("%s", error)
                self._sweep(ref, below=ref.incarnation + 1)  # it must clear away what it wrote since it was replaced
            case Ending.PARKED:
                log.error("group %s is parked: %s", ref.group, cause_of(error))
                park(self._store, ref, cause_of(error))
            case Ending.DEAD | Ending.SILENT:
                # The error has the frames of the author's code: they come before all the frames of ours.
                log.error("group %s failed and will be recovered: %s", ref.group, cause_of(error), exc_info=error)
        if ending is Ending.DEAD:
            at = error.at if isinstance(error, OperatorFailed) else None
            declare_dead(self._store, ref, cause_of(error), at)
        return EXIT_CODES[ending]

    def _is_latest(self, ref: GroupRef) -> bool:
        """Whether the log knows no later driver of the group. A later one is in the log before it writes anywhere."""
        status = self._store.patience.call("asking who came later", lambda: self._store.group(ref.run_id, ref.group))
        return status.incarnation == ref.incarnation and status.state in ALIVE

    def _sweep(self, ref: GroupRef, *, below: int) -> None:
        """Clear away payloads that incarnations below have written and not committed; the next driver tries again."""
        payloads, run = self._payloads, self._run
        if payloads is None or run is None:
            return
        crash_here(CrashPoint.BEFORE_SWEEP)
        try:
            sweep_group(payloads, self._store, run, ref.group, below=below)
        except LogioError as error:
            log.warning("the payloads of group %s are not swept: %s", ref.group, error)
        crash_here(CrashPoint.AFTER_SWEEP)


def given_up(store: LogStore, run: Run) -> tuple[str, ...]:
    """The runs in whose place this one has begun: their drivers may live where they cannot be reached.

    These are the earlier generations of its DAG run, and superseded runs of its partition, whatever DAG run began them.
    Nothing else of a partition is given up: two runs of one day that append may live side by side.
    """
    key, found = run.spec.key, list[Run]()
    if key.generation > 1:
        same_key = store.list_runs(
            pipeline=key.pipeline, dag_ids=[key.dag_id], dag_run_id=key.dag_run_id, limit=MOST_GIVEN_UP
        )
        found += [one for one in same_key if one.spec.key.generation < key.generation]
    if run.partition is not None:
        found += store.list_runs(
            pipeline=key.pipeline, partition=run.partition, state=RunState.SUPERSEDED, limit=MOST_GIVEN_UP
        )
    uids = {one.uid for one in found} | {one.uid for one in _removed(store, run) if one.state is RunState.SUPERSEDED}
    return tuple(sorted(uids - {run.uid}))


def _removed(store: LogStore, run: Run) -> Iterator[RemovedRun]:
    """Runs as in `given_up`, which are no longer in the log: their drivers may live all the same."""
    key = run.spec.key
    if key.generation > 1:
        same_name = store.removed_runs(pipeline=key.pipeline, dag_run_id=key.dag_run_id, limit=MOST_GIVEN_UP)
        yield from (one for one in same_name if one.key.dag_id == key.dag_id and one.key.generation < key.generation)
    if run.partition is not None:
        day = (run.partition, run.partition)
        yield from store.removed_runs(pipeline=key.pipeline, partitions=day, limit=MOST_GIVEN_UP)


def _check_fingerprint(pipeline: Pipeline, run: Run, ref: GroupRef) -> None:
    """A run resumes with the pipeline it was started with (design D13); changed code alone only warns."""
    found = pipeline.fingerprint()
    check_graph(run, found["graph"], pipeline.describe())
    if ref.code:
        log.info("code %d, which a person has taken for the group", ref.code)
    elif found["code"] != run.spec.code_fingerprint:
        log.warning("the code of pipeline %s has changed since the run was started", pipeline.name)
