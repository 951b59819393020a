"""YARN takes drivers by spark-submit: what its ResourceManager says of them in each state, what it ends, and lost answers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from airflow_logio.errors import ConfigurationError, ManagerUnavailable, SubmissionUnknown
from airflow_logio.launch.driver_arguments import own_submission
from airflow_logio.launch.managers import submission_child
from airflow_logio.launch.managers.cluster_manager import DriverSight
from airflow_logio.launch.managers.yarn import YarnManager
from airflow_logio.launch.spark_submit import find_spark_submit
from airflow_logio.store.records.driver_records import Submission
from tests.support.waiting import eventually
from tests.support.yarn_bench import LONG, Bench, claim_of
from tests.support.yarn_cluster import DRIVER_MEGABYTES, why_no_yarn, yarn_cluster

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(1200)]


@contextlib.contextmanager
def bench(folder: Path, **how: object) -> Iterator[Bench]:
    if (why := why_no_yarn()) is not None:
        pytest.skip(why)
    with yarn_cluster(folder / "yarn", **how) as cluster:  # type: ignore[arg-type]
        made = Bench(cluster)
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """One node with room for one driver, without HDFS."""
    folder = tmp_path_factory.mktemp("small")
    with bench(folder, nodes=("east",), node_megabytes=DRIVER_MEGABYTES, on_hosts=False, hdfs=False) as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two nodes on hosts of their own, where that can be, and HDFS."""
    with bench(tmp_path_factory.mktemp("whole")) as made:
        yield made


# --- what it says -----------------------------------------------------------------------------------------------------


def test_drivers_wait_run_and_end_and_yarn_says_so(small: Bench) -> None:
    works = small.submitted("works")
    printed = small.prints(works, "--group=works", "container_")
    assert small.becomes(works, DriverSight.RUNNING).why == ""
    assert f"--name={works.name}" in printed and "--manager=yarn" in printed
    waits = small.submitted("stays")
    sighting = small.becomes(waits, DriverSight.QUEUED)
    assert "in queue root.default" in sighting.why and sighting.since is not None
    told = msgspec.structs.replace(waits, id="")
    assert small.manager.find(told) == [waits]
    both = small.manager.look([works, told])
    assert [both[one].state for one in (works, told)] == [DriverSight.RUNNING, DriverSight.QUEUED]
    assert small.cluster.application(works.id)["runningContainers"] == 1, "a group without Spark has no executors"
    small.ended(told)
    assert small.seen(waits).state is DriverSight.EXITED, "it never began"
    small.let_end(works)
    assert "FINISHED" in small.becomes(works, DriverSight.EXITED).why
    assert small.manager.output_command(works) == f"yarn logs -applicationId {works.id}"
    assert small.manager.end(works)
    nothing = msgspec.structs.replace(works, name="logio-another", id="application_1_0001")
    assert small.seen(nothing).state is DriverSight.GONE
    assert small.manager.find(nothing) == []


def test_drivers_that_fail_or_are_killed_have_exited(small: Bench) -> None:
    fails = small.submitted("fails")
    assert "exitCode: " in small.becomes(fails, DriverSight.EXITED).why
    stays = small.submitted("stays")
    small.prints(stays, "--group=stays")
    small.becomes(stays, DriverSight.RUNNING)  # it has made no session, and holds its container
    for process in small.cluster.processes(stays.id):
        with contextlib.suppress(Exception):
            if "ApplicationMaster" in " ".join(process.cmdline()) and process.name() == "java":
                process.kill()
    sighting = small.becomes(stays, DriverSight.EXITED)
    assert "exitCode: 137" in sighting.why and not sighting.was_taken


def test_what_a_person_kills_is_written_off_and_has_no_room(small: Bench) -> None:
    stays = small.submitted("stays")
    small.prints(stays, "--group=stays")
    small.ended(stays)
    sighting = small.seen(stays)
    assert sighting.state is DriverSight.LOST and "KILLED" in sighting.why and not sighting.was_taken


# --- answers that are lost --------------------------------------------------------------------------------------------


def test_a_spark_submit_that_is_killed_behind_its_submission_has_submitted(small: Bench, tmp_path: Path) -> None:
    real = find_spark_submit(None, os.environ)
    script = tmp_path / "spark-submit"
    script.write_text(
        f'#!/bin/sh\n"{real}" "$@" > {tmp_path}/said 2>&1 &\n'
        f"until grep -q 'Submitted application' {tmp_path}/said; do sleep 0.1; done\nkill -9 $!\nexit 137\n"
    )
    script.chmod(0o755)
    found = _submitted_by(small, script)
    assert small.seen(found).state in (DriverSight.QUEUED, DriverSight.STARTING, DriverSight.RUNNING)
    assert small.manager.find(msgspec.structs.replace(found, id="")) == [found]
    small.ended(found)


