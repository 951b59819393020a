"""The sales pipeline in a real Airflow, with real spark-submit drivers: killed, halted by a person, taken up again.

Then the one with a replicated group: scaled up, a replica killed, scaled down, while it runs.
"""

from __future__ import annotations

import os
import shutil
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
SCALED = "logio_sales_scaled"
RECORDS = 200_000
FEW_RECORDS = 30_000
RECORDS_PER_BATCH = 1_000 * 100
DAGS = Path(__file__).parents[2] / "dags"
HOURLY = ("hourly.1", "hourly.2", "hourly.3")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("airflow")
    load_products(f"sqlite:///{folder}/warehouse.db")
    shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    slow_until_told(folder / "dags" / "pipelines" / "sales_scaled.py", folder / "enough")
    return Places(folder, folder / "dags", f"sqlite:///{folder}/logio.db", f"sqlite:///{folder}/warehouse.db")


def slow_until_told(pipeline: Path, enough: Path) -> None:
    """The shipped pipeline, with a file that ends its slowness: how fast this machine is must not matter."""
    shipped = pipeline.read_text()
    sleep = "time.sleep(records.num_rows * SECONDS_PER_RECORD)"
    assert shipped.count(sleep) == 1
    told = f"__import__('os').path.exists({str(enough)!r})"
    pipeline.write_text(shipped.replace(sleep, f"{told} or time.sleep(records.num_rows * 10 * SECONDS_PER_RECORD)"))


@pytest.fixture(scope="module")
def person(places: Places) -> Iterator[Person]:
    standalone = Standalone(places)
    standalone.start()
    airflow = Person(standalone.url, standalone.login)

    def is_ready() -> bool:
        standalone.check_alive()
        try:
            return airflow.is_healthy() and airflow.has_dag(DAG_ID) and airflow.has_dag(SCALED)
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


def test_scaled_up_and_down_with_a_replica_killed_it_is_exact(person: Person, places: Places, tmp_path: Path) -> None:
    """The tasks of the DAG do it all: `scale_up`, `kill_a_replica`, `recovered`, `scale_down`."""
    transactions = write_slice(tmp_path / "transactions.parquet", FEW_RECORDS)
    person.begin(SCALED, RUN_ID, {"transactions": str(transactions)})
    for task in ("scale_up", "kill_a_replica", "recovered", "scale_down"):
        has_succeeded = lambda task=task: task_state(person, task, SCALED) == "success"  # noqa: E731
        eventually(has_succeeded, what=f"{task} succeeds", timeout=180, every=0.3)
    log = open_store(places.log_url, application="logio test")
    run = log.list_runs()[0]
    assert run.spec.key.dag_id == SCALED
    states = {status.group: (status.state, status.incarnation) for status in log.groups(run.run_id)}
    working = [name for name in HOURLY if states[name][0] is GroupState.RUNNING]
    assert len(working) == 1 and states["hourly.2"][1] == 2, states
    assert {slot.owner for slot in log.slots(run.run_id, "hourly") if not slot.done} == set(working)
    assert task_state(person, "sales.hourly", SCALED) == "deferred", "one task for all replicas, and it goes on"

    (places.folder / "enough").touch()
    eventually(lambda: person.run_state(SCALED, RUN_ID) == "success", what="the run ends", timeout=180, every=0.5)
    assert log.find_run(run.uid).state is RunState.FINISHED
    assert_exact(places.warehouse_url, transactions, RECORDS_PER_BATCH)
    summary = person.result(SCALED, RUN_ID, "sales.hourly")
    assert (summary["recoveries"], summary["records"]["slow.in in"]) == (1, FEW_RECORDS)
    requests = {one.by.split()[1]: (one.replicas, one.state.value) for one in log.scalings(run.run_id)}
    assert requests == {"scale_up": (3, "done"), "scale_down": (1, "done")}
    eventually(lambda: not drivers(places), what="drivers end", timeout=30)
    log.dispose()


def task_state(person: Person, task: str, dag_id: str = DAG_ID) -> str | None:
    return person.states(dag_id, RUN_ID).get(task)


def is_watched(places: Places, task: str) -> bool:
    """Whether a trigger of this task runs: what a person does to a deferred task before that, no trigger sees."""
    logs = (places.airflow_home / "logs").rglob("*.trigger.*.log")
    text = "".join(log.read_text() for log in logs if f"task_id={task}/" in str(log))
    return ' starting"' in text and "trigger completed" not in text


def pid(log: SqlLogStore, name: str) -> int:
    """The process of the group's driver, once it has registered; else 0."""
    status = group(log, name)
    return status.identity.pid if status.state is GroupState.RUNNING and status.identity is not None else 0
