"""A standalone master takes drivers by its REST server: what it says of them in each state, and what it ends."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import psutil
import pytest

from airflow_logio.errors import ManagerUnavailable, SubmissionUnknown
from airflow_logio.launch.driver_arguments import APPLICATION_PROPERTY
from airflow_logio.launch.driver_config import DriverConfig, Launch
from airflow_logio.launch.managers.cluster_manager import DriverSight, Sighting
from airflow_logio.launch.managers.standalone import StandaloneManager
from airflow_logio.launch.managers.submission_server import REST_PROPERTY
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support import hosts, small_driver
from tests.support.launches import launch_of
from tests.support.relay import relay
from tests.support.spark_cluster import HOSTS, LITTLE, Cluster, spark_cluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(600)]

DRIVER_CORES = 1
CUT_OFF_SECONDS = 8
"""Without a heartbeat, until the master writes a worker off. It sends four in this time."""
_numbers = count(1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, each with room for one driver."""
    folder = tmp_path_factory.mktemp("standalone")
    with spark_cluster(folder, cores=DRIVER_CORES, memory="300m", variables={"PYSPARK_PYTHON": sys.executable}) as made:
        made.wait_for_workers()
        yield made


@pytest.fixture
def cluster(shared: Cluster) -> Iterator[Cluster]:
    """The same for each test, without a driver."""
    yield shared

    def are_ended() -> bool:
        running = [one["id"] for one in shared.state()["activedrivers"]]
        return all([manager(shared).end(with_id(shared, driver)) for driver in running])

    eventually(are_ended, what="all drivers have ended", timeout=60, every=0.2)


def manager(cluster: Cluster, rest: str | None = None) -> StandaloneManager:
    return StandaloneManager.of_settings(cluster.settings({}), {REST_PROPERTY: rest or cluster.rest})


def with_id(cluster: Cluster, driver: str) -> Submission:
    return Submission("standalone", str(manager(cluster)._address), "", id=driver)


def claimed(cluster: Cluster, group: str) -> tuple[Claim, Launch]:
    """A claim, and a launch of what takes the place of a driver."""
    number = next(_numbers)
    claim = Claim(1, f"{number:032x}", group, 1, f"nonce {number}", False)
    conf = {
        APPLICATION_PROPERTY: small_driver.__file__,
        "spark.driver.memory": "128m",
        "spark.driver.extraJavaOptions": LITTLE,
    }
    settings = replace(cluster.settings(conf), env_vars={})
    return claim, launch_of(
        DriverConfig("postgresql://log", claim, "m", "a", "/b", {}, needs_spark=True), settings, conf
    )


def submitted(cluster: Cluster, group: str) -> Submission:
    claim, launch = claimed(cluster, group)
    master = manager(cluster)
    prepared = master.prepare(claim, launch)
    assert not prepared.id
    master.check_answers()
    return master.submit(prepared, claim, launch)


def seen(cluster: Cluster, submission: Submission) -> Sighting:
    return StandaloneManager.at(submission).look([submission])[submission]


def becomes(cluster: Cluster, submission: Submission, *states: DriverSight) -> Sighting:
    def there() -> Sighting | None:
        found = seen(cluster, submission)
        return found if found.state in states else None

    found = eventually(there, what=f"{submission.id} is {' or '.join(states)}", timeout=120, every=0.1)
    assert found is not None
    return found


def stdout(cluster: Cluster, submission: Submission) -> str:
    path = cluster.folder / "worker" / submission.id / "stdout"
    text = lambda: path.read_text() if path.exists() else ""  # noqa: E731
    return eventually(text, what=f"{path} has lines", timeout=60)


def processes(submission: Submission) -> list[psutil.Process]:
    """What runs of a driver on this machine: its JVM, and its Python, whose arguments have its name."""

    def is_its(process: psutil.Process) -> bool:
        words = process.info["cmdline"] or []
        return f"--name={submission.name}" in words and "SparkSubmit" not in words[0]

    return [process for process in psutil.process_iter(["cmdline"]) if is_its(process)]


