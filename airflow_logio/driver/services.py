"""What runs beside the loop for as long as the driver lives: heartbeat, guard of calls, what is printed, standby, Spark.

All of it begins when the driver is registered, and ends in a fixed order when the driver ends, whatever has ended it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.driver.direct import DirectChannel
from airflow_logio.driver.driver_output import LogRotation, OutputSender
from airflow_logio.driver.endings import exit_overrun, exit_replaced
from airflow_logio.driver.heartbeat import Heartbeat
from airflow_logio.driver.last_steps import before_exit
from airflow_logio.driver.mailbox import LoadMeter
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.driver.standby_keeper import StandbyKeeper
from airflow_logio.launch.driver_config import DriverConfig
from airflow_logio.launch.driver_folders import discard_keytab
from airflow_logio.launch.driver_log import LOG_NAME, OutputParts
from airflow_logio.launch.processes import this_host
from airflow_logio.launch.redaction import Redaction
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import GroupRef, Load
from airflow_logio.systems.calls import Call, CallWatch

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
STOPPED_SECONDS = 5.0
"""Two looks that are so far apart were made by a process that was stopped meanwhile."""


class Services:
    """A context: within it they run. `parent_pid` is the JVM with which the process has to end; 0 if there is none.

    `sessions` may have begun to make the Spark session.
    """

    def __init__(
        self, config: DriverConfig, store: LogStore, ref: GroupRef, sessions: SparkSessions, parent_pid: int
    ) -> None:
        self._sessions = sessions
        self._folder = Path.cwd()  # a driver works in the folder of its log
        self.calls = CallWatch()
        self.meter = LoadMeter()
        self.needs_no_spark = threading.Event()
        """Set when it is known that the group is ready without a session."""
        self.halt = threading.Event()
        """Set when the group is asked to halt."""
        self.drain = threading.Event()
        """Set when the group is asked to drain."""
        self.wishes = {GroupState.HALTED: self.halt, GroupState.DRAINING: self.drain}
        self.standby = StandbyKeeper(config, store, self._folder, self._is_ready, ends=self.halt.is_set)
        self._direct: DirectChannel | None = None
        self._heartbeat = Heartbeat(
            store, ref, self._is_ready, self.wishes, partial(exit_replaced, ref), self._load_figures, parent_pid
        )
        self._guard = CallGuard(self.calls, partial(exit_overrun, store, ref))
        self._rotation = LogRotation(Path(LOG_NAME).absolute())
        self._sender = OutputSender(_output_parts(config, store, ref))
        if config.submission is not None:
            before_exit(self._sender.send_last)

    def __enter__(self) -> Services:
        for service in (self._heartbeat, self._guard, self._rotation, self._sender):
            service.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.standby.stop()
        if self._direct is not None:
            self._direct.say()  # while it is still sent to the log
        for service in (self._rotation, self._sender, self._guard, self._heartbeat, self._sessions):
            service.stop()
        discard_keytab(self._folder)
        if self._direct is not None:  # last: nothing else is held while receivers lag
            self._direct.stop()

    def open_direct_channel(self, pipeline: Pipeline, ref: GroupRef, store: LogStore, log_url: str) -> DirectChannel:
        """Serve what the group's replay operators make, and ask those of other groups."""
        self._direct = DirectChannel(pipeline, ref, store)
        self._direct.start(log_url)
        return self._direct

    def _is_ready(self) -> bool:
        return self.needs_no_spark.is_set() or self._sessions.is_ready()

    def _load_figures(self) -> Load:
        call, seconds = self.calls.longest()
        return replace(
            self.meter.read(),
            call=call,
            call_seconds=seconds,
            application=self._sessions.application,
            standby=self.standby.figures(),
        )


def _output_parts(config: DriverConfig, store: LogStore, ref: GroupRef) -> OutputParts:
    urls = (config.log_url, *config.connections.values())
    redaction = Redaction(urls, config.payloads, {**os.environ, **config.environment})
    path, whole = Path(LOG_NAME).absolute(), None
    if config.submission is not None:
        whole = f"the output that {config.submission.manager} keeps of the driver"
    return OutputParts(store.output, ref, path, this_host(), redaction, whole=whole)


class CallGuard:
    """Ends the driver when a call of the author's code runs longer than its limit (`Pipeline.limit`).

    A thread of Python cannot be interrupted, so the process ends, as if it had crashed in that call; its group is
    recovered, or parked. `overrun` gets the call and what to say of it, on the guard's thread; it does not return.
    """

    def __init__(self, calls: CallWatch, overrun: Callable[[Call, str], None]) -> None:
        self._calls = calls
        self._overrun = overrun
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-guard", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        looked = time.monotonic()
        while not self._stopping.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - looked > STOPPED_SECONDS:
                self._calls.forgive(now - looked)
            looked = now
            if (found := self._calls.overrun()) is not None:
                self._end(*found)
                return

    def _end(self, call: Call, seconds: float) -> None:
        assert call.limit is not None
        said = f"{call} has run for {seconds:.0f} s, longer than its max_seconds={call.limit.seconds:g}"
        log.error("%s; where all threads are:", said)
        faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
        self._overrun(call, said)
