"""Drivers on a standalone cluster, whatever dies: real daemons, a log in PostgreSQL, results by hand or by DuckDB."""

from __future__ import annotations

import logging
import re
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_logio.errors import SubmissionUnknown
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.launch.managers.standalone import StandaloneManager
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support import hosts
from tests.support.cluster_lakes import NodeSays, cluster_lake
from tests.support.gated_runs import NoLauncher
from tests.support.grocery import assert_exact
from tests.support.postgres import PostgresServer
from tests.support.relay import relay
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, running
from tests.support.spark_cluster import HOSTS, Cluster, spark_cluster
from tests.support.standalone_runs import (
    EXPECTED,
    Gated,
    gated,
    leaves_nothing,
    on_cluster,
    shows_no_secret,
    write_node_file,
)
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(1800)]

log = logging.getLogger(__name__)

VARIABLES = {"PYSPARK_PYTHON": sys.executable}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    with spark_cluster(folder, cores=4, memory="2g", variables=VARIABLES) as made:
        made.wait_for_workers()
        yield made


def kill_worker_of(cluster: Cluster, made: Gated) -> None:
    """`kill -9` of the worker on which the driver of group `make` is, with all that it has started."""
    cluster.kill_worker(cluster.host_of(made.run.process("make").pid))


def restart_master(cluster: Cluster) -> None:
    cluster.kill_master()
    cluster.start_master()


def test_whatever_dies_the_result_is_exact(
    cluster: Cluster,
    tmp_path: Path,
    postgres_url: str,
    postgres_warehouse_url: str,
) -> None:
    with gated(cluster, tmp_path, postgres_url, postgres_warehouse_url) as made:
        run = made.run
        made.until_held(10)
        made.is_recovered("its Python is killed", lambda: run.signal("make", signal.SIGKILL), 10)
        made.until_held(20)
        made.is_recovered("its JVM is killed", lambda: run.signal("make", signal.SIGKILL, jvm=True), 20)
        made.until_held(30)
        made.is_recovered("its worker is killed", lambda: kill_worker_of(cluster, made), 30)
        made.until_held(40)
        made.is_recovered("the master is killed and restarted", lambda: restart_master(cluster), 40)
        run.finish(timeout=420)
        log.info("seconds to the first new commit: %s", made.seconds)
        assert made.rows() == EXPECTED
        leaves_nothing(run, cluster)


def test_sales_are_exact_when_the_driver_with_spark_dies(
    cluster: Cluster, tmp_path: Path, postgres_url: str, postgres_warehouse_url: str, small_transactions: Path
) -> None:
    node = write_node_file(tmp_path / "node.json", postgres_url, {"warehouse": postgres_warehouse_url}, {})
    settings = on_cluster(cluster, node, **{"spark.sql.shuffle.partitions": "2", "spark.cores.max": "1"})
    with running(
        postgres_url,
        postgres_warehouse_url,
        small_transactions,
        NoLauncher(tmp_path / "none"),
        ref=SALES,
        spark=settings,
        lease=Lease(15, 240),
        code=collect(SALES),
    ) as run:
        run.until(lambda: run.is_running("hourly") and cluster.executors(), "hourly has an executor", timeout=420)
        run.signal("hourly", signal.SIGKILL)
        run.finish(timeout=600)
        assert run.status("hourly").incarnation > 1
        leaves_nothing(run, cluster)
        eventually(lambda: not cluster.running(), what="no application is left", timeout=60, every=0.2)
    assert_exact(postgres_warehouse_url, small_transactions, SALES_RECORDS_PER_BATCH)


