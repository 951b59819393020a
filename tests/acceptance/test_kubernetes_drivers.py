"""Drivers that are pods, whatever dies: Spark's own Kubernetes backend, a log in PostgreSQL, results written by hand."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from tests.support import hosts
from tests.support.cluster_lakes import NodeSays, cluster_lake
from tests.support.grocery import assert_exact, load_products
from tests.support.kubernetes import real
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes_runs import (
    PASSWORD,
    Cluster,
    Server,
    cluster_of,
    gated,
    verbs_granted,
    verbs_of,
    with_password,
)
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not())),
]
log = logging.getLogger(__name__)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The small one, unless a test asks for Kubernetes' own, too."""
    if getattr(request, "param", "small") == "small":
        yield request.getfixturevalue("small_server")
    else:
        with real.kubernetes(tmp_path_factory.mktemp("kubernetes")) as its_own:
            yield its_own


ON_BOTH = pytest.mark.parametrize(
    "server",
    ["small", pytest.param("real", marks=pytest.mark.skipif(real.why_not() is not None, reason=str(real.why_not())))],
    indirect=True,
)


@pytest.fixture
def cluster(server: Server, tmp_path: Path) -> Iterator[Cluster]:
    with cluster_of(server, tmp_path) as made:
        yield made


@ON_BOTH
def test_a_driver_of_python_alone_is_killed_and_another_pod_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    with gated(cluster, tmp_path, spark=False) as made:
        made.until_held(10)
        pod = cluster.pod_of(made.run, "make")
        made.is_recovered("its pod is killed", pod.kill, 10)
        made.finish()
        assert [made.run.status(group).incarnation for group in ("make", "save")] == [2, 1]
        assert PASSWORD not in json.dumps(cluster.pods())
        assert "jdk.incubator" not in pod.log, "there was no JVM"


@ON_BOTH
def test_whatever_dies_the_result_is_exact(cluster: Cluster, server: Server, tmp_path: Path) -> None:
    with gated(cluster, tmp_path) as made:
        run = made.run
        made.until_held(10)
        pod = cluster.pod_of(run, "make")
        made.is_recovered("its Python is killed", lambda: pod.kill_all_of("python"), 10)
        made.until_held(20)
        pod = cluster.pod_of(run, "make")
        made.is_recovered("its JVM is killed", lambda: pod.kill_all_of("java"), 20)
        made.until_held(30)
        server.go_down()
        made.open(30)
        run.tend()
        server.come_back()
        made.finish()
        log.info("seconds to the first new commit: %s", made.seconds)
        ended = [run.status(group).incarnation - 1 for group in ("make", "save")]
        assert ended == [2, 0], "an API server that was unavailable has ended nothing"
        shown = json.dumps([cluster.pods(), cluster.api.get("/api/v1/namespaces/default/configmaps")])
        assert PASSWORD not in shown
        manager = run.context.managers.for_settings(run.context.settings, run.context.settings.conf)
        assert manager.sweep(run.store.log_uid(), lambda _: True) == 0
        if isinstance(server, ApiServer):
            granted_is_what_is_used(server.requests)


def granted_is_what_is_used(requests: Sequence[str]) -> None:
    used, granted = verbs_of(requests), verbs_granted()
    # By apply is created what is not there yet; and what `logio gc` finds, it deletes.
    swept = {(one, "delete") for one in ("configmaps", "services", "networkpolicies", "persistentvolumeclaims")}
    applied = {(one, "create") for one, verb in used if verb == "patch" and one != "pods"}
    now_and_then = {("pods", "patch")}  # Spark labels executors that it gives up, if it is there to do so
    assert used | swept | applied | now_and_then == granted


def test_sales_are_exact_when_the_driver_with_spark_dies(
    cluster: Cluster, tmp_path: Path, small_transactions: Path
) -> None:
    transactions = shutil.copy(small_transactions, tmp_path)  # pods share this folder only
    warehouse_url = cluster.postgres.new_database(migrated=False)
    load_products(warehouse_url)
    params = {"transactions": str(transactions)}
    with cluster.running(tmp_path, SALES, warehouse_url, params, lease=Lease(15, 240)) as run:
        run.until(lambda: run.is_running("hourly") and cluster.executors(), "hourly has an executor", timeout=420)
        cluster.pod_of(run, "hourly").kill_all_of("python")
        run.finish(timeout=600)
        assert run.status("hourly").incarnation > 1
        cluster.leaves_nothing(run)
    assert_exact(warehouse_url, Path(transactions), SALES_RECORDS_PER_BATCH)


