"""Jobs of write actions that fail, in a real Spark session: only what is lost on the way is an outage."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pytest

from airflow_logio.dataflow.operators import InputSet
from airflow_logio.driver.spark_jobs.job_gate import Turn
from airflow_logio.driver.spark_jobs.jobs import Generated, TableJobs
from airflow_logio.driver.spark_jobs.together import Contract
from airflow_logio.driver.spark_session import SparkSessions
from airflow_logio.driver.writer_threads import Executors
from airflow_logio.errors import ExternalUnavailable, OperatorFailed
from airflow_logio.systems.connections import Connections, WriterIdentity
from airflow_logio.systems.payloads.bodies import Bodies

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
        executors._run(
            "loading t", lambda session: session.range(1).mapInArrow(work, "id long").toArrow(), needs="pyarrow"
        )


class Losing:
    """A quarantining operator, as far as a job runner needs it: its first jobs end as if executors were lost."""

    on_error, reads, outputs = "quarantine", dict[str, object](), ("out",)

    def __init__(self, times: int) -> None:
        self.left = times

    def tagged(self, sets: Sequence[InputSet]) -> pa.Table:
        return pa.table({"inset_id": pa.array(range(len(sets)), pa.int64())})

    def run_with(self, frame: Any, reads: Mapping[str, object], params: Mapping[str, object]) -> Any:
        self.left -= 1
        said = "Job aborted due to stage failure: cannot rollback a running result stage"
        return frame if self.left < 0 else frame.selectExpr(f"IF(inset_id >= 0, raise_error('{said}'), 0) AS inset_id")

    def split(self, result: pa.Table, count: int) -> list[list[tuple[str, pa.Table]]]:
        return [[("out", result.slice(place, 1))] for place in range(count)]


@pytest.mark.parametrize(("times", "ends"), [(2, "done"), (3, "asked")])
def test_a_job_that_has_lost_its_shuffle_runs_again_and_sets_nothing_aside(
    sessions: SparkSessions, times: int, ends: str
) -> None:
    done: list[Generated] = []
    failed: list[BaseException] = []
    connections = Connections("work", {}, WriterIdentity("run", 1, 0.0), 1.0)
    ended, turn = threading.Event(), Turn(connections.calls, lambda: None)
    common = (sessions, connections, str, done.append, failed.append, "logio test", ended, turn, Contract.EARLIER)
    runner = TableJobs("work", "op", cast(Any, Losing(times)), *common)
    runner.start([("a", None), ("b", None)])
    assert runner.thread is not None
    runner.thread.join()
    if ends == "done":
        assert [[inset for inset, _ in one.results] for one in done] == [["a", "b"]]
        assert [one.aside for one in done] == [[]]
        assert not failed
    else:
        assert not done
        assert [type(error) for error in failed] == [ExternalUnavailable]
        assert "executors, and with them what tasks had shuffled, 3 times" in str(failed[0])