@pytest.mark.parametrize("how", ["kill -9 $$", "exec sleep 600"])
def test_a_spark_submit_that_dies_or_hangs_may_have_submitted(
    how: str, small: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "spark-submit"
    script.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\n{how}\n")
    script.chmod(0o755)
    monkeypatch.setattr(submission_child, "SUBMIT_SECONDS", 3.0)
    with pytest.raises(SubmissionUnknown, match="lists no application with the tag logio-"):
        _submitted_by(small, script)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists(), "nothing of it is on its way"


def test_a_spark_submit_that_submits_nothing_says_why(small: Bench, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unknown queue: nowhere"):
        small.submitted("stays", **{"spark.yarn.queue": "nowhere"})
    script = tmp_path / "spark-submit"
    script.write_text(
        "#!/bin/sh\necho '26/11/30 12:00:00 WARN Utils: noise'; echo 'Error: no such thing' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    with pytest.raises(
        ConfigurationError, match="ended with exit code 1, and has submitted nothing to YARN: Error: no such"
    ):
        _submitted_by(small, script)


def _submitted_by(one: Bench, script: Path) -> Submission:
    claim, launch = claim_of("stays"), one.launch("stays")
    launch = replace(launch, settings=replace(launch.settings, spark_binary=str(script)))
    manager = YarnManager.of_settings(launch.settings, launch.conf)
    return manager.submit(manager.prepare(claim, launch), claim, launch)


# --- who may end it, and what is left ---------------------------------------------------------------------------------


def test_where_its_pages_may_end_nothing_hadoops_client_does(small: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of the pages are those of nobody in particular, and YARN knows who submitted."""
    stays = small.submitted("stays")
    small.prints(stays, "--group=stays")
    small.cluster.kill_resource_manager()
    assert small.seen(stays).state is DriverSight.UNKNOWN
    with pytest.raises(ManagerUnavailable, match="does not answer"):
        small.manager.check_answers()
    acls = {"yarn.acl.enable": "true", "yarn.admin.acl": "root", "yarn.webapp.filter-entity-list-by-user": "true"}
    small.cluster.start_resource_manager(acls)
    try:
        eventually(
            lambda: small.seen(stays).state is not DriverSight.UNKNOWN, what="it is back", timeout=LONG, every=0.2
        )
        monkeypatch.setenv("HADOOP_CONF_DIR", str(small.cluster.conf))
        small.ended(stays)
        assert small.seen(stays).state is DriverSight.LOST
        hidden = small.submitted("stays")
        small.prints(hidden, "--group=stays")
        small.becomes(hidden, DriverSight.RUNNING)
        assert not small.cluster.application(hidden.id).get("amContainerLogs"), "only the diagnostics say it"
        named = msgspec.structs.replace(hidden, id="")
        assert small.seen(named).state is DriverSight.UNKNOWN, "it is in no list"
        for ask in (small.manager.find, small.manager.end):
            with pytest.raises(ManagerUnavailable, match="filter-entity-list-by-user"):
                ask(named)
        small.ended(hidden)
        shown = small.submitted("stays", **{"spark.ui.view.acls": "dr.who"})
        small.prints(shown, "--group=stays")
        small.becomes(shown, DriverSight.RUNNING)
        assert small.cluster.application(shown.id)["amContainerLogs"]
        assert small.manager.find(msgspec.structs.replace(shown, id="")) == [shown]
        small.ended(shown)
    finally:
        small.cluster.kill_resource_manager()
        small.cluster.start_resource_manager()
        small.cluster.wait_for("east")


def test_what_an_ended_driver_has_left_of_a_run_that_is_not_known_is_removed(
    whole: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(whole.cluster.conf))
    ones = [whole.submitted("stays") for _ in range(2)]
    for one in ones:
        whole.prints(one, "--group=stays")
    first, second = (_run_of(whole, one) for one in ones)  # other tests of this cluster have left something, too
    assert whole.manager.sweep("", lambda uid: uid not in (first, second)) == 0, "they live, and may be another log's"
    for one in ones:
        for process in whole.cluster.processes(one.id):  # or it may remove its folder itself
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        whole.ended(one)
    assert whole.manager.sweep("", lambda uid: uid != second) == 1
    assert whole.manager.sweep("", lambda uid: uid != second) == 0
    assert whole.manager.sweep("", lambda uid: uid != first) == 1


def _run_of(one: Bench, submission: Submission) -> str:
    tags = one.cluster.application(submission.id)["applicationTags"].split(",")
    [run] = [tag.removeprefix("logio-run-") for tag in tags if tag.startswith("logio-run-")]
    return str(run)


# --- what is lost -----------------------------------------------------------------------------------------------------


def test_a_driver_on_a_lost_node_was_taken(whole: Bench) -> None:
    """This Hadoop begins no second attempt where one was asked for."""
    works = whole.submitted("works")
    registered = _registered(whole, works)
    assert registered.attempt == 1 and registered.id == works.id
    node = whole.cluster.node_of(works.id)
    whole.cluster.kill_node(node)
    try:
        sighting = whole.becomes(registered, DriverSight.LOST)
        assert sighting.was_taken and "exitCode: -100" in sighting.why
        assert whole.manager.end(works)
    finally:
        whole.cluster.return_node(node)


def _registered(one: Bench, submission: Submission) -> Submission:
    """As its driver reports itself."""
    printed = one.prints(submission, " in container_")
    container = "container_" + printed.split(" in container_")[1].split()[0]
    return own_submission(msgspec.structs.replace(submission, id=""), {"CONTAINER_ID": container}, Path.cwd())


def test_a_restarted_resource_manager_knows_what_it_has_kept(small: Bench) -> None:
    works = small.submitted("works")
    small.becomes(works, DriverSight.RUNNING)
    small.cluster.kill_resource_manager()
    sighting = small.seen(works)
    assert sighting.state is DriverSight.UNKNOWN and "does not answer" in sighting.why
    with pytest.raises(ManagerUnavailable):
        small.manager.end(works)
    small.cluster.start_resource_manager()
    small.becomes(works, DriverSight.RUNNING)
    assert small.cluster.processes(works.id)
    small.cluster.wait_for("east")
    small.cluster.kill_resource_manager()
    small.cluster.start_resource_manager(recovers=False)
    small.becomes(works, DriverSight.GONE)
    assert small.manager.end(works)
    small.cluster.wait_for("east")
    eventually(lambda: not small.cluster.processes(works.id), what="its nodes end it", timeout=LONG, every=0.2)
