"""The Spark session of a group: made in the background when the group has an operator that needs it (design D7).

Imported before anything else in a driver, so that it imports little.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from airflow_logio.dataflow.windows.zones import SESSION_ZONE
from airflow_logio.errors import LogioError, OperatorFailed, SparkLost
from airflow_logio.spark.engine import ClassicEngine, SparkEngine, is_remote, most_task_slots, task_slots
from airflow_logio.store.records.driver_records import SparkApplication

log = logging.getLogger(__name__)

WARM_UP_ROWS = 2_000
HEAP_PER_JOB = 256 * 2**20
"""Bytes of the driver's heap for a job: its plans, and what it broadcasts."""
MOST_JOBS = 8
"""More of them wait for the driver, which plans them."""
MOST_LOSSES = 3
"""How often a driver may lose Spark within `LOSSES_SECONDS`: what its group does may be what ends the server."""
LOSSES_SECONDS = 600.0

IDLE = {
    "spark.executor.instances": "0",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
}
"""Properties of an application that asks for executors when a job needs them, and for none before."""
IDLE_SECONDS = 100.0
"""For so long YARN waits for a context, by default."""


class SparkSessions:
    """Starts the session once, in a thread of its own; `get` waits for it.

    `has_frames`: it is for operators of mode ``dataframe``, whose tasks run Python.
    """

    def __init__(self, engine: SparkEngine | None = None, *, has_frames: bool = False) -> None:
        self._engine = engine or ClassicEngine()
        self._has_frames = has_frames
        self._lost_at: list[float] = []
        self._shares = 1
        self._is_watched = False
        self.application: SparkApplication | None = None
        """None until the session is made."""
        self._session: Any = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._wanted = threading.Event()
        """A job waits for the session, and will warm it."""

    def begin(self) -> None:
        """Start making the session; returns when Python's part is done, which would only compete with the caller's."""
        if self._thread is not None:
            return
        started = time.monotonic()
        try:
            self._engine.import_spark()
        except BaseException as error:
            self._error = error
        self._thread = threading.Thread(target=self._make, args=(started,), name="logio-spark", daemon=True)
        self._thread.start()

    def get(self) -> Any:
        """The session. A caller that asks while it is made gets it without a warm-up: its job pays for loading classes
        and code."""
        self._wanted.set()
        self.begin()
        assert self._thread is not None
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._session

    def wait_until_warm(self) -> None:
        """Returns when the session is made and warm; raises what has prevented it."""
        self.begin()
        assert self._thread is not None
        self._thread.join()
        self.raise_if_failed()

    def entered(self, job_group: str, description: str) -> Any:
        """The session, for jobs that this thread starts: those of a job group."""
        session = self.get()
        self._engine.enter(session, job_group, description)
        return session

    @contextmanager
    def keeping_zone(self, function: str) -> Iterator[None]:
        """Within the block, `function` is called. All operators of a group share the session, so that a zone which one of
        them sets would decide what others make of times. Raises `OperatorFailed`, with the zone as it was."""
        session = self.get()
        before = session.conf.get(SESSION_ZONE)
        try:
            yield
        except Exception:
            with suppress(Exception):
                session.conf.set(SESSION_ZONE, before)
            raise
        if (after := session.conf.get(SESSION_ZONE)) != before:
            session.conf.set(SESSION_ZONE, before)
            raise OperatorFailed(
                f"{function} sets {SESSION_ZONE} from {before!r} to {after!r}, in a session that it shares with other "
                f"operators: say Pipeline(..., zone={after!r}), or give the group of the operator "
                f"spark={{{SESSION_ZONE!r}: {after!r}}}; or set it back before the function returns"
            )

    def apart(self, job_group: str) -> AbstractContextManager[None]:
        """Within the block, jobs that this thread starts are those of another job group; otherwise as `entered` has said."""
        return self._engine.apart(self.get(), job_group)

    @contextmanager
    def computed_once(self, check_wanted: Callable[[], None]) -> Iterator[None]:
        """Within the block, this thread evaluates something.

        Raises `LogUnavailable` behind it if Spark has computed a part of that twice, as far as that can be seen; and what
        `check_wanted` raises.
        """
        session = self.get()
        if not self._is_watched:
            yield
            return
        from airflow_logio.spark.repeated_stages import computed_once

        with computed_once(session, check_wanted):
            yield

    def actions(self, job_group: str) -> Sequence[str]:
        """What an author's function has had executed in an `apart` block, in words."""
        return self._engine.actions(job_group, self.get())

    def cancel(self, job_groups: Sequence[str]) -> None:
        """Cancel what runs of job groups. Raises what Spark raises."""
        self._engine.cancel(self.get(), job_groups)

    def has_begun(self) -> bool:
        """It is made, or on its way."""
        return self._thread is not None

    def is_ready(self) -> bool:
        return self._session is not None

    def is_lost(self, error: BaseException) -> bool:
        """Whether an error of a job is the end of Spark, and not of the author's function."""
        try:
            session = self.get()
        except Exception as silence:
            log.debug("there is no session: %s", silence)
            return isinstance(silence, SparkLost) or not isinstance(silence, LogioError)
        return self._engine.is_lost(session, error)

    def may_return(self) -> bool:
        """Whether another session can follow a lost one in this process."""
        return self._engine.may_return()

    def returns(self) -> bool:
        """After a loss: whether another session is on its way. Called when no thread works with the lost one any more."""
        now = time.monotonic()
        self._lost_at = [*(at for at in self._lost_at if now - at < LOSSES_SECONDS), now]
        if not self.may_return() or len(self._lost_at) > MOST_LOSSES:
            return False
        self._session, self._error, self._thread = None, None, None
        self.begin()
        return True

    @property
    def patience(self) -> float:
        """Seconds for which a Spark that does not answer is waited for."""
        return self._engine.patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._engine.patience = seconds

    def shared_by(self, groups: int) -> None:
        """So many groups of the run use Spark: where it is one Spark for all, each gets its part."""
        self._shares = max(1, groups) if self._engine.may_return() else 1

    def jobs_at_once(self) -> int:
        """How many events are evaluated side by side, unless the author has said it."""
        return jobs_for(self.get(), self._shares)

    def end_earlier(self) -> None:
        """This process is the driver now: nothing of its predecessor is to run any more."""
        self._engine.end_earlier()

    def raise_if_failed(self) -> None:
        """The session could not be made: found out now, not when the first job asks for it."""
        if self._error is not None:
            raise self._error

    def _make(self, started: float) -> None:
        if self._error is not None:
            return
        session: Any = None
        try:
            session = self._engine.made()
            self.application = self._engine.application(session)
            if self._has_frames:
                self._is_watched = _is_watched(session)
            made = time.monotonic()
            if self._wanted.is_set():
                log.info("Spark session after %.1f s, warmed by the first job", made - started)
            else:
                warm_up(session)
                if self._has_frames and not self._wanted.is_set():
                    start_python(session)
                log.info("Spark session after %.1f s, warm after %.1f s", made - started, time.monotonic() - started)
            self._session = session
        except BaseException as error:
            self._error = self._told(session, error)

    def _told(self, session: Any, error: BaseException) -> BaseException:
        """What has prevented the session; `SparkLost` if Spark was lost meanwhile, and may return."""
        if isinstance(error, LogioError) or session is None or not self._engine.may_return():
            return error
        if not self._engine.is_lost(session, error):
            return error
        lost = SparkLost(f"Spark ended while a session was made: {error}")
        lost.__cause__ = error
        return lost

    def stop(self) -> None:
        if self._session is not None:
            self._engine.stop(self._session)


