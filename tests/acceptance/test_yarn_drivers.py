"""Drivers on YARN, whatever dies: real daemons of YARN and HDFS, a log in PostgreSQL, results by hand or by DuckDB."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.errors import SubmissionUnknown
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.launch.managers.yarn import YarnManager
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.protocol.liveness import Lease
from airflow_logio.protocol.states import GroupState
from airflow_logio.store.records.driver_records import Claim, Submission
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from tests.support.gated_runs import NoLauncher
from tests.support.grocery import assert_exact
from tests.support.running import SALES, SALES_RECORDS_PER_BATCH, Running, running
from tests.support.standalone_runs import EXPECTED, GATES, Gated, gated_by, write_node_file
from tests.support.waiting import eventually
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
def gated(cluster: YarnCluster, folder: Path, log_url: str, warehouse_url: str, **more: Any) -> Iterator[Gated]:
    """A run of the small pipeline, whose drivers use no Spark."""
    settings = lambda node: settings_of(cluster, node)  # noqa: E731
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
        run.until(lambda: run.is_running("hourly"), "hourly works", timeout=LONG)
        run.signal("hourly", signal.SIGKILL)
        run.finish(timeout=2 * LONG)
        assert run.status("hourly").incarnation > 1
        leaves_nothing(run, cluster)
    assert_exact(postgres_warehouse_url, small_transactions, SALES_RECORDS_PER_BATCH)
