"""A Spark application of the driver's own: its JVM is the parent of this process, or its child."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_logio.spark.engine import SparkEngine
from airflow_logio.store.records.driver_records import SparkApplication

log = logging.getLogger(__name__)

_OF_SCHEMAS = frozenset({"parquet", "orc", "json", "csv", "text", "xml", "load", "table", "sql"})
"""Calls that run a job to find out which columns a file has, or to list many files, as the names of their stages begin.
Writers of the same names are not told from them."""
_NAMED = re.compile(r"[A-Za-z]\w* at ")
"""A stage that Spark starts in a thread of its own, as behind a shuffle, has the name of something within Spark."""
UNNAMED = "an action whose name Spark does not tell (such as count(), or pivot() without values)"


class ClassicEngine(SparkEngine):
    """As `SparkEngine`. Spark loses nothing but its executors while the JVM lives, and there is no other JVM for this
    process."""

    def import_spark(self) -> None:
        """Imports what pyspark imports late (pandas, if it is there), too."""
        from pyspark import SparkConf

        SparkConf()

    def made(self) -> Any:
        """The session that spark-submit has described."""
        from pyspark.sql import SparkSession

        return SparkSession.builder.getOrCreate()

    def application(self, session: Any) -> SparkApplication | None:
        """As `SparkEngine`; with the address of the master's proxy where there is one."""
        try:
            context, conf = session.sparkContext, session.conf
            found, ui = str(context.applicationId), context.uiWebUrl
            is_proxied = ui is not None and is_set(conf, "spark.ui.reverseProxy")
            if is_proxied and (proxy := conf.get("spark.ui.reverseProxyUrl", "")):
                ui = f"{proxy.rstrip('/')}/proxy/{found}/"
            return SparkApplication(found, ui, is_set(conf, "spark.eventLog.enabled"))
        except Exception as error:
            log.debug("Spark does not say where its UI is: %s", error)
            return None

    def enter(self, session: Any, job_group: str, description: str) -> None:
        """As `SparkEngine`, in the fair pool that has the thread's name. Where the scheduler is not FAIR, pools mean
        nothing."""
        context = session.sparkContext
        context.setJobGroup(job_group, description, interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", threading.current_thread().name)

    @contextmanager
    def apart(self, session: Any, job_group: str) -> Iterator[None]:
        """As `SparkEngine`."""
        context = session.sparkContext
        before, description = (context.getLocalProperty(f"spark.{one}") for one in ("jobGroup.id", "job.description"))
        context.setJobGroup(job_group, description, interruptOnCancel=True)
        try:
            yield
        finally:
            context.setJobGroup(before, description, interruptOnCancel=True)

    def cancel(self, session: Any, job_groups: Sequence[str]) -> None:
        """As `SparkEngine`."""
        context = session.sparkContext
        tracker = context.statusTracker()
        active = set(tracker.getActiveJobsIds())
        for group in job_groups:
            if active & set(tracker.getJobIdsForGroup(group)):
                context.cancelJobGroup(group)

    def actions(self, job_group: str, session: Any) -> Sequence[str]:
        """As `SparkEngine`. Spark tells a job a moment after it has begun."""
        tracker = session.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(job_group))]
        stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        names = [stage.name for stage in stages if stage is not None]
        found = [name for name in names if name.partition(" at ")[0] not in _OF_SCHEMAS]
        return sorted(
            (f"`{name}`" if _NAMED.match(name) else UNNAMED for name in found), key=lambda text: text == UNNAMED
        )

    def is_lost(self, session: Any, error: BaseException) -> bool:
        """As `SparkEngine`: the end of the JVM or of its Spark context."""
        from py4j.protocol import Py4JNetworkError

        if isinstance(error, ConnectionError | EOFError | Py4JNetworkError):
            return True
        try:
            context = session.sparkContext._jsc
            return context is None or bool(context.sc().isStopped())
        except Exception as silence:
            log.debug("Spark does not answer: %s", silence)
            return True

    def may_return(self) -> bool:
        """As `SparkEngine`: not where the JVM has ended."""
        return False

    def end_earlier(self) -> None:
        """Nothing: the launcher has ended the process of the last incarnation, and its JVM."""

    def stop(self, session: Any) -> None:
        """As `SparkEngine`: the application ends."""
        session.stop()


def is_set(conf: Any, name: str) -> bool:
    """Whether a property of a session is true."""
    return str(conf.get(name, "false")).lower() == "true"
