"""A DAG run whose drivers a standalone master starts: one is killed, and the triggerer submits the next one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY
from airflow_logio.launch.managers.submission_server import REST_PROPERTY
from airflow_logio.protocol.states import GroupState
from tests.support.airflow_connections import connection
from tests.support.airflow_installation import LONG, ROOT, SHORT, AirflowInstallation
from tests.support.grocery import assert_exact, load_products, write_slice
from tests.support.postgres import PostgresServer
from tests.support.spark_cluster import HERE, LITTLE, Cluster, spark_cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(2400)]

DAG_ID, RUN_ID, KILLED = "on_nodes", "killed", "totals"
RECORDS, RECORDS_PER_BATCH = 10_000, 250 * 10


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master and a worker, whose drivers find this package, and what is secret in a file."""
    variables = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    folder = tmp_path / "cluster"
    folder.mkdir()
    with spark_cluster(folder, (HERE,), cores=12, memory="8g", variables=variables) as made:
        yield made


@pytest.fixture
def installation(tmp_path: Path, postgres_server: PostgresServer, cluster: Cluster) -> Iterator[AirflowInstallation]:
    file = tmp_path / "connections.json"
    conf = {
        **cluster.settings({}).conf,
        REST_PROPERTY: cluster.rest,
        CONNECTIONS_PROPERTY: str(file),
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": LITTLE,
    }
    settings = {
        "AIRFLOW_CONN_SPARK_CLUSTER": connection("spark", host=cluster.url, extra={"deploy-mode": "cluster"}),
        "TESTS_SPARK_CONF": json.dumps(conf),
    }
    here = AirflowInstallation(tmp_path, postgres_server, settings)
    try:
        file.touch(0o600)
        file.write_text(json.dumps({"log": here.places.log_url, "connections": {"warehouse_db": here.warehouse}}))
        load_products(here.warehouse)
        here.airflow.migrate()
        here.airflow.start()
        here.wait_until_healthy(DAG_ID)
        cluster.wait_for_workers()
        yield here
    finally:
        here.close()


def test_a_killed_driver_is_submitted_again_by_the_triggerer_and_the_result_is_exact(
    installation: AirflowInstallation, cluster: Cluster, tmp_path: Path
) -> None:
    here, slow = installation, tmp_path / "slow"
    slow.touch()
    transactions = write_slice(tmp_path / "transactions.parquet", RECORDS)
    try:
        here.person.begin(DAG_ID, RUN_ID, {"transactions": str(transactions), "slow": str(slow)})
        eventually(lambda: here.runs(DAG_ID), what="the run begins", timeout=LONG, every=0.3)
        run = here.run(DAG_ID)
        killed = here.driver_of(run, KILLED)
        eventually(lambda: here.group_of(run, KILLED).commits, what="it commits", timeout=LONG, every=0.2)
        before = here.group_of(run, KILLED).incarnation
        killed.kill()
        again = lambda: here.group_of(run, KILLED).incarnation > before  # noqa: E731
        eventually(again, what="it is claimed again", timeout=LONG, every=0.2)
        slow.unlink()

        def over() -> bool:
            here.airflow.check_alive()
            found = here.person.run_state(DAG_ID, RUN_ID)
            assert found != "failed", here.person.states(DAG_ID, RUN_ID)
            return found == "success"

        eventually(over, what="the DAG run succeeds", timeout=LONG, every=0.5)
    except Exception as error:
        error.add_note(here.last_words())
        for path in sorted((tmp_path / "cluster" / "worker").rglob("std*")):
            error.add_note(f"--- {path.parent.name}/{path.name}\n{path.read_text(errors='replace')[-1500:]}")
        raise
    assert_exact(here.warehouse, transactions, RECORDS_PER_BATCH)
    drivers = here.log.drivers(run.run_id)
    assert all(one.submission is not None and one.log_path is None for one in drivers)
    assert {one.state for one in here.log.groups(run.run_id)} == {GroupState.FINISHED}

    def is_said(task: str, words: str) -> bool:
        return any(words in path.read_text(errors="replace") for path in here.task_logs(task))

    for task, words in (
        ("supervise", f"is launched as incarnation {before + 1}, by the triggerer"),
        (KILLED, "submitted to standalone at"),
    ):
        eventually(lambda said=(task, words): is_said(*said), what=words, timeout=SHORT, every=0.5)  # type: ignore[misc]
    eventually(lambda: not cluster.state().get("activedrivers"), what="no driver is left", timeout=SHORT, every=0.5)
