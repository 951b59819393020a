"""One incarnation of a group in its process: register, rebuild, run, end."""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from airflow_logio.crash import CrashPoint, crash_here
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.driver.call_guard import CallGuard
from airflow_logio.driver.direct import DirectChannel
from airflow_logio.driver.driver_output import LogRotation, OutputSender
from airflow_logio.driver.epoch import GroupEpoch, moves_explain, operators_of
from airflow_logio.driver.epoch_settings import EpochSettings
from airflow_logio.driver.first_failure import FirstFailure
from airflow_logio.driver.heartbeat import Heartbeat, LoadMeter
from airflow_logio.driver.idle_epoch import IdleEpoch
from airflow_logio.driver.manual_epoch import ManualEpoch, manual_operator
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.driver.standby_keeper import StandbyKeeper
from airflow_logio.errors import (
    ConfigurationError,
    EpochVoid,
    ExternalUnavailable,
    Fenced,
    LogInconsistent,
    LogioError,
    LogUnavailable,
    OperatorFailed,
    Park,
    ProtocolViolation,
    SparkLost,
)
from airflow_logio.launch import bundle
from airflow_logio.launch.bundle import needs_spark
from airflow_logio.launch.driver_config import FAILED, FINISHED, PARKED, REPLACED, DriverConfig
from airflow_logio.launch.driver_folders import discard_keytab
from airflow_logio.launch.driver_log import LOG_NAME, OutputParts
from airflow_logio.launch.processes import own_identity, this_host
from airflow_logio.launch.redaction import Redaction
from airflow_logio.protocol.life import Life, LifeStep
from airflow_logio.protocol.recovery import Recovered
from airflow_logio.protocol.replicas import replicated_group
from airflow_logio.protocol.states import ALIVE, GroupState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.port.session_port import GroupSession
from airflow_logio.store.records.driver_records import GroupRef, Load
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.graph_changes import check_graph
from airflow_logio.store.rules.patience import Patience
from airflow_logio.systems.call_watch import Call, CallWatch
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads import Payloads, sweep_group

log = logging.getLogger(__name__)


