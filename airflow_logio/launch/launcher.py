"""Launching the driver of a group (design D10): claim in the log, then spark-submit. Short; it waits for nothing.

The claim comes first: the incarnation exists, and the old driver is fenced, before any new process does. Dead after the
claim: the launch state's deadline passes and the group is dead. Dead after spark-submit was started: the driver registers
by itself. Two launchers at once: one claim fails.
"""

from __future__ import annotations

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.pipeline.definition import variable_values
from airflow_logio.errors import ConfigurationError, Fenced, LogioError, ProtocolViolation, UnknownRun
from airflow_logio.launch import cluster_launch, driver_folders, driver_process, processes, spark_submit
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle, code_for, own_pipeline
from airflow_logio.launch.driver_config import (
    DriverKind,
    Launch,
    StandbyRecipe,
    driver_kind,
    needs_of,
)
from airflow_logio.launch.driver_log import LOG_NAME, add_rest
from airflow_logio.launch.driver_process import ForkServer
from airflow_logio.launch.managers.cluster_manager import ClusterManager
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.launch.redaction import Redaction, check_no_secrets, known_secrets
from airflow_logio.launch.spark_settings import SparkSettings, is_on_cluster
from airflow_logio.protocol.states import ALIVE, CONCLUDED, GroupState, RunState, check_claim
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupNeeds, GroupRef
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.systems.payload_roots import payload_root

log = logging.getLogger(__name__)

OVER = (RunState.FINISHED, RunState.QUARANTINED, RunState.SUPERSEDED)


@dataclass(frozen=True, slots=True)
class Launched:
    """A driver on its way: the process of spark-submit, and where its output goes."""

    identity: DriverIdentity | None
    log_path: str | None


class Launcher(ABC):
    """Port: how a claimed driver becomes a process somewhere."""

    @abstractmethod
    def launch(self, claim: Claim, launch: Launch) -> Launched:
        """Start the driver's process and return; must not wait for the driver. It imports `launch.code`, or, if that is not
        shipped, from the bundle root of `launch.ref`. Raises `ConfigurationError`."""

    def check(self, settings: SparkSettings) -> None:
        """Refuse what cannot work before anything is claimed or started. Raises `ConfigurationError`."""
        spark_submit.check(settings)

    def tidy_up(self, store: LogStore) -> int:
        """Remove what drivers of ended runs have left on this machine; returns of how many. Raises `LogioError`."""
        return 0


@dataclass(frozen=True, slots=True)
class LocalProcessLauncher(Launcher):
    """The driver is a process of this machine, in a session of its own: it survives the process that launched it.

    `work_dir` gets a private folder per incarnation: the bundle, the driver's log, and for a moment its configuration.
    """

    work_dir: Path
    forks: ForkServer | None = None
    """Starts drivers of Python alone faster; its owner ends it."""

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        folder = self.work_dir / claim.run_uid / claim.group / str(claim.incarnation)
        folder.mkdir(parents=True, mode=0o700)
        driver_folders.discard_secrets(folder.parent)
        driver_folders.discard_earlier(folder.parent, claim.incarnation)
        log.info("group %s, incarnation %d: starting, output in %s", claim.group, claim.incarnation, folder / LOG_NAME)
        started = driver_process.start_driver(folder, claim, launch, application_name(claim), self.forks)
        return Launched(started, str(folder / LOG_NAME))

    def tidy_up(self, store: LogStore) -> int:
        return driver_folders.discard_runs(
            self.work_dir,
            ended=lambda uids: _ended_long_ago(store, uids),
            is_known=lambda uid: is_known(store, uid),
        )


def _ended_long_ago(store: LogStore, uids: Collection[str]) -> set[str]:
    """Those of these runs that ended `KEPT_SECONDS` ago, or that the log has removed. Other runs of the log are not read."""
    found = {uid for uid in uids if (gone := store.removed_run(uid)) is not None and gone.uid == uid}
    for sight in store.sight(uids):
        run, groups = sight.run, sight.groups
        is_over = run.state in OVER or (not run.spec.replicated and all(one.state in CONCLUDED for one in groups))
        ended_at = run.ended_at or max((one.since for one in groups), default=run.created_at)
        if is_over and time.time() - ended_at >= driver_folders.KEPT_SECONDS:
            found.add(run.uid)
    return found


