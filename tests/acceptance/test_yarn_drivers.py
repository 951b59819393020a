"""Drivers on YARN, whatever dies: real daemons of YARN and HDFS, a log in PostgreSQL, results by hand or by DuckDB."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest

from airflow_logio.errors import SubmissionUnknown
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.managers import yarn
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.launch.managers.yarn import YarnManager
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.spark_ui import SparkUi
from airflow_logio.store.records.driver_records import Claim, Submission
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from tests.support import hosts
from tests.support.cluster_lakes import NodeSays, cluster_lake
from tests.support.gated_runs import NoLauncher
from tests.support.grocery import assert_exact
from tests.support.postgres import PostgresServer
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, Running, running
from tests.support.standalone_runs import EXPECTED, GATES, Gated, gated_by, write_node_file
from tests.support.waiting import eventually
from tests.support.yarn_bench import Bench
from tests.support.yarn_cluster import DRIVER_MEGABYTES, YarnCluster, why_no_yarn, yarn_cluster

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(2400)]

log = logging.getLogger(__name__)
LONG = 600.0


@contextmanager
def cluster_in(folder: Path, nodes: tuple[str, ...], drivers: int, **how: Any) -> Iterator[YarnCluster]:
    """Each node has room for so many drivers."""
    if (why := why_no_yarn()) is not None:
        pytest.skip(why)
    with yarn_cluster(folder / "yarn", nodes, node_megabytes=drivers * DRIVER_MEGABYTES, **how) as made:
        yield made


@contextmanager
def gated(
    cluster: YarnCluster,
    folder: Path,
    log_url: str,
    warehouse_url: str,
    *,
    conf: Mapping[str, str] | None = None,
    **more: Any,
) -> Iterator[Gated]:
    """A run of the small pipeline, whose drivers use no Spark."""
    settings = lambda node: settings_of(cluster, node, **(conf or {}))  # noqa: E731
    with gated_by(settings, folder, log_url, warehouse_url, **more) as made:
        try:
            yield made
        except Exception as error:
            for one in (cluster.ask("/apps").get("apps") or {}).get("app") or []:
                error.add_note(
                    f"--- {one['id']} {one['state']}: {one['diagnostics']}\n{cluster.output(one['id'])[-3000:]}"
                )
            raise


def settings_of(cluster: YarnCluster, node_file: Path, **conf: str) -> SparkSettings:
    return cluster.settings({CONNECTIONS_PROPERTY: str(node_file), **conf})


def leaves_nothing(run: Running, cluster: YarnCluster) -> None:
    """YARN has no application of the run any more, the nodes have none of its processes, and the log knows that."""
    left = LeftDrivers(run.store, run.context.managers, [run.run.run_id])
    eventually(lambda: not left.look_after(), what="all ends are confirmed", timeout=LONG, every=0.5)
    found = (cluster.ask(f"/apps?applicationTags=logio-run-{run.run.uid}").get("apps") or {}).get("app") or []
    assert found and not [one for one in found if one["state"] not in ("FINISHED", "FAILED", "KILLED")]
    for one in found:
        eventually(lambda one=one: not cluster.processes(one["id"]), what="it ends", timeout=LONG, every=0.2)  # type: ignore[misc]


def application_of(run: Running, group: str) -> str:
    reported = run.status(group).reported
    assert reported is not None and reported.id.startswith("application_") and reported.attempt >= 1
    return reported.id


def test_whatever_dies_the_result_is_exact(tmp_path: Path, postgres_url: str, postgres_warehouse_url: str) -> None:
    with (
        cluster_in(tmp_path, ("east", "west"), 2, on_hosts=False) as cluster,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url) as made,
    ):
        run = made.run
        made.until_held(10, LONG)
        made.is_recovered("its Python is killed", lambda: run.signal("make", signal.SIGKILL), 10, LONG)
        made.until_held(20, LONG)
        made.is_recovered("its JVM is killed", lambda: run.signal("make", signal.SIGKILL, jvm=True), 20, LONG)
        made.until_held(30, LONG)
        node = cluster.node_of(application_of(run, "make"))
        made.is_recovered("its node is killed", lambda: cluster.kill_node(node), 30, LONG)
        made.until_held(40, LONG)
        working = run.status("make").incarnation
        cluster.kill_resource_manager()
        run.tend()
        cluster.start_resource_manager()
        made.open(40)
        run.finish(timeout=LONG)
        assert run.status("make").incarnation == working, "drivers live on without a ResourceManager"
        log.info("seconds to the first new commit: %s", made.seconds)
        assert made.rows() == EXPECTED
        leaves_nothing(run, cluster)


@pytest.mark.skipif(hosts.why_not() is not None, reason=f"hosts are needed: {hosts.why_not()}")
def test_a_driver_that_was_cut_off_commits_nothing_when_it_is_back(tmp_path: Path) -> None:
    """Its master does not give up meanwhile, as that of a larger cluster would not."""
    patient = {"spark.hadoop.yarn.resourcemanager.connect.max-wait.ms": str(900_000)}
    with (
        cluster_in(tmp_path, ("east", "west"), 2) as cluster,
        server_at(cluster.address) as server,
        gated(cluster, tmp_path, server.new_database(), server.new_database(migrated=False), conf=patient) as made,
    ):
        run = made.run
        made.until_held(10, LONG)
        zombie = application_of(run, "make")
        host = cluster.hosts[cluster.node_of(zombie)]
        made.is_recovered("its node is cut off", host.cut_off, 10, LONG)
        made.until_held(20, LONG)
        successor = run.status("make").incarnation
        assert cluster.processes(zombie), "it computes on, and asks for what it cannot reach"
        host.reconnect()
        eventually(lambda: not cluster.processes(zombie), what="its node ends it", timeout=LONG, every=0.2)
        log.info("what the zombie has printed:\n%s", cluster.output(zombie)[-3000:])
        for gate in GATES[1:]:
            made.open(gate)
        run.finish(timeout=LONG)
        assert run.status("make").incarnation == successor, "it has replaced nothing"
        log.info("seconds to the first new commit: %s", made.seconds)
        assert made.rows() == EXPECTED
        leaves_nothing(run, cluster)


@contextmanager
def server_at(address: str) -> Iterator[PostgresServer]:
    """One that all hosts reach."""
    server = PostgresServer(host=address)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.destroy()


def test_what_the_scheduler_takes_spends_no_budget(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    """Two queues share room for two drivers; both groups are in the first when the second wants its share. This Hadoop begins
    no second attempt."""
    with (
        cluster_in(tmp_path, ("east",), 2, on_hosts=False, hdfs=False, queues=("default", "other")) as cluster,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url, recoveries=0) as made,
    ):
        run, bench = made.run, Bench(cluster)
        made.until_held(10, LONG)
        run.until(lambda: run.is_running("save"), "both work", timeout=LONG)
        applications = {application_of(run, group): group for group in ("make", "save")}
        stranger = bench.submitted("works", **{"spark.yarn.queue": "other"})
        run.until(lambda: any(map(was_preempted(cluster), applications)), "one is preempted", timeout=LONG)
        [taken] = filter(was_preempted(cluster), applications)
        group, begun = applications[taken], time.monotonic()
        run.until(lambda: run.status(group).incarnation == 2, "it is dead", timeout=LONG)
        assert list(cluster.attempts(taken)) == [1]
        assert not cluster.is_living(taken)
        run.until(lambda: has_waited(run, group), "the successor waits for its share", timeout=LONG)
        bench.let_end(stranger)
        run.until(lambda: run.is_running(group, 2), "the successor works", timeout=LONG)
        log.info("seconds to a successor that works, with the room back: %.1f", time.monotonic() - begun)
        for gate in GATES:
            made.open(gate)
        run.finish(timeout=LONG)
        assert run.status(group).incarnation == 2 and made.rows() == EXPECTED
        drivers = [one for one in run.store.drivers(run.run.run_id) if one.group == group]
        assert [one.was_taken for one in drivers] == [True, False], "it spends no budget: there is none"
        leaves_nothing(run, cluster)


def allow(attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Hadoop has it that begins an application again although it is to have one attempt only."""
    monkeypatch.setattr(yarn, "OURS", {**yarn.OURS, "spark.yarn.maxAppAttempts": str(attempts)})


