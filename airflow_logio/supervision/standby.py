"""Standing by: wait for the death of one driver, claim its group, and become the next driver (ADR-108).

The claim is `recover_group`'s, as any supervisor's: it spends the budget, fences the old driver, and is a compare-and-set
on the incarnation that failed. A standby is of one incarnation: when the log says that another one lives, or that the
group is not to be recovered, it ends.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from dataclasses import replace
from pathlib import Path

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.driver import process
from airflow_logio.driver.driver_output import LogRotation
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.errors import ConfigurationError, LogUnavailable
from airflow_logio.launch import bundle, driver_folders, processes
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.driver_config import DriverConfig, Launch
from airflow_logio.launch.driver_folders import READY
from airflow_logio.launch.driver_log import LOG_NAME
from airflow_logio.launch.launcher import LaunchContext, Launched, Launcher, LocalProcessLauncher
from airflow_logio.launch.processes import wait_for_end
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.states import ALIVE, GroupState
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, DriverIdentity
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.supervision.look import Watcher
from airflow_logio.supervision.tend import recover_group

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Between two looks at the log, unless the driver's process ends before."""
SILENT_SECONDS = 0.2
"""The same while the process has ended and the log says nothing."""


class ThisProcess(Launcher):
    """The claimed driver is this process, if it has the code that the driver is to get; else one that `instead` starts."""

    def __init__(self, config: DriverConfig, folder: Path, spark_submit: DriverIdentity, instead: Launcher) -> None:
        self._own = config
        self._folder = folder
        self._spark_submit = spark_submit
        self._instead = instead
        self.taken: DriverConfig | None = None
        """The configuration of the driver that this process is to be."""

    def check(self, settings: SparkSettings) -> None:
        """It was checked before this process was started."""

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        if claim.code != self._own.claim.code:
            return self._instead.launch(claim, launch)
        if not is_child_of(self._spark_submit):
            raise ConfigurationError("the JVM of the standby has ended, too")
        for folder in self._folder.parent.iterdir():
            if folder != self._folder:
                driver_folders.discard_secrets(folder)
        driver_folders.discard_earlier(self._folder.parent, claim.incarnation)
        config = launch.config(claim)
        self.taken = replace(config, bundle_root=self._own.bundle_root, connect=self._own.connect)
        return Launched(self._spark_submit, str(self._folder / LOG_NAME))


def is_child_of(spark_submit: DriverIdentity) -> bool:
    """Whether the JVM that started this process lives. A process that is left gets another parent, which is no driver's. One
    that has no JVM stands for itself."""
    return spark_submit.pid in (os.getppid(), os.getpid())


def stand_by(config: DriverConfig, sessions: SparkSessions) -> DriverConfig | None:
    """Wait for the death of the driver whose claim is in `config`; the configuration of the driver that takes its place.

    None: there is nothing to take over any more. Raises `LogioError` if this process cannot become a driver.
    """
    spark_submit = own_spark_submit() if config.has_jvm else processes.own_identity()
    folder = Path.cwd()
    rotation = LogRotation(folder / LOG_NAME)
    rotation.start()
    ref = PipelineRef(config.module, config.attr, Path(config.bundle_root))
    pipeline = bundle.load(ref)
    importlib.import_module("airflow_logio.driver.incarnation")  # needed when seconds count
    process.use_once()
    store = Patience().call("opening the log", lambda: open_store(config.log_url))
    try:
        run = store.patience.call("reading the run", lambda: store.find_run(config.claim.run_uid))
        if config.needs_spark:
            sessions.wait_until_warm()
        (folder / READY).touch()
        launcher = ThisProcess(config, folder, spark_submit, LocalProcessLauncher(folder.parents[2]))
        context = _context(config, store, run, pipeline, ref, launcher)
        log.info("standing by for group %s, incarnation %d", config.claim.group, config.claim.incarnation)
        _take_over(context, launcher, config.claim, spark_submit)
        return launcher.taken
    finally:
        rotation.stop()
        store.dispose()


def own_spark_submit() -> DriverIdentity:
    """The JVM that has started this process. Raises `ConfigurationError` if there is none, or none any more."""
    parent = processes.own_identity()
    found = processes.identity_of(parent.parent_pid) if parent.parent_pid else None
    if found is None:
        raise ConfigurationError("a standby is started by spark-submit, and ends with its JVM; there is none")
    return found


def _context(
    config: DriverConfig, store: LogStore, run: Run, pipeline: Pipeline, ref: PipelineRef, launcher: Launcher
) -> LaunchContext:
    assert config.standby is not None
    return LaunchContext(
        store,
        config.log_url,
        run,
        pipeline,
        ref,
        config.connections,
        launcher,
        config.standby.settings,
        config.payloads,
        code=config.claim.code,
        own=frozenset({config.claim.group}),
    )


def _take_over(context: LaunchContext, launcher: ThisProcess, claim: Claim, spark_submit: DriverIdentity) -> None:
    """Returns when this process is the driver, or is not needed."""
    store, run, group = context.store, context.run, claim.group
    watcher = Watcher(store, run, [group], is_standby=True)
    identity: DriverIdentity | None = None
    while is_child_of(spark_submit):
        observation = watcher.look().observations[group]
        status = observation.status
        if status is not None and (why := why_not_needed(status, claim)):
            log.info("no longer needed: %s", why)
            return
        if status is not None:
            identity = status.identity
        if observation.is_dead and _is_over(context, launcher, claim, observation.cause or "dead"):
            return
        _wait_for_end(identity)


def _is_over(context: LaunchContext, launcher: ThisProcess, claim: Claim, cause: str) -> bool:
    """Recover the group. False if the log did not answer: whether it was claimed will be seen."""
    try:
        recover_group(context, claim.group, failed=claim.incarnation, cause=cause)
    except LogUnavailable as error:
        log.warning("the log became unavailable during the recovery: %s", error)
        # Claimed, and only the log's note of the launch is missing: a driver registers all the same.
        return launcher.taken is not None
    return True


def why_not_needed(status: GroupStatus, claim: Claim) -> str | None:
    """Why a group is not for the standby of this claim to recover; None if it is."""
    if status.incarnation != claim.incarnation:
        return f"incarnation {status.incarnation} of group {claim.group} is launched"
    if status.state not in ALIVE | {GroupState.DEAD}:
        return f"group {claim.group} is {status.state}"
    if status.desired is GroupState.HALTED:
        return f"group {claim.group} is to halt"
    if status.code != claim.code:
        return f"the next driver of group {claim.group} gets code {status.code}"
    return None


def _wait_for_end(identity: DriverIdentity | None) -> None:
    """Return when the driver's process ends, which the log does not know yet; at the latest after `POLL_SECONDS`."""
    is_gone = None if identity is None else processes.is_gone(identity)
    if identity is None or is_gone is None:  # nothing is known of it
        time.sleep(POLL_SECONDS)
    elif is_gone:  # and the log did not answer
        time.sleep(SILENT_SECONDS)
    else:
        wait_for_end(identity, POLL_SECONDS)