def test_drivers_wait_run_and_end_and_the_master_says_so(cluster: Cluster) -> None:
    first, second, third = (submitted(cluster, "stays") for _ in range(3))
    expected = {first: DriverSight.RUNNING, second: DriverSight.RUNNING, third: DriverSight.QUEUED}

    def as_expected() -> bool:
        return {one: found.state for one, found in manager(cluster).look(list(expected)).items()} == expected

    eventually(as_expected, what="two drivers run, one waits", timeout=60, every=0.1)
    words = ast.literal_eval(stdout(cluster, first))
    assert {"--group=stays", "--incarnation=1", f"--name={first.name}", f"--address={first.address}"} <= set(words)
    assert "postgresql" not in str(words), "where the log is, the file of the node says"

    assert manager(cluster).end(third), "a driver that waits does not start any more"
    assert seen(cluster, third).state is DriverSight.EXITED
    eventually(lambda: manager(cluster).end(first), what="its JVM has ended", timeout=60, every=0.1)
    ended = seen(cluster, first)
    assert (ended.state, ended.was_taken) == (DriverSight.EXITED, False)
    assert manager(cluster).end(first), "a driver that has ended is asked for once more"
    eventually(lambda: not processes(first), what="its Python has ended with its JVM", timeout=30)
    assert seen(cluster, second).state is DriverSight.RUNNING

    failed, finished = submitted(cluster, "fails"), submitted(cluster, "ends")
    for one, code in ((failed, "FAILED"), (finished, "FINISHED")):
        end = becomes(cluster, one, DriverSight.EXITED)
        assert end.why.startswith(code) and not end.was_taken, end
    command = manager(cluster).output_command(failed)
    shown = subprocess.run(
        ["sh", "-c", command],
        env={"SPARK_WORKER_DIR": str(cluster.folder / "worker"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Launch Command:" in shown.stdout and failed.name in shown.stdout, "the JVM's own lines"


def test_what_the_master_does_not_know_is_gone_and_asked_for_no_more(cluster: Cluster) -> None:
    unknown = with_id(cluster, "driver-20200101000000-0000")
    unnamed = Submission(unknown.manager, unknown.address, "logio-12345678-g-1-abc")
    found = manager(cluster).look([unknown, unnamed])
    assert {one.state for one in found.values()} == {DriverSight.GONE}
    assert manager(cluster).end(unknown) and manager(cluster).end(unnamed)
    assert manager(cluster).find(unnamed) == ()


def test_an_answer_that_is_lost_may_leave_a_driver_that_the_manager_cannot_name(cluster: Cluster) -> None:
    claim, launch = claimed(cluster, "stays")
    with relay(cluster.rest_port) as way:
        master = manager(cluster, f"http://127.0.0.1:{way.port}")
        prepared = master.prepare(claim, launch)
        way.unanswered = re.compile(rb'"sparkProperties"')
        with pytest.raises(SubmissionUnknown):
            master.submit(prepared, claim, launch)
        assert master.look([prepared])[prepared].state is DriverSight.GONE, "it proves nothing"
        there = lambda: cluster.state()["activedrivers"]  # noqa: E731
        [driver] = eventually(there, what="the master has it", timeout=30)
        again = master.submit(prepared, claim, launch)
        assert again.id != driver["id"], "two drivers of one claim; its nonce admits one"
        assert len(cluster.state()["activedrivers"]) == 2
        way.close()
        assert master.look([again])[again].state is DriverSight.UNKNOWN
        with pytest.raises(ManagerUnavailable, match=r"rest\.enabled"):
            master.end(again)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """A cluster of the test's own, with one worker."""
    opened = []

    def start(*, recovers: bool = False) -> Cluster:
        variables: Mapping[str, str] = {"PYSPARK_PYTHON": sys.executable}
        context = spark_cluster(
            tmp_path, HOSTS[:1], cores=DRIVER_CORES, memory="300m", variables=variables, recovers=recovers
        )
        opened.append(context)
        made = context.__enter__()
        made.wait_for_workers()
        return made

    yield start
    for one in opened:
        one.__exit__(None, None, None)


def test_a_driver_whose_worker_died_is_lost(own: Callable[..., Cluster]) -> None:
    cluster = own()
    driver = submitted(cluster, "stays")
    stdout(cluster, driver)
    cluster.workers[HOSTS[0]].kill()  # the driver's JVM notices it
    lost = becomes(cluster, driver, DriverSight.LOST)
    assert lost.was_taken and manager(cluster).end(driver)
    eventually(lambda: not processes(driver), what="the driver ends with its worker", timeout=60)


@pytest.mark.skipif(hosts.why_not() is not None, reason=f"hosts are needed: {hosts.why_not()}")
def test_a_driver_that_was_cut_off_is_lost_and_ended_when_its_host_is_back(tmp_path: Path) -> None:
    """Without its heartbeat the master writes a worker off, and all drivers on it; their processes know nothing of that."""
    settings = {"spark.worker.timeout": str(CUT_OFF_SECONDS)}
    variables = {"PYSPARK_PYTHON": sys.executable}
    with (
        hosts.network("node") as network,
        spark_cluster(
            tmp_path, ("node",), cores=DRIVER_CORES, memory="300m", variables=variables, properties=settings, on=network
        ) as cluster,
    ):
        cluster.wait_for_workers()
        driver = submitted(cluster, "stays")
        stdout(cluster, driver)
        host = network.hosts["node"]
        host.cut_off()
        lost = becomes(cluster, driver, DriverSight.LOST)
        assert lost.was_taken and processes(driver), "it runs on"
        assert manager(cluster).end(driver), "it holds no room"
        host.reconnect()
        eventually(lambda: not processes(driver), what="the worker registers again, and ends it", timeout=180)
        host.power_off()


def test_a_master_that_was_restarted_has_forgotten_its_drivers_and_ends_them(own: Callable[..., Cluster]) -> None:
    cluster = own()
    driver = submitted(cluster, "stays")
    stdout(cluster, driver)
    cluster.kill_master()
    assert seen(cluster, driver).state is DriverSight.UNKNOWN
    with pytest.raises(ManagerUnavailable, match=r"rest\.enabled"):
        manager(cluster).check_answers()
    assert processes(driver)
    cluster.start_master()
    becomes(cluster, driver, DriverSight.GONE)
    assert manager(cluster).end(driver)
    eventually(lambda: not processes(driver), what="the worker ends what its master does not know", timeout=120)


def test_a_master_that_recovers_knows_its_drivers(own: Callable[..., Cluster]) -> None:
    cluster = own(recovers=True)
    driver = submitted(cluster, "stays")
    stdout(cluster, driver)
    waiting = submitted(cluster, "stays")
    assert seen(cluster, waiting).state is DriverSight.QUEUED
    cluster.kill_master()
    cluster.start_master(recovers=True)
    becomes(cluster, driver, DriverSight.RUNNING)
    assert processes(driver)
    assert seen(cluster, waiting).state is DriverSight.LOST, "Spark writes off what has no worker then"
    eventually(lambda: manager(cluster).end(driver), what="it is ended", timeout=60, every=0.1)