def is_known(store: LogStore, uid: str) -> bool:
    """Whether the log has the run of this uid. Raises `LogUnavailable`."""
    try:
        return store.find_run(uid, damaged=True).uid == uid
    except UnknownRun:
        return False


def application_name(claim: Claim) -> str:
    """What an application is called to which nothing else gives a name."""
    return f"logio {claim.group} {claim.run_uid[:8]}/{claim.incarnation}"


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What launches of a run's groups have in common."""

    store: LogStore
    log_url: str
    run: Run
    imported: Pipeline | None
    """None in a process that imports no author's code: then `known` knows its launches."""
    ref: PipelineRef
    connections: Mapping[str, str]
    """The pipeline's connection name → URL."""
    launcher: Launcher
    settings: SparkSettings = field(default_factory=SparkSettings)
    payloads: str | None = None
    """Root of the payload store as the deployment configures it; by default that of the log, if it has one."""
    end_old_drivers: bool = True
    """Off only in tests of zombies: fencing alone must hold."""
    code: int = 0
    """The number of the code that `pipeline` is of. A group that has another one gets Spark properties and environment of its
    own."""
    own: frozenset[str] = frozenset()
    """Groups and replicas of whose task this is. What has a place of its own is launched by nothing else."""
    known: Launches | None = None
    """For a supervisor, so that a recovery resolves nothing again; by default every launch is resolved anew."""
    managers: Managers = field(default_factory=Managers)
    """What drivers on clusters are submitted to."""

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline as this process has imported it. Raises `ConfigurationError` if it has not."""
        if self.imported is None:
            raise ConfigurationError(f"the code of run {self.run.spec.key} is not imported by this process")
        return self.imported


def launch_group(
    context: LaunchContext,
    group: str,
    *,
    expected: int,
    reason: str,
    by_user: bool = False,
    request_id: int | None = None,
) -> Claim:
    """Claim incarnation ``expected + 1`` of a group, end what is left of the old driver, and launch the new one.

    `request_id` names the request to scale for which it is launched. Raises `Fenced` (another process claimed it),
    `BudgetSpent` (parked), `ProtocolViolation` (also: that request is settled, or it is its own task's to launch it),
    `ConfigurationError`, `ManagerUnavailable` (its cluster manager does not answer: nothing is claimed).
    """
    status = context.store.group(context.run.run_id, group)
    by_person = by_user and request_id is None  # chooses the place, too
    if status.own_place and not (group in context.own or by_person):
        raise ProtocolViolation(
            f"group {group!r} is launched by its own task only, which has a queue, a pool or an executor of its own; if that "
            f"task of DAG run {context.run.spec.key.dag_run_id} has ended, clear it"
        )
    try:
        if status.incarnation != expected:
            # Before anything is ended: what runs now is the driver of another launcher.
            raise Fenced(
                f"group {group!r} was claimed by another process: incarnation {status.incarnation}, expected {expected}"
            )
        check_claim(group, status.state, by_user=by_user)
        launch = _resolved(context, group, status.code)
        manager = None
        if launch.is_on_cluster:
            manager = context.managers.for_settings(launch.settings, launch.conf)
            manager.check_answers()
        claim = _claim(context, status, reason, by_user=by_user, request_id=request_id)
        _start(context, claim, launch, manager)
    finally:
        _keep_last_output(context, status)
    return claim


def resolve(context: LaunchContext, group: str, number: int) -> Launch:
    """Everything that a launch of a group with the code of this number needs, checked. Claims and starts nothing.

    Raises `ConfigurationError`.
    """
    settings = context.settings
    context.launcher.check(settings)
    code, pipeline = code_for(context.store, context.run, context.ref, number), context.pipeline
    if number != context.code:
        pipeline = own_pipeline(context.store, context.run, context.ref, number, pipeline)
    needs = needs_of(pipeline, group, number)
    conf = spark_submit.group_properties(settings, pipeline, group, frames=needs.frames)
    return _launch(context, needs, conf, code)


def _launch(context: LaunchContext, needs: GroupNeeds, conf: Mapping[str, str], code: CodeBundle) -> Launch:
    settings, run, environment, log_uid = context.settings, context.run, {}, ""
    root, kind = payload_root(context.log_url, context.payloads), driver_kind(settings, conf, spark=needs.spark)
    if is_on_cluster(settings):  # what is secret its node has
        cluster_launch.check_possible(settings, context.log_url, kind, standby=needs.standby)
        manager = context.managers.for_settings(settings, conf)
        manager.check(settings, conf)
        named = {name: value for name, value in _surroundings(settings).items() if name in needs.environment}
        file = spark_submit.file_that_is_read(settings) if kind is DriverKind.SPARK_SUBMIT else None
        of_file = {key: value for key, value in spark_submit.properties_of_file(file).items() if key not in conf}
        log_uid = context.store.log_uid()
        check_no_secrets(
            conf,
            known_secrets((context.log_url, *context.connections.values()), root, named),
            variables=settings.env_vars,
            settings=settings.texts(),
            files={f"property in {file}": of_file, **manager.given_in_files(conf)},
        )
    else:
        environment = environment_of(run.spec.key.pipeline, needs.environment, settings)
    return Launch(
        settings=settings,
        conf=conf,
        kind=kind,
        code=code,
        code_number=needs.code,
        ref=context.ref,
        log_url=context.log_url,
        connections=dict(context.connections),
        payloads=root,
        needs_spark=needs.spark,
        has_frames=needs.frames,
        standby=StandbyRecipe(settings, conf) if needs.standby else None,
        environment=environment,
        log_uid=log_uid,
    )


class Launches(ABC):
    """Port: how a supervisor gets at a launch without resolving all of it anew."""

    @abstractmethod
    def of(self, context: LaunchContext, group: str, number: int) -> Launch:
        """The launch of a group with the code of this number. Raises `ConfigurationError`."""


@dataclass(frozen=True, slots=True)
class NotedLaunch(Launches):
    """The launch of one group by what the log has noted that it needs: no author's code is imported. For a process that
    serves others, such as Airflow's triggerer."""

    needs: GroupNeeds

    def of(self, context: LaunchContext, group: str, number: int) -> Launch:
        """Raises `ConfigurationError`, also for code of another number, or without a digest in the log."""
        if number != self.needs.code or context.store.code(context.run.run_id, number).digest is None:
            raise ConfigurationError(
                f"group {group!r} gets code {number}, and the log has no note of what that code needs"
            )
        context.launcher.check(context.settings)
        conf = spark_submit.properties_of(context.settings, self.needs.properties, frames=self.needs.frames)
        code = code_for(context.store, context.run, context.ref, number)
        return _launch(context, self.needs, conf, code)


class KnownLaunches(Launches):
    """The launches of one run that a supervisor has resolved: the next driver of a group is launched with the same code,
    settings and environment, unless a person has taken other code for it.

    Not remembered is a launch whose code is not what the log keeps: that of a run that an earlier version began, and that of
    an installed package with compiled modules, whose digest is compared at each launch. What a JVM needs is looked at each
    time, before the claim: Java may go while a run lasts.
    """

    def __init__(self) -> None:
        self._launches: dict[tuple[str, int], Launch] = {}
        self._codes: dict[str, CodeBundle] = {}
        """Digest → the code that the launches of all groups share."""

    def of(self, context: LaunchContext, group: str, number: int) -> Launch:
        """Raises `ConfigurationError`."""
        found = self._launches.get((group, number))
        if found is not None:
            if found.kind is DriverKind.SPARK_SUBMIT:
                context.launcher.check(context.settings)
            return found
        launch = resolve(context, group, number)
        is_kept = launch.code.is_shipped or not launch.code.files
        if is_kept and context.store.code(context.run.run_id, number).digest is not None:
            launch = replace(launch, code=self._codes.setdefault(launch.code.digest, launch.code))
            self._launches[group, number] = launch
        return launch


def _resolved(context: LaunchContext, group: str, number: int) -> Launch:
    return resolve(context, group, number) if context.known is None else context.known.of(context, group, number)


def _claim(context: LaunchContext, status: GroupStatus, reason: str, *, by_user: bool, request_id: int | None) -> Claim:
    """Claim the next incarnation of a group, and end what is left of the last one: in the order that the store needs."""
    if context.store.ends_old_driver_first:
        _end_old_driver(context, status)
    claim = context.store.claim(
        context.run.run_id,
        status.group,
        expected=status.incarnation,
        reason=reason,
        by_user=by_user,
        request_id=request_id,
    )
    if not context.store.ends_old_driver_first:
        _end_old_driver(context, status)
    return claim


def _start(context: LaunchContext, claim: Claim, launch: Launch, manager: ClusterManager | None) -> None:
    """`manager`: of a driver on a cluster."""
    try:
        if claim.code != launch.code_number:  # a person has just taken other code
            launch = _resolved(context, claim.group, claim.code)
        digest = launch.code.digest
        log.info("group %s, incarnation %d: code %d, digest %s", claim.group, claim.incarnation, claim.code, digest)
        launched = context.launcher.launch(claim, launch) if manager is None else None
    except Exception as error:
        context.store.declare_dead(_ref(claim), f"launch failed: {error}")
        raise
    if manager is not None:
        access = launch.settings.kubernetes_conn_id or ""
        cluster_launch.submit(context.store, manager, claim, launch, access)
    elif launched is not None:
        context.store.submitted(claim, log_path=launched.log_path, launcher=launched.identity)
    if not claim.recovery:
        _tidy_up(context)


def _tidy_up(context: LaunchContext) -> None:
    try:
        context.launcher.tidy_up(context.store)
    except LogioError as error:
        log.warning("files of earlier runs' drivers were not removed (`logio gc` does it): %s", error)


def environment_of(pipeline: str, names: Iterable[str], settings: SparkSettings) -> dict[str, str]:
    """The variables that a pipeline names, from this process or the launch's settings. Raises `ConfigurationError`."""
    return variable_values(pipeline, names, _surroundings(settings))


def _surroundings(settings: SparkSettings) -> dict[str, str]:
    return {**os.environ, **settings.env_vars}


def _end_old_driver(context: LaunchContext, status: GroupStatus) -> None:
    """End what the last incarnation left on this machine, and ask its cluster manager for its end; elsewhere it is fenced
    only. A manager that does not confirm it is asked again by what supervises."""
    if not context.end_old_drivers or status.state is GroupState.NEW:
        return
    if status.submission is not None:
        cluster_launch.end(context.managers, status.submissions)
        return
    if status.identity is None:
        return
    left = processes.driver_processes(status.identity)
    if left:
        log.warning("group %s: ending old driver processes %s", status.group, [process.pid for process in left])
        processes.end(status.identity)


def _keep_last_output(context: LaunchContext, status: GroupStatus) -> None:
    """Send what a driver of this machine printed before it ended, and could not send. Never raises: it is a courtesy."""
    if status.log_path is None or status.state in ALIVE:
        return
    ref = GroupRef(context.run.run_id, status.group, status.incarnation)
    try:
        path = Path(status.log_path)
        if path.is_file():
            environment = {**os.environ, **context.settings.env_vars}
            redaction = Redaction((context.log_url, *context.connections.values()), context.payloads, environment)
            add_rest(context.store.output, ref, path, processes.this_host(), redaction)
    except Exception as error:
        log.warning("the last lines of group %s, incarnation %d, are not kept: %s", ref.group, ref.incarnation, error)


def _ref(claim: Claim) -> GroupRef:
    return GroupRef(claim.run_id, claim.group, claim.incarnation)
