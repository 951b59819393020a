"""What a driver asks of Spark beyond DataFrames, in whichever way it reaches Spark (ADR-116)."""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from airflow_logio.store.records.driver_records import SparkApplication

log = logging.getLogger(__name__)


class SparkEngine(ABC):
    """Makes the session of a driver, and knows what jobs it runs. A `session` is what `made` has returned."""

    patience: float = 60.0
    """Seconds for which a Spark that does not answer is waited for."""

    @abstractmethod
    def import_spark(self) -> None:
        """Import what making a session needs. On the caller's thread: no two threads import side by side."""

    @abstractmethod
    def made(self) -> Any:
        """A new session. Raises `ConfigurationError`, and what Spark raises."""

    @abstractmethod
    def application(self, session: Any) -> SparkApplication | None:
        """What people need to find the application. None if Spark does not say it: a driver works without that."""

    @abstractmethod
    def enter(self, session: Any, job_group: str, description: str) -> None:
        """From now on, jobs that this thread starts are those of a job group."""

    @abstractmethod
    def apart(self, session: Any, job_group: str) -> AbstractContextManager[None]:
        """Within the block, jobs that this thread starts are of another job group; otherwise as `enter` has said."""

    @abstractmethod
    def cancel(self, session: Any, job_groups: Sequence[str]) -> None:
        """Cancel what runs of job groups."""

    @abstractmethod
    def actions(self, job_group: str, session: Any) -> Sequence[str]:
        """What has run in an `apart` block that is over, and was no question about columns or files: for people to read."""

    @abstractmethod
    def is_lost(self, session: Any, error: BaseException) -> bool:
        """Whether an error of a job is the end of Spark or of this session, and not of the author's function."""

    @abstractmethod
    def may_return(self) -> bool:
        """Whether a driver whose Spark is lost can make another session."""

    @abstractmethod
    def end_earlier(self) -> None:
        """End what the last incarnation's session still does. Never raises: its jobs only take executors from others."""

    @abstractmethod
    def stop(self, session: Any) -> None:
        """End the session, and its jobs."""


# --- how many tasks run at a time -------------------------------------------------------------------------------------

KNOWN_SECONDS = 60.0
"""A Spark Connect server says it by a small job, so it is not asked again for so long."""
_UNBOUNDED = 10_000
_known: dict[str, tuple[float, int]] = {}
_asking = threading.Lock()


def is_remote(session: Any) -> bool:
    """Whether a session, or a DataFrame, is one of a Spark Connect server."""
    return ".connect." in type(session).__module__


def task_slots(session: Any) -> int:
    """How many tasks run at a time, at least 1. It changes where executors come and go."""
    if not is_remote(session):
        return max(1, int(session.sparkContext.defaultParallelism))
    with _asking:
        asked, slots = _known.get(session.session_id, (0.0, 0))
        if not slots or time.monotonic() - asked > KNOWN_SECONDS:
            _known.clear()
            slots = _slots_of_server(session)
            _known[session.session_id] = time.monotonic(), slots
        return slots


def most_task_slots(session: Any) -> int:
    """As `task_slots`, with all executors that dynamic allocation would start if there was work for them."""
    now, conf = task_slots(session), session.conf
    is_local = conf.get("spark.master", "").startswith("local")  # where Spark ignores it
    if is_local or conf.get("spark.dynamicAllocation.enabled", "false").lower() != "true":
        return now
    most, cores = conf.get("spark.dynamicAllocation.maxExecutors", None), conf.get("spark.executor.cores", None)
    # Without a most, as many as the cluster has; without cores, one is the least that an executor has.
    return max(now, (int(most) if most else _UNBOUNDED) * (int(cores) if cores else 1))


def _slots_of_server(session: Any) -> int:
    """Spark divides a range into as many partitions as it runs tasks at a time, and tells only its tasks."""
    from pyspark.sql import functions as F

    said = session.conf.get("spark.default.parallelism", None)
    if said is not None and str(said).isdigit():
        return max(1, int(said))
    numbered = session.range(2**16).select(F.spark_partition_id().alias("partition"))
    return max(1, int(numbered.distinct().count()))


# --- an application of the driver's own -------------------------------------------------------------------------------

_OF_SCHEMAS = frozenset({"parquet", "orc", "json", "csv", "text", "xml", "load", "table", "sql"})
"""Calls that run a job to find out which columns a file has, or to list many files, as the names of their stages begin.
Writers of the same names are not told from them."""
_NAMED = re.compile(r"[A-Za-z]\w* at ")
"""A stage that Spark starts in a thread of its own, as behind a shuffle, has the name of something within Spark."""
UNNAMED = "an action whose name Spark does not tell (such as count(), or pivot() without values)"


class ClassicEngine(SparkEngine):
    """As `SparkEngine`. Spark loses nothing but its executors while the JVM lives, and there is no other JVM for this
    process. Executors get the `files` of Python with their first task."""

    def __init__(self, files: Sequence[str] = ()) -> None:
        self._files = files

    def import_spark(self) -> None:
        """Imports what pyspark imports late (pandas, if it is there), too."""
        from pyspark import SparkConf

        SparkConf()

    def made(self) -> Any:
        """The session that spark-submit has described."""
        from pyspark.sql import SparkSession

        session = SparkSession.builder.getOrCreate()
        for file in self._files:
            session.sparkContext.addPyFile(file)
        return session

    def application(self, session: Any) -> SparkApplication | None:
        """As `SparkEngine`; with the address of a proxy where there is one."""
        try:
            context, conf = session.sparkContext, session.conf
            found, ui = str(context.applicationId), context.uiWebUrl
            return SparkApplication(found, ui_for_people(found, ui, conf), is_set(conf, "spark.eventLog.enabled"))
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


_OF_YARN = "spark.org.apache.spark.deploy.yarn.AmIpFilter.param.PROXY_URI_BASES"
"""Where YARN's proxy shows a driver that YARN has started; set by its ApplicationMaster. Before Spark 4 it had Hadoop's
filter."""
_IN_POD = "spark.kubernetes.submitInDriver"


def ui_for_people(application: str, ui: str | None, conf: Any) -> str | None:
    """Where a browser finds the UI of a driver which says that it is at `ui`: at YARN's proxy, which the driver leads to, or
    at a reverse proxy. None if it has no UI, or has it in a pod, whose address is known within its cluster only."""
    if ui is None:
        return None
    if is_set(conf, "spark.ui.reverseProxy") and (proxy := conf.get("spark.ui.reverseProxyUrl", "")):
        return f"{proxy.rstrip('/')}/proxy/{application}/"
    if of_yarn := conf.get(_OF_YARN, ""):
        return f"{str(of_yarn).partition(',')[0].rstrip('/')}/"
    return None if is_set(conf, _IN_POD) else ui


def is_set(conf: Any, name: str) -> bool:
    """Whether a property of a session is true."""
    return str(conf.get(name, "false")).lower() == "true"