def test_a_lake_is_exact_when_jvm_and_python_are_killed_in_the_middle_of_jobs(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each time a task of an executor has begun to write a file. Drivers and executors have the folders, the payload store
    among them, from a volume only."""
    folder = tmp_path_factory.mktemp("volume")
    log_url, warehouse_url = (with_password(cluster.postgres.new_database(migrated=made)) for made in (True, False))

    def settings(says: NodeSays) -> SparkSettings:
        cluster.make_secret(says)
        parts = ("driver", "executor")
        return cluster.settings(
            **{f"spark.kubernetes.{part}.volumes.hostPath.lake.mount.path": str(folder) for part in parts},
            **{f"spark.kubernetes.{part}.volumes.hostPath.lake.options.path": str(folder) for part in parts},
        )

    with cluster_lake(settings, folder, log_url, warehouse_url) as made, cluster.explaining(made.run):
        run, (first, second, third) = made.run, made.gates
        made.until_held(first, 420)
        pod = cluster.pod_of(run, "make")
        made.is_recovered("its JVM is killed", lambda: pod.kill_all_of("java"), first)
        made.until_held(second, 420)
        pod = cluster.pod_of(run, "make")
        made.is_recovered("its Python is killed", lambda: pod.kill_all_of("python"), second)
        made.until_held(third, 420)
        assert made.living() == {"make": 1, "sum": 1}
        made.open(third)
        run.finish(timeout=600)
        log.info("seconds to the first new commit: %s", made.seconds)
        made.assert_exact()
        cluster.leaves_nothing(run)
        made.leaves_nothing()


def test_a_node_that_is_lost_and_one_that_is_cut_off_and_back(cluster: Cluster, tmp_path: Path) -> None:
    nodes = cluster.nodes
    with gated(cluster, tmp_path, spark=False) as made:
        run = made.run
        made.until_held(10)
        pod = cluster.pod_of(run, "make")
        made.is_recovered("its node is lost", lambda: nodes.lose(pod.node), 10)
        nodes.remove(pod.node)
        made.until_held(20)
        nodes.nodes[pod.node] = "up"
        zombie = cluster.pod_of(run, "make")
        made.is_recovered("its node is cut off", lambda: nodes.cut_off(zombie.node), 20)
        assert zombie.exit_code is None, "it works on without a network"
        assert cluster.living(), "a pod on a node that does not answer is not confirmed to have ended"
        nodes.reconnect(zombie.node)
        made.finish()
        log.info("seconds to the first new commit: %s", made.seconds)


def test_what_the_cluster_takes_spends_no_budget(cluster: Cluster, tmp_path: Path) -> None:
    with gated(cluster, tmp_path, spark=False, recoveries=0) as made:
        run = made.run
        made.until_held(10)
        evicted = cluster.pod_of(run, "make")
        made.is_recovered("it is evicted", lambda: cluster.nodes.evict(evicted), 10)
        made.until_held(20)
        preempted = cluster.pod_of(run, "make")
        made.is_recovered("it is preempted", lambda: cluster.nodes.preempt(preempted), 20)
        made.finish()
        log.info("seconds to the first new commit: %s", made.seconds)
        taken = [one.was_taken for one in run.store.drivers(run.run.run_id) if one.group == "make"]
        assert taken == [True, True, False]


def test_a_driver_that_waits_for_room_is_no_dead_one(cluster: Cluster, tmp_path: Path) -> None:
    lease = Lease(15, 60)
    cluster.nodes.hold()
    with gated(cluster, tmp_path, spark=False, lease=lease) as made:
        run = made.run
        begun = time.monotonic()
        run.until(lambda: time.monotonic() - begun > 1.5 * lease.launch_seconds, "both wait for long", timeout=300)
        for group in ("make", "save"):
            status = run.status(group)
            assert (status.incarnation, status.state) == (1, GroupState.SUBMITTED)
            assert status.manager_said is not None and status.manager_said.state == "queued"
            assert "Insufficient cpu" in status.manager_said.why
        cluster.nodes.release()
        made.finish()
        assert [run.status(group).incarnation for group in ("make", "save")] == [1, 1], "no launch was wasted"


def test_a_submission_without_an_answer_is_found_and_is_the_driver(
    cluster: Cluster, server: ApiServer, tmp_path: Path
) -> None:
    server.lose_answers("POST", "/pods$", times=2)
    with gated(cluster, tmp_path, spark=False) as made:
        run = made.run
        run.until(lambda: run.is_running("make") and run.is_running("save"), "both run")
        made.finish()
        assert [run.status(group).incarnation for group in ("make", "save")] == [1, 1]


def test_an_image_that_is_missing_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.nodes.missing_images.add("logio")
    with gated(cluster, tmp_path, spark=False, lease=Lease(15, 15), recoveries=0) as made:
        run = made.run
        is_parked = lambda: run.status("make").state is GroupState.PARKED  # noqa: E731
        run.until(is_parked, "make is parked", "make", timeout=180)
        assert "ImagePullBackOff" in (run.status("make").error or "")
