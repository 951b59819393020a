"""How many tasks Spark runs at a time, however it is reached."""

from __future__ import annotations

import threading
import time
from typing import Any

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
            slots = _asked(session)
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


def _asked(session: Any) -> int:
    """Spark divides a range into as many partitions as it runs tasks at a time, and tells only its tasks."""
    from pyspark.sql import functions as F

    said = session.conf.get("spark.default.parallelism", None)
    if said is not None and str(said).isdigit():
        return max(1, int(said))
    numbered = session.range(2**16).select(F.spark_partition_id().alias("partition"))
    return max(1, int(numbered.distinct().count()))
