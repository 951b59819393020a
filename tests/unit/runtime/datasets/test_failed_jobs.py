"""Jobs of write actions that fail, in a real Spark session: only what is lost on the way is an outage."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from airflow_logio.errors import ExternalUnavailable, OperatorFailed
from airflow_logio.runtime.driver.spark_session import SparkSessions
from airflow_logio.runtime.driver.write_executors import Executors
from airflow_logio.runtime.payloads.bodies import Bodies
from airflow_logio.runtime.systems.connections import Connections, WriterIdentity

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]


def crashed() -> None:
    os._exit(7)


def wrong() -> None:
    raise ValueError("no such column")


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/mnt/spark/spill")


@pytest.mark.parametrize(
    ("task", "kind", "says"),
    [
        (crashed, ExternalUnavailable, "loading t: Python worker exited unexpectedly, told by Spark: "),
        (full, ExternalUnavailable, "loading t: No space left on device, told by Spark: "),
        (wrong, OperatorFailed, "loading t: the job has failed: (?s:.*)ValueError: no such column"),
    ],
    ids=["crashed", "full", "wrong"],
)
def test_only_what_is_lost_on_the_way_is_an_outage_of_a_write(
    sessions: SparkSessions, task: Callable[[], None], kind: type[Exception], says: str
) -> None:
    """Anything else would be tried again for `replay_seconds`, and end the same way."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task()
        yield from batches

    connections = Connections("work", {}, WriterIdentity("run", 1, 0.0), 1.0)
    executors = Executors(connections, Bodies(None), None, sessions, "logio test")
    with pytest.raises(kind, match=f"^{says}"):
        executors._run("loading t", lambda session: session.range(1).mapInArrow(work, "id long").toArrow())