def begin_idle_application() -> threading.Thread:
    """Make a Spark context that has no executors while no job asks for one, in a thread of its own.

    YARN ends an application whose program makes none within ``spark.yarn.am.waitTime``.
    """
    thread = threading.Thread(target=_make_idle_application, name="logio-idle-application", daemon=True)
    thread.start()
    return thread


def _make_idle_application() -> None:
    try:
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # before it has a gateway, a conf has no properties of the launch
        conf = SparkConf()
        asked = int(conf.get("spark.executor.instances", None) or 2)  # as many as Spark has on YARN by default
        for name, value in IDLE.items():
            conf.set(name, value)
        conf.setIfMissing("spark.dynamicAllocation.maxExecutors", str(max(asked, 1)))
        SparkContext(conf=conf)
    except Exception as error:
        log.error("YARN will end this application, because it has no Spark context: %s", error)


def _is_watched(session: Any) -> bool:
    """Whether it can be seen what this Spark computes twice. Raises `ConfigurationError`."""
    from airflow_logio.spark.determinism import check_safety

    check_safety(session)
    return not is_remote(session)


def warm_up(session: Any) -> None:
    """A small job of the usual shape (Arrow in, broadcast join, grouping, Arrow out): classes loaded, code compiled."""
    import pyarrow as pa
    from pyspark.sql import functions as F

    numbers = pa.array(range(WARM_UP_ROWS), pa.int64())
    texts = pa.array([f"text {number % 50}" for number in range(WARM_UP_ROWS)])
    facts = session.createDataFrame(pa.table({"inset_id": numbers, "key": numbers, "value": numbers}))
    names = session.createDataFrame(pa.table({"key": numbers, "name": texts}))
    joined = facts.coalesce(1).join(F.broadcast(names), "key", "left")
    joined.groupBy("inset_id", "name").agg(F.sum("value").alias("value")).toArrow()


def start_python(session: Any) -> None:
    """Let executors start the processes in which tasks run Python: a second or two, once."""
    from airflow_logio.systems.payloads.task_files import passed_on

    tasks = task_slots(session)
    try:
        session.range(0, tasks, 1, tasks).mapInArrow(passed_on, "id long").toArrow()
    except Exception as error:  # the first job that needs them says what is wrong, and for whom
        log.debug("tasks cannot run Python: %s", error)


def jobs_for(session: Any, shares: int = 1) -> int:
    """How many events are evaluated side by side unless the author has said it (ADR-92): a job for two cores, and for each
    `HEAP_PER_JOB` of the driver's memory, at most `MOST_JOBS`; of a Spark that so many groups share, a part."""
    # Asked for each event: the settings of the context would come over one by one, in a tenth of a second.
    heap = _bytes(session.conf.get("spark.driver.memory", "1g"))
    return max(1, min(most_task_slots(session) // 2, heap // HEAP_PER_JOB, MOST_JOBS) // shares)


def _bytes(memory: str) -> int:
    """An amount of memory as Spark reads it: mebibytes where there is no unit. 0 for one that is none."""
    match = re.fullmatch(r"\s*(\d+)\s*(b|[kmgt]?)b?\s*", memory.lower())
    return 0 if match is None else int(match[1]) * 1024 ** ("bkmgt".index(match[2] or "m"))


def partitions_for(session: Any) -> int:
    """How many partitions a batch gets: one on a small local master, where an exchange costs more than a second core."""
    parallelism = task_slots(session)
    return 1 if parallelism <= 2 else parallelism
