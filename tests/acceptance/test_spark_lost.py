"""Jobs of operators in mode ``executors``: without Spark no Input Set is to blame, whatever they do with errors."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.acceptance

CHILD = '''
import os, sys, threading
import psutil, pyarrow as pa
from airflow_logio.driver import spark_session
from airflow_logio.driver.spark_jobs.job_gate import Turn
from airflow_logio.driver.spark_jobs.jobs import TableJobs
from airflow_logio.driver.spark_jobs.together import Contract
from airflow_logio.systems.connections import Connections, WriterIdentity

spark_session.warm_up = lambda session: None
os.environ["PYSPARK_SUBMIT_ARGS"] = (
    "--master local[1] --driver-memory 512m --conf spark.ui.enabled=false pyspark-shell"
)

def kill_the_jvm(session):
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith("java"):
            process.kill()

def stop_the_context(session):
    session.sparkContext._jsc.sc().stop()

class Unlucky:
    """A quarantining operator, as far as a job runner needs it: Spark goes when its job is about to be executed."""
    on_error, reads, outputs = "quarantine", {}, ("out",)

    def tagged(self, sets):
        return pa.table({"inset_id": pa.array(range(len(sets)), pa.int64())})

    def run_with(self, frame, reads, params):
        globals()[sys.argv[1]](frame.sparkSession)
        return frame

    def split(self, result, n):
        raise AssertionError("the job must not end")

done, failed = [], []
sessions = spark_session.SparkSessions()
connections = Connections("p", {}, WriterIdentity("run", 1, 0.0), 1.0)
stopping = threading.Event()
turn = Turn(connections.calls, lambda: None)
common = (sessions, connections, str, done.append, failed.append, "jobs", stopping, turn, Contract.MANY)
runner = TableJobs("p", "op", Unlucky(), *common)
runner.start([("a", None), ("b", None)])
runner.thread.join()
print([type(error).__name__ for error in failed], done, flush=True)
for process in psutil.Process().children(recursive=True):
    process.kill()
os._exit(0)
'''


@pytest.mark.parametrize("accident", ["kill_the_jvm", "stop_the_context"])
def test_a_job_that_loses_spark_sets_nothing_aside(accident: str) -> None:
    """Under a job of two Input Sets, which would be halved if one of them could be to blame."""
    child = subprocess.run(
        [sys.executable, "-c", CHILD, accident], check=False, capture_output=True, text=True, timeout=240
    )
    assert child.stdout.splitlines()[-1:] == ["['SparkLost'] []"], child.stderr[-2000:]
