"""The sales pipeline in a real Airflow, with real spark-submit drivers: killed, halted by a person, taken up again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_logio.demo.places import Places
from airflow_logio.demo.rest import AirflowUnavailable
from airflow_logio.demo.standalone import Standalone
from airflow_logio.protocol.states import ALIVE, GroupState, RunState
from airflow_logio.store.opening import open_store
from airflow_logio.store.records import GroupStatus
from airflow_logio.store.sql.store import SqlLogStore
from tests.support.grocery import assert_exact, load_products, write_slice
from tests.support.person import Person
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.timeout(600)]

DAG_ID, RUN_ID = "logio_sales", "e2e"
RECORDS = 200_000
RECORDS_PER_BATCH = 1_000 * 100
DAGS = Path(__file__).parents[2] / "dags"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("airflow")
    load_products(f"sqlite:///{folder}/warehouse.db")
    return Places(folder, DAGS, f"sqlite:///{folder}/logio.db", f"sqlite:///{folder}/warehouse.db")


@pytest.fixture(scope="module")
def person(places: Places) -> Iterator[Person]:
    standalone = Standalone(places)
    standalone.start()
    airflow = Person(standalone.url, standalone.login)

    def is_ready() -> bool:
        standalone.check_alive()
        try:
            return airflow.is_healthy() and airflow.has_dag(DAG_ID)
        except AirflowUnavailable:
            return False

    try:
        eventually(is_ready, what="Airflow is healthy and has parsed the DAG", timeout=180, every=0.5)
        airflow.unpause(DAG_ID)
        yield airflow
    finally:
        standalone.stop()
        for process in drivers(places):
            process.kill()


def drivers(places: Places) -> list[psutil.Process]:
    """Processes of Spark drivers that this test's tasks have launched."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(places.drivers) in part for part in process.info["cmdline"] or [])
    ]


def group(log: SqlLogStore, name: str) -> GroupStatus:
    return log.group(log.list_runs()[0].run_id, name)


def test_killed_halted_and_cleared_it_is_exact(person: Person, places: Places, tmp_path: Path) -> None:
    transactions = write_slice(tmp_path / "transactions.parquet", RECORDS)
    person.trigger(DAG_ID, RUN_ID, {"transactions": str(transactions)})
    eventually(lambda: task_state(person, "sales.start_run") == "success", what="the run starts", timeout=90, every=0.2)
    log = open_store(places.log_url, application="logio test")

    # A driver is killed: the supervising task recovers its group, whose own task goes on waiting.
    eventually(lambda: is_watched(places, "sales.hourly"), what="hourly is watched", timeout=60)
    eventually(lambda: pid(log, "hourly"), what="hourly runs", timeout=90)
    assert group(log, "hourly").incarnation == 1
    os.kill(pid(log, "hourly"), signal.SIGKILL)
    eventually(lambda: group(log, "hourly").incarnation == 2, what="hourly is recovered", timeout=90)

    # Somebody marks its task failed: the group halts, and Airflow's own retries do not undo that.
    assert task_state(person, "sales.hourly") == "deferred"
    assert is_watched(places, "sales.hourly"), "by the same trigger as before"
    assert group(log, "hourly").state in ALIVE
    person.mark(DAG_ID, RUN_ID, "sales.hourly", "failed")
    eventually(lambda: group(log, "hourly").state is GroupState.HALTED, what="hourly halts", timeout=90)
    assert task_state(person, "sales.hourly") == "failed"

    # Somebody clears it: it goes on where it stopped.
    person.clear(DAG_ID, RUN_ID, "sales.hourly")
    eventually(lambda: task_state(person, "sales.finish_run") == "success", what="the run ends", timeout=240, every=0.5)
    eventually(lambda: person.run_state(DAG_ID, RUN_ID) == "success", what="the DAG run is green", timeout=60)

    run = log.list_runs()[0]
    assert run.state is RunState.FINISHED
    incarnations = {status.group: status.incarnation for status in log.groups(run.run_id)}
    assert incarnations == {"ingest": 1, "totals": 1, "hourly": 3, "publish": 1}
    assert_exact(places.warehouse_url, transactions, RECORDS_PER_BATCH)

    assert person.result(DAG_ID, RUN_ID, "sales.start_run") == run.uid
    summary = person.result(DAG_ID, RUN_ID, "sales.ingest")
    assert (summary["run"], summary["records"]["ingest.out out"]) == (run.uid, RECORDS)
    assert str(places.folder) not in str(summary), "no URL of a database in a result"
    eventually(lambda: not drivers(places), what="drivers end", timeout=30)
    log.dispose()


def task_state(person: Person, task: str) -> str | None:
    return person.states(DAG_ID, RUN_ID).get(task)


def is_watched(places: Places, task: str) -> bool:
    """Whether a trigger of this task runs: what a person does to a deferred task before that, no trigger sees."""
    logs = (places.airflow_home / "logs").rglob("*.trigger.*.log")
    text = "".join(log.read_text() for log in logs if f"task_id={task}/" in str(log))
    return ' starting"' in text and "trigger completed" not in text


def pid(log: SqlLogStore, name: str) -> int:
    """The process of the group's driver, once it has registered; else 0."""
    status = group(log, name)
    return status.identity.pid if status.state is GroupState.RUNNING and status.identity is not None else 0