def test_a_lake_is_exact_when_jvm_and_python_are_killed_in_the_middle_of_jobs(
    cluster: Cluster, tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    """Each time a task of an executor has begun to write a file."""

    def settings(says: NodeSays) -> SparkSettings:
        node = write_node_file(tmp_path / "node.json", says["log"], says["connections"], {}, payloads=says["payloads"])
        return on_cluster(cluster, node, **{"spark.sql.shuffle.partitions": "2", "spark.cores.max": "1"})

    with cluster_lake(settings, tmp_path, postgres_url, postgres_warehouse_url) as made:
        run, (first, second, third) = made.run, made.gates
        made.until_held(first, 420)
        made.is_recovered("its JVM is killed", lambda: run.signal("make", signal.SIGKILL, jvm=True), first)
        made.until_held(second, 420)
        made.is_recovered("its Python is killed", lambda: run.signal("make", signal.SIGKILL), second)
        made.until_held(third, 420)
        eventually(lambda: len(cluster.state()["activedrivers"]) == 2, what="what died is gone", timeout=120, every=0.2)
        assert made.living() == {"make": 1, "sum": 1}
        made.open(third)
        run.finish(timeout=600)
        log.info("seconds to the first new commit: %s", made.seconds)
        made.assert_exact()
        leaves_nothing(run, cluster)
        eventually(lambda: not cluster.running(), what="no application is left", timeout=60, every=0.2)
        made.leaves_nothing()


def test_a_driver_that_waits_for_room_is_no_dead_one(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    """One core for two groups: the second waits for longer than a launch may take, until the first has ended."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    lease = Lease(15, 60)
    with (
        spark_cluster(folder, HOSTS[:1], cores=1, memory="1g", variables=VARIABLES) as cluster,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url, lease=lease) as made,
    ):
        cluster.wait_for_workers()
        made.until_held(10)
        made.run.until(lambda: waited(made) > 1.5 * lease.launch_seconds, "save waits for long", timeout=600)
        status = made.run.status("save")
        assert (status.incarnation, status.state) == (1, GroupState.SUBMITTED)
        assert status.manager_said is not None and status.manager_said.state == "queued"
        for number in (10, 20, 30, 40):
            made.open(number)
        made.run.finish(timeout=420)
        assert [made.run.status(group).incarnation for group in ("make", "save")] == [1, 1], "no launch was wasted"
        assert made.rows() == EXPECTED
        leaves_nothing(made.run, cluster)


def waited(made: Gated) -> float:
    """For how many seconds the driver of `save` has been waited for."""
    [driver] = [one for one in made.run.store.drivers(made.run.run.run_id) if one.group == "save"]
    return time.time() - driver.claimed_at


class LosesAnswers(Managers):
    """Submits each driver twice, as if the first answer had been lost; and says of both that there was none."""

    def for_settings(self, settings: SparkSettings, conf: Mapping[str, str]) -> StandaloneManager:
        return Twice.of_settings(settings, conf)


class Twice(StandaloneManager):
    def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        first, second = (super(Twice, self).submit(submission, claim, launch) for _ in range(2))
        assert first.id != second.id
        raise SubmissionUnknown("no answer")


def test_two_drivers_of_one_claim_are_one(
    cluster: Cluster, tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    with gated(cluster, tmp_path, postgres_url, postgres_warehouse_url) as made:
        made.run.context = replace(made.run.context, managers=LosesAnswers())
        made.until_held(10)
        shows_no_secret(cluster)
        for number in (10, 20, 30, 40):
            made.open(number)
        made.run.finish(timeout=420)
        assert made.rows() == EXPECTED
        assert [made.run.status(group).incarnation for group in ("make", "save")] == [1, 1]
        ended = lambda: len(cluster.state()["completeddrivers"]) == 4  # noqa: E731
        eventually(ended, what="those that came too late have ended by themselves", timeout=120, every=0.2)
        leaves_nothing(made.run, cluster, confirmed=False)


def test_a_driver_whose_submission_had_no_answer_is_the_driver(
    cluster: Cluster, tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    with (
        relay(cluster.rest_port) as way,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url, rest=f"http://127.0.0.1:{way.port}") as made,
    ):
        way.unanswered = re.compile(rb'"sparkProperties"')
        made.run.until(lambda: made.run.is_running("make") and made.run.is_running("save"), "both run", timeout=420)
        status = [made.run.status(group) for group in ("make", "save")]
        assert [one.incarnation for one in status] == [1, 1]
        assert sum(one.submission is not None and one.submission.id == "" for one in status) == 1
        assert all(one.reported is not None and one.reported.id.startswith("driver-") for one in status)
        for number in (10, 20, 30, 40):
            made.open(number)
        made.run.finish(timeout=420)
        assert made.rows() == EXPECTED
        leaves_nothing(made.run, cluster, confirmed=False)


@pytest.fixture
def network() -> Iterator[hosts.Network]:
    with hosts.network("east", "west") as made:
        yield made


@pytest.fixture
def server(network: hosts.Network) -> Iterator[PostgresServer]:
    """A server that both hosts reach."""
    made = PostgresServer(host=network.address)
    try:
        made.create()
        made.start()
        yield made
    finally:
        made.destroy()


@pytest.mark.skipif(hosts.why_not() is not None, reason=f"hosts are needed: {hosts.why_not()}")
def test_a_driver_that_was_cut_off_commits_nothing_when_it_is_back(
    network: hosts.Network, server: PostgresServer, tmp_path: Path
) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    properties = {"spark.worker.timeout": "20"}
    with (
        spark_cluster(
            folder, ("east",), cores=4, memory="2g", variables=VARIABLES, properties=properties, on=network
        ) as cluster,
        gated(cluster, tmp_path, server.new_database(), server.new_database(migrated=False)) as made,
    ):
        cluster.wait_for_workers()
        made.until_held(10)
        cluster.start_worker("west", 4, "2g")
        cluster.wait_for_workers()
        made.is_recovered("its host is cut off", network.hosts["east"].cut_off, 10)  # the zombie computes on
        made.until_held(20)
        network.hosts["east"].reconnect()
        for number in (20, 30, 40):
            made.open(number)
        made.run.finish(timeout=420)
        log.info("seconds to the first new commit: %s", made.seconds)
        assert made.rows() == EXPECTED
        leaves_nothing(made.run, cluster)
        for host in network.hosts.values():
            host.power_off()