def was_preempted(cluster: YarnCluster) -> Callable[[str], bool]:
    def was(application: str) -> bool:
        return "exitCode: -102" in cluster.attempts(application)[1]

    return was


def has_waited(run: Running, group: str) -> bool:
    said = run.status(group).manager_said
    return said is not None and said.state == "queued"


def test_a_second_attempt_is_the_driver_if_the_first_had_not_registered(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(2, monkeypatch)
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        f'case "$CONTAINER_ID" in *_01_000001) touch {tmp_path}/$CONTAINER_ID; exec sleep {2 * LONG:g};; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    conf = {"spark.pyspark.python": str(python)}
    with (
        cluster_in(tmp_path, ("east",), 2, on_hosts=False, hdfs=False) as cluster,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url, conf=conf, recoveries=0) as made,
    ):
        run = made.run
        run.until(lambda: len(firsts(tmp_path)) == 2, "the first attempts run, and have not registered", timeout=LONG)
        for application in firsts(tmp_path):
            for process in cluster.processes(application):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        run.until(lambda: made.held(10), "make works", timeout=LONG)
        for gate in GATES:
            made.open(gate)
        run.finish(timeout=LONG)
        for group in ("make", "save"):
            status = run.status(group)
            assert status.reported is not None and (status.incarnation, status.reported.attempt) == (1, 2)
        assert made.rows() == EXPECTED
        leaves_nothing(run, cluster)


