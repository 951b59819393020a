"""A driver keeps a process that stands by to take its place (ADR-108): it starts it, and another one when that one ends.

The standby is of this incarnation, and outlives it: it finds out by itself what became of its driver.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil

from airflow_logio.crash import standby_environment
from airflow_logio.launch import driver_folders, driver_process, processes
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import code_for
from airflow_logio.launch.driver_config import DriverConfig, launch_of_standby
from airflow_logio.launch.driver_folders import READY, make_standby_folder, standby_folders
from airflow_logio.launch.driver_log import LOG_NAME
from airflow_logio.launch.launcher import application_name
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import DriverIdentity, Standby
from airflow_logio.store.records.run_records import Run

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 5.0
"""After a standby has ended, the next one is started; so much later, and twice that after each further one.

So long after it is ready, a driver that is not the group's first one starts its own: work waits, with which the start of
another process would compete."""
LONGEST_SECONDS = 300.0
"""No pause is longer. After one that has lived for longer, pauses are short again."""


class StandbyKeeper:
    """`is_ready` says that the driver's own start is over, with which the standby's would compete; `ends` that the driver is
    about to end, and needs none.

    `folder` is the driver's. What goes wrong is logged: a driver without a standby is recovered as any other.
    """

    def __init__(
        self,
        config: DriverConfig,
        store: LogStore,
        folder: Path,
        is_ready: Callable[[], bool],
        ends: Callable[[], bool],
    ) -> None:
        self._config = config
        self._store = store
        self._group_folder = folder.parent
        self._is_ready = is_ready
        self._ends = ends
        self._process: DriverIdentity | None = None
        self._folder = folder
        self._next_at = 0.0
        self._waits_first = config.claim.incarnation > 1
        self._pause = AGAIN_SECONDS
        self._started_at = 0.0
        self._run: Run | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="logio-standby", daemon=True)

    def begin(self, run: Run) -> None:
        """Start one, if the group has one, when the driver is ready."""
        self._run = run
        if self._config.standby is not None:
            self._thread.start()

    def stop(self) -> None:
        """No further one is started. The one that there is ends by itself, or takes the driver's place."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def figures(self) -> Standby | None:
        process = self._process
        if process is None or processes.is_gone(process):
            return None
        try:
            spark_submit = psutil.Process(process.pid)
            memory = sum(one.memory_info().rss for one in (spark_submit, *spark_submit.children(recursive=True)))
        except psutil.Error:
            return None
        return Standby(process.pid, (self._folder / READY).is_file(), memory)

    def _keep(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            try:
                self._look()
            except Exception as error:  # whatever it is: the driver works without one
                self._wait(f"{type(error).__name__}: {error}")

    def _look(self) -> None:
        process = self._process
        if process is not None and processes.is_gone(process):
            self._process = None
            self._clear_up()
            if time.monotonic() - self._started_at > LONGEST_SECONDS:
                self._pause = AGAIN_SECONDS
            self._wait(f"it has ended; its log is {self._folder / LOG_NAME}")
        elif process is None and self._is_ready() and not self._ends() and self._is_time():
            self._start()

    def _is_time(self) -> bool:
        """Whether the next one is due, now that the driver is ready."""
        if self._waits_first:
            self._waits_first = False
            self._next_at = time.monotonic() + AGAIN_SECONDS
        return time.monotonic() >= self._next_at

    def _start(self) -> None:
        config, claim = self._config, self._config.claim
        assert config.standby is not None and self._run is not None
        status = self._store.group(claim.run_id, claim.group)
        if status.code != claim.code or status.incarnation != claim.incarnation:
            return self._wait(f"the next driver gets code {status.code}, which this one does not have")
        ref = PipelineRef(config.module, config.attr, Path(config.bundle_root))
        code = code_for(self._store, self._run, ref, claim.code)
        self._folder = make_standby_folder(self._group_folder, claim.incarnation + 1)
        given = config.standby.settings
        settings = replace(given, env_vars=standby_environment(given.env_vars))
        launch = launch_of_standby(config, settings, code)
        name = application_name(replace(claim, incarnation=claim.incarnation + 1))
        try:
            pid = driver_process.start_standby(self._folder, claim, launch, name)
        except Exception:  # the next attempt has another folder
            self._clear_up()
            driver_folders.discard(self._folder)
            raise
        self._started_at = time.monotonic()
        self._process = processes.identity_of(pid)
        log.info("a standby is started: pid %d, its output in %s", pid, self._folder)
        if self._process is None:
            self._clear_up()
            self._wait(f"it has ended at once; its log is {self._folder / LOG_NAME}")
        return None

    def _clear_up(self) -> None:
        """What a standby that has ended would leave: secrets, and files that the next one has again. Its log stays."""
        driver_folders.discard_secrets(self._folder)
        for name in (driver_folders.SCRATCH, "code"):
            driver_folders.discard(self._folder / name, of=self._folder)
        for one in standby_folders(self._group_folder, self._config.claim.incarnation + 1):
            if one != self._folder:
                driver_folders.discard(one)

    def _wait(self, why: str) -> None:
        log.warning("no standby: %s; the next one is started in %.0f s", why, self._pause)
        self._next_at = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_SECONDS)