class Driver:
    """One incarnation. `run` returns the exit code. `sessions` may have begun to make the Spark session."""

    def __init__(self, config: DriverConfig, sessions: SparkSessions) -> None:
        self._config = config
        self._sessions = sessions
        claim = config.claim
        self._store: LogStore = Patience().call("opening the log", lambda: open_store(config.log_url, driver=claim))
        self._payloads: Payloads | None = None
        self._halt = threading.Event()
        self._drain = threading.Event()
        self._wishes = {GroupState.HALTED: self._halt, GroupState.DRAINING: self._drain}
        self._ready = threading.Event()
        self._folder = Path.cwd()
        self._standby = StandbyKeeper(config, self._store, self._folder, self._is_ready, ends=self._halt.is_set)
        self._meter = LoadMeter()
        self._calls = CallWatch()
        self._direct: DirectChannel | None = None

    def run(self) -> int:
        claim = self._config.claim
        crash_here(CrashPoint.BEFORE_REGISTER)
        identity = own_identity()
        try:
            ref = self._store.patience.call("registering", lambda: self._store.register(claim, identity))
        except Fenced as error:
            log.warning("%s", error)
            return REPLACED
        crash_here(CrashPoint.AFTER_REGISTER)
        log.info("group %s, incarnation %d: registered, pid %d", ref.group, ref.incarnation, os.getpid())
        heartbeat = Heartbeat(
            self._store,
            ref,
            self._is_ready,
            self._wishes,
            self._exit_replaced,
            self._load_figures,
            identity.parent_pid,
        )
        heartbeat.start()
        guard = CallGuard(self._calls, partial(self._exit_overrun, ref))
        guard.start()
        rotation = LogRotation(Path(LOG_NAME).absolute())  # a driver works in the folder of its log
        rotation.start()
        sender = OutputSender(self._output_parts(ref))
        sender.start()
        try:
            return self._drive(ref)
        finally:
            self._standby.stop()
            if self._direct is not None:
                self._direct.say()  # while it is still sent to the log
            rotation.stop()
            sender.stop()
            guard.stop()
            heartbeat.stop()
            self._sessions.stop()
            discard_keytab(self._folder)
            if self._direct is not None:  # last: nothing else is held while receivers lag
                self._direct.stop()

    def _prepare_spark(self, pipeline: Pipeline, ref: GroupRef) -> None:
        if not needs_spark(pipeline, ref.group):
            self._ready.set()
            return
        self._sessions.shared_by(sum(needs_spark(pipeline, group) for group in pipeline.applications))
        self._sessions.begin()
        if ref.incarnation > 1:
            threading.Thread(target=self._sessions.end_earlier, name="logio-earlier", daemon=True).start()

    def _output_parts(self, ref: GroupRef) -> OutputParts:
        config = self._config
        urls = (config.log_url, *config.connections.values())
        redaction = Redaction(urls, config.payloads, {**os.environ, **config.environment})
        return OutputParts(self._store.output, ref, Path(LOG_NAME).absolute(), this_host(), redaction)

    def _drive(self, ref: GroupRef) -> int:
        session = self._store.session(ref)
        run: Run | None = None
        try:
            if self._config.payloads:
                self._payloads = Payloads(self._config.payloads)
            pipeline = self._load()
            self._calls.limits = pipeline.limits
            self._prepare_spark(pipeline, ref)
            run = found = self._store.patience.call(
                "reading the run", lambda: self._store.find_run(self._config.claim.run_uid)
            )
            _check_fingerprint(pipeline, run, ref)
            self._sessions.patience = run.spec.replay_seconds
            self._hear_wish(ref)
            self._standby.begin(run)
            identity = WriterIdentity(
                run.uid,
                ref.incarnation,
                run.created_at,
                is_fresh=run.spec.key.generation > 1,
            )
            connections = Connections(
                pipeline.name, self._config.connections, identity, run.spec.replay_seconds, self._calls, run.spec.params
            )
            self._direct = DirectChannel(pipeline, ref, self._store)
            self._direct.start(self._config.log_url)
            settings = EpochSettings(
                pipeline,
                run,
                ref.group,
                connections,
                self._sessions,
                lambda stopping: self._hold_sources(found, stopping),
                self._halt,
                self._drain,
                slots_of=partial(self._store.slots, run.run_id),
                load=self._meter,
                payloads=self._payloads,
                direct=self._direct,
            )
            self._sweep(run, ref, below=ref.incarnation)
            gc.freeze()  # what is loaded stays; searches for cycles, during which all threads stand still, now leave it out
            finished = self._epochs(settings, ref)
            if finished:
                self._sweep(run, ref, below=ref.incarnation + 1)
                self._direct.may_linger()
        except Fenced as error:
            if self._is_latest(ref):
                return self._park(session, _lost_commits(ref, error))
            log.warning("%s", error)
            if run is not None:  # it must clear away what it wrote since it was replaced
                self._sweep(run, ref, below=ref.incarnation + 1)
            return REPLACED
        except (Park, ExternalUnavailable, ConfigurationError) as error:
            return self._park(session, error)
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            log.exception("group %s failed and will be recovered", ref.group)
            if not isinstance(error, LogUnavailable):
                at = error.at if isinstance(error, OperatorFailed) else None
                crash_here(CrashPoint.BEFORE_REPORT)
                self._store.patience.call("reporting", lambda: self._store.declare_dead(ref, cause, failed_at=at))
                crash_here(CrashPoint.AFTER_REPORT)
            return FAILED
        return FINISHED

    def _park(self, session: GroupSession, error: LogioError) -> int:
        cause = f"{type(error).__name__}: {error}"
        log.error("group %s is parked: %s", session.ref.group, cause)
        crash_here(CrashPoint.BEFORE_PARK)
        self._store.patience.call("parking", lambda: session.park(cause))
        crash_here(CrashPoint.AFTER_PARK)
        return PARKED

    def _is_latest(self, ref: GroupRef) -> bool:
        """Whether the log knows no later driver of the group. A later one is in the log before it writes anywhere."""
        status = self._store.patience.call("asking who came later", lambda: self._store.group(ref.run_id, ref.group))
        return status.incarnation == ref.incarnation and status.state in ALIVE

    def _hear_wish(self, ref: GroupRef) -> None:
        """Called before anything is read: a driver that recovers a draining group reads nothing further."""
        status = self._store.patience.call("reading the wish", lambda: self._store.group(ref.run_id, ref.group))
        if status.desired in self._wishes:
            self._wishes[status.desired].set()

    def _load(self) -> Pipeline:
        config = self._config
        return bundle.load(bundle.PipelineRef(config.module, config.attr, Path(config.bundle_root)))

    def _epochs(self, settings: EpochSettings, ref: GroupRef) -> bool:
        """Run epochs until the group is finished or halted; a void epoch is rebuilt in place under the next one.

        So is one that failed at the first thing that an operator of a first incarnation had to do.
        """
        life = Life(is_replica=replicated_group(settings.group) in settings.pipeline.replicated)
        first = FirstFailure(self._config.claim.incarnation)
        while True:
            with closing(self._store.session(ref)) as session:
                try:
                    return self._live(life, settings, session)
                except EpochVoid as void:
                    log.warning("%s; rebuilding from the log", void)
                    life.void()
                except OperatorFailed as error:
                    first.check(error)
                    log.warning("%s\ntrying again in this process, from the log", error)
                    life.void()
                except SparkLost as error:
                    if error.must_end or not self._sessions.returns():
                        raise
                    log.warning(
                        "%s\nanother session is being made; what was under way begins again, from the log", error
                    )
                    life.void()
            life.stopped()  # `GroupEpoch.run` has joined its threads

    def _live(self, life: Life, settings: EpochSettings, session: GroupSession) -> bool:
        """One epoch. True if the group has finished, False if it has halted. Raises `EpochVoid`."""
        if self._begun(life, settings, session).run():
            return True
        life.halt()
        self._halted(session.ref)
        return False

    def _begun(
        self, life: Life, settings: EpochSettings, session: GroupSession
    ) -> GroupEpoch | IdleEpoch | ManualEpoch:
        """Take the steps of `Life` that begin an epoch."""
        epoch, slots = 0, None
        recovered: Recovered
        while True:
            match life.wants:
                case LifeStep.OPEN:
                    epoch = self._open(session, raise_epoch=life.raises_epoch)
                    if (by_hand := manual_operator(settings.pipeline, settings.group)) is not None:
                        return ManualEpoch(settings, session, epoch, by_hand)
                    life.done(LifeStep.OPEN)
                case LifeStep.ASK_SLOTS:
                    slots = self._ask_slots(life, session)
                case LifeStep.READ:
                    crash_here(CrashPoint.BEFORE_RECOVERY)
                    with moves_explain(session, slots):
                        recovered = session.recover(operators_of(settings, slots))
                    life.done(LifeStep.READ)
                case LifeStep.REBUILD:
                    life.done(LifeStep.REBUILD)
                    return GroupEpoch(settings, session, epoch, recovered, slots)
                case LifeStep.WAIT:
                    return IdleEpoch(settings, session, partial(self._retire, session.ref))
                case _:
                    raise ProtocolViolation("a void epoch is stopped before the next one begins")

    def _halted(self, ref: GroupRef) -> None:
        """The threads of the epoch are joined, and none of them has failed."""
        log.info("group %s halts on request", ref.group)
        crash_here(CrashPoint.BEFORE_HALT)
        self._store.patience.call("halting", lambda: self._store.halted(ref))
        crash_here(CrashPoint.AFTER_HALT)

    def _ask_slots(self, life: Life, session: GroupSession) -> Mapping[int, int]:
        slots = self._store.patience.call("asking for its slots", session.slots)
        log.info("replica %s owns slots %s", session.ref.group, sorted(slots) or "none")
        life.done(LifeStep.ASK_SLOTS)
        if not slots:
            life.owns_nothing()
        return slots

    def _open(self, session: GroupSession, *, raise_epoch: bool) -> int:
        if raise_epoch:
            crash_here(CrashPoint.BEFORE_REBUILD)
        fence = self._store.patience.call("opening the fence", lambda: session.open(raise_epoch=raise_epoch))
        if raise_epoch:
            crash_here(CrashPoint.AFTER_REBUILD)
        return fence.epoch

    def _sweep(self, run: Run, ref: GroupRef, *, below: int) -> None:
        """Clear away payloads that incarnations below have written and not committed; the next driver tries again."""
        if self._payloads is None:
            return
        crash_here(CrashPoint.BEFORE_SWEEP)
        try:
            sweep_group(self._payloads, self._store, run, ref.group, below=below)
        except LogioError as error:
            log.warning("the payloads of group %s are not swept: %s", ref.group, error)
        crash_here(CrashPoint.AFTER_SWEEP)

    def _retire(self, ref: GroupRef) -> None:
        self._store.rescale(ref.run_id, replicated_group(ref.group), {}, retire=[ref.group])

    def _is_ready(self) -> bool:
        return self._ready.is_set() or self._sessions.is_ready()

    def _hold_sources(self, run: Run, stopping: threading.Event) -> None:
        """A benchmark's sources wait until every group is ready; a recovered one waits for no one."""
        held = run.spec.hold_sources and self._config.claim.incarnation == 1
        while held and not stopping.is_set() and not self._drain.is_set():
            try:
                groups = self._store.groups(run.run_id)
                if all(group.ready or group.state is GroupState.RETIRED for group in groups):
                    return
            except LogUnavailable as error:
                log.debug("waiting for the groups: %s", error)
            stopping.wait(0.1)

    def _load_figures(self) -> Load:
        call, seconds = self._calls.longest()
        return replace(
            self._meter.read(),
            call=call,
            call_seconds=seconds,
            application=self._sessions.application,
            standby=self._standby.figures(),
        )

    def _exit_overrun(self, ref: GroupRef, call: Call, said: str) -> None:
        """Called by the guard's thread, while the thread that is in the call cannot be reached."""
        code = FAILED
        try:
            if call.limit is not None and call.limit.on_overrun == "park":
                crash_here(CrashPoint.BEFORE_PARK)
                self._store.patience.call("parking", lambda: self._store.session(ref).park(said))
                crash_here(CrashPoint.AFTER_PARK)
                code = PARKED
            else:
                crash_here(CrashPoint.BEFORE_REPORT)
                self._store.patience.call(
                    "reporting", lambda: self._store.declare_dead(ref, said, failed_at=call.point)
                )
                crash_here(CrashPoint.AFTER_REPORT)
        except LogioError as error:  # whatever the log says or does not say: this driver is of no use any more
            log.error("%s: %s", type(error).__name__, error)
        _exit(code)

    def _exit_replaced(self, why: str) -> None:
        log.warning("group %s, incarnation %d exits: %s", self._config.claim.group, self._config.claim.incarnation, why)
        _exit(REPLACED)


def _exit(code: int) -> NoReturn:
    """End the process at once: some of its threads can no longer be reached."""
    discard_keytab(Path())  # a driver works in its own folder
    sys.stderr.flush()
    os._exit(code)


def _lost_commits(ref: GroupRef, error: Fenced) -> LogInconsistent:
    return LogInconsistent(
        f"{error}, yet the log knows no later driver of group {ref.group!r} than incarnation {ref.incarnation}: it has lost "
        "commits (was an older copy restored, or did a standby take over that lacked the last ones?). Bring back the log "
        "that has them, or give the run up and start a fresh one"
    )


def _check_fingerprint(pipeline: Pipeline, run: Run, ref: GroupRef) -> None:
    """A run resumes with the pipeline it was started with (design D13); changed code alone only warns."""
    found = pipeline.fingerprint()
    check_graph(run, found["graph"], pipeline.describe())
    if ref.code:
        log.info("code %d, which a person has taken for the group", ref.code)
    elif found["code"] != run.spec.code_fingerprint:
        log.warning("the code of pipeline %s has changed since the run was started", pipeline.name)