def test_a_second_attempt_ends_quietly_if_the_first_had_registered(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler takes the container of a driver that works, and gives the application one again before any look finds the
    driver dead."""
    allow(2, monkeypatch)
    with (
        cluster_in(tmp_path, ("east",), 2, on_hosts=False, hdfs=False, queues=("default", "other")) as cluster,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url, recoveries=0) as made,
    ):
        run, bench = made.run, Bench(cluster)
        made.until_held(10, LONG)
        run.until(lambda: run.is_running("save"), "both work", timeout=LONG)
        applications = {application_of(run, group): group for group in ("make", "save")}
        stranger = bench.submitted("works", **{"spark.yarn.queue": "other"})
        eventually(lambda: any(map(was_preempted(cluster), applications)), what="one is taken", timeout=LONG, every=0.2)
        [taken] = filter(was_preempted(cluster), applications)
        group, begun = applications[taken], time.monotonic()
        bench.let_end(stranger)
        eventually(lambda: not cluster.is_living(taken), what="the second attempt has ended", timeout=LONG, every=0.2)
        assert list(cluster.attempts(taken)) == [1, 2]
        assert cluster.application(taken)["finalStatus"] == "SUCCEEDED", "no third one is begun"
        assert run.status(group).incarnation == 1 and "this driver exits before its first read" in cluster.output(taken)
        run.until(lambda: run.is_running(group, 2), "the log's own successor works", timeout=LONG)
        log.info("seconds to a successor that works: %.1f", time.monotonic() - begun)
        for gate in GATES:
            made.open(gate)
        run.finish(timeout=LONG)
        assert made.rows() == EXPECTED
        drivers = [one for one in run.store.drivers(run.run.run_id) if one.group == group]
        assert [one.was_taken for one in drivers] == [True, False], "it spends no budget: there is none"
        leaves_nothing(run, cluster)


def test_a_lake_is_exact_when_yarn_begins_its_driver_again_on_another_node(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is lost in the middle of a job, and written off, before any look finds the driver dead. There is no budget."""
    allow(2, monkeypatch)

    def settings(says: NodeSays) -> SparkSettings:
        node = write_node_file(tmp_path / "node.json", says["log"], says["connections"], {}, payloads=says["payloads"])
        return settings_of(cluster, node, **{"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "true"})

    with (
        cluster_in(tmp_path, ("east", "west"), 5, on_hosts=False, hdfs=False) as cluster,
        cluster_lake(settings, tmp_path, postgres_url, postgres_warehouse_url, recoveries=0) as made,
    ):
        run, (first, *others) = made.run, made.gates
        made.until_held(first, LONG)
        application = application_of(run, "make")
        link = SparkUi("").address([run.status("make")])
        assert link == f"http://localhost:{cluster.ports['web']}/proxy/{application}/"
        with urlopen(link, timeout=60) as page:
            assert page.status == 200 and b"Spark Jobs" in page.read(), "YARN's proxy leads to the driver's UI"

        def fault() -> None:
            cluster.kill_node(cluster.node_of(application))
            ends = lambda: len(cluster.attempts(application)) > 1 and not cluster.is_living(application)  # noqa: E731
            eventually(ends, what="the second attempt has ended", timeout=LONG, every=0.5)

        made.is_recovered("YARN begins it again on another node", fault, first, LONG)
        assert list(cluster.attempts(application)) == [1, 2]
        assert cluster.application(application)["finalStatus"] == "SUCCEEDED", "it ends quietly"
        assert "this driver exits before its first read" in cluster.output(application)
        for gate in others:
            made.open(gate)
        run.finish(timeout=2 * LONG)
        log.info("seconds to the first new commit: %s", made.seconds)
        drivers = [one for one in run.store.drivers(run.run.run_id) if one.group == "make"]
        assert [(one.incarnation, one.was_taken) for one in drivers] == [(1, True), (2, False)]
        made.assert_exact()
        leaves_nothing(run, cluster)
        made.leaves_nothing()


def firsts(folder: Path) -> list[str]:
    """The applications whose first attempts have begun to run a program."""
    return [f"application_{'_'.join(file.name.split('_')[1:3])}" for file in folder.glob("container_*_01_000001")]


def test_a_driver_in_a_full_queue_is_no_dead_one(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    """Room for one driver of two groups: the second waits for longer than a launch may take, until the first has ended."""
    lease = Lease(15, 60)
    with (
        cluster_in(tmp_path, ("east",), 1, on_hosts=False, hdfs=False) as cluster,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url, lease=lease) as made,
    ):
        made.until_held(GATES[0], LONG)
        made.run.until(lambda: _waited(made) > 1.5 * lease.launch_seconds, "save waits for long", timeout=LONG)
        status = made.run.status("save")
        assert (status.incarnation, status.state) == (1, GroupState.SUBMITTED)
        assert status.manager_said is not None and status.manager_said.state == "queued"
        assert "in queue root.default" in status.manager_said.why
        for gate in GATES:
            made.open(gate)
        made.run.finish(timeout=LONG)
        assert [made.run.status(group).incarnation for group in ("make", "save")] == [1, 1], "no launch was wasted"
        assert made.rows() == EXPECTED
        leaves_nothing(made.run, cluster)


def _waited(made: Gated) -> float:
    [driver] = [one for one in made.run.store.drivers(made.run.run.run_id) if one.group == "save"]
    return time.time() - driver.claimed_at


class LosesAnswers(Managers):
    """Each driver is submitted, and the answer does not come."""

    def for_settings(self, settings: SparkSettings, conf: Mapping[str, str]) -> YarnManager:
        return WithoutAnswer.of_settings(settings, conf)


class WithoutAnswer(YarnManager):
    def submit(self, submission: Submission, claim: Claim, launch: Launch) -> Submission:
        super().submit(submission, claim, launch)
        raise SubmissionUnknown("no answer")


def test_a_driver_whose_submission_had_no_answer_is_the_driver(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    with (
        cluster_in(tmp_path, ("east",), 2, on_hosts=False, hdfs=False) as cluster,
        gated(cluster, tmp_path, postgres_url, postgres_warehouse_url) as made,
    ):
        made.run.context = replace(made.run.context, managers=LosesAnswers())
        for gate in GATES:
            made.open(gate)
        made.run.finish(timeout=LONG)
        assert made.rows() == EXPECTED
        assert [made.run.status(group).incarnation for group in ("make", "save")] == [1, 1]
        assert application_of(made.run, "make") != application_of(made.run, "save")
        leaves_nothing(made.run, cluster)


def test_sales_are_exact_when_the_driver_with_spark_dies(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str, small_transactions: Path
) -> None:
    node = write_node_file(tmp_path / "node.json", postgres_url, {"warehouse": postgres_warehouse_url}, {})
    with (
        cluster_in(tmp_path, ("east",), 8, on_hosts=False) as cluster,
        running(
            postgres_url,
            postgres_warehouse_url,
            small_transactions,
            NoLauncher(tmp_path / "none"),
            ref=SALES,
            spark=settings_of(cluster, node, **{"spark.sql.shuffle.partitions": "2"}),
            lease=Lease(15, 240),
            code=collect(SALES),
        ) as run,
    ):
        run.until(lambda: run.is_running("hourly") and run.status("hourly").commits, "hourly works", timeout=LONG)
        died = application_of(run, "hourly")
        run.signal("hourly", signal.SIGKILL)
        assert run.status("hourly").state is GroupState.RUNNING, "in the middle"
        run.finish(timeout=2 * LONG)
        assert application_of(run, "hourly") != died
        assert run.status("hourly").incarnation > 1
        leaves_nothing(run, cluster)
    assert_exact(postgres_warehouse_url, small_transactions, SALES_RECORDS_PER_BATCH)


def living(cluster: YarnCluster) -> int:
    return sum(cluster.is_living(one["id"]) for one in cluster.ask("/apps")["apps"]["app"])


def test_a_lake_is_exact_when_jvm_and_python_are_killed_in_the_middle_of_jobs(
    tmp_path: Path, postgres_url: str, postgres_warehouse_url: str
) -> None:
    """Each time a task of an executor has begun to write a file; the payload store is a folder that all nodes have."""

    def settings(says: NodeSays) -> SparkSettings:
        node = write_node_file(tmp_path / "node.json", says["log"], says["connections"], {}, payloads=says["payloads"])
        return settings_of(cluster, node, **{"spark.sql.shuffle.partitions": "2"})

    with (
        cluster_in(tmp_path, ("east",), 8, on_hosts=False, hdfs=False) as cluster,
        cluster_lake(settings, tmp_path, postgres_url, postgres_warehouse_url) as made,
    ):
        run, (first, second, third) = made.run, made.gates
        made.until_held(first, LONG)
        made.is_recovered("its JVM is killed", lambda: run.signal("make", signal.SIGKILL, jvm=True), first, LONG)
        made.until_held(second, LONG)
        made.is_recovered("its Python is killed", lambda: run.signal("make", signal.SIGKILL), second, LONG)
        made.until_held(third, LONG)
        eventually(lambda: living(cluster) == 2, what="what died is gone", timeout=LONG, every=0.5)
        assert made.living() == {"make": 1, "sum": 1}
        made.open(third)
        run.finish(timeout=2 * LONG)
        log.info("seconds to the first new commit: %s", made.seconds)
        made.assert_exact()
        leaves_nothing(run, cluster)
        made.leaves_nothing()
