"""Groups whose drivers a cluster manager starts: launched, watched and recovered by Airflow's tasks and triggers.

The manager is a server of a standalone master's REST on paper; the tests speak to the log for the drivers.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import TaskDeferred
from msgspec import structs

from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.hooks.kubernetes import access_of
from airflow_logio.hooks.logio import LogioHook
from airflow_logio.hooks.spark import spark_target
from airflow_logio.launch.managers.known_managers import Managers
from airflow_logio.launch.managers.kubernetes import KubernetesManager
from airflow_logio.launch.spark_settings import SparkArguments, local_files
from airflow_logio.operators._task.arguments import recipe_of
from airflow_logio.operators.recover_group import LogioRecoverGroupOperator
from airflow_logio.operators.spark import LogioSparkOperator
from airflow_logio.operators.stop import LogioStopOperator
from airflow_logio.operators.supervise import LogioSuperviseOperator
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.cluster_news import ClusterNews
from airflow_logio.store import open_store
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.driver_records import Claim, DriverIdentity, GroupRef, ManagerSaid, Submission
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision.clusters import cluster_drivers
from airflow_logio.triggers import failed_groups, recovery
from airflow_logio.triggers.failed_groups import LogioFailedGroupTrigger
from tests.support.airflow_connections import connection
from tests.support.waiting import eventually
from tests.unit.airflow.support import FakeLauncher, context, deferred, fired, run_started, watched

REF, GROUP = "pipelines.sales:sales", "totals"


class Master:
    """What its REST server was asked to start, and what it says of each driver."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.states: dict[str, str] = {}
        self.port = 0
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        master = self

        class Rest(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                state = master.states.get(self.path.rpartition("/")[2])
                known = {"driverState": state, "workerHostPort": "w:1"} if state else {}
                self._answer({"action": "SubmissionStatusResponse", "success": state is not None, **known})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
                *_, what, driver = self.path.split("/")
                if what == "kill":
                    if driver in master.states:
                        master.states[driver] = "KILLED"
                    self._answer({"action": "KillSubmissionResponse", "success": driver in master.states})
                    return
                driver = f"driver-20261130000000-{len(master.submitted):04d}"
                master.submitted.append(body)
                master.states[driver] = "SUBMITTED"
                self._answer({"action": "CreateSubmissionResponse", "success": True, "submissionId": driver})

            def _answer(self, said: Mapping[str, Any]) -> None:
                content = json.dumps(said).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Rest)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    @property
    def conf(self) -> dict[str, str]:
        return {"spark.logio.standalone.rest": f"http://127.0.0.1:{self.port}"}

    def claim(self, run: Run) -> Claim:
        """That of the driver which was submitted last."""
        words = self.submitted[-1]["appArgs"]
        said = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
        return Claim(run.run_id, said["run"], said["group"], int(said["incarnation"]), said["nonce"], False)


@pytest.fixture
def master() -> Iterator[Master]:
    made = Master()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def log(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogStore]:
    monkeypatch.setenv("AIRFLOW__LOGIO__WORK_DIR", str(tmp_path / "drivers"))
    monkeypatch.setenv("AIRFLOW_CONN_LOGIO_DEFAULT", connection("logio", extra={"sqlalchemy_url": postgres_url}))
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE_DB", connection("sqlite", host=f"{tmp_path}/warehouse.db"))
    cluster = connection("spark", host="spark://127.0.0.1:7077", extra={"deploy-mode": "cluster"})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", cluster)
    store = open_store(postgres_url, application="test")
    yield store
    store.dispose()


@pytest.fixture
def run(log: LogStore, tmp_path: Path) -> Run:
    return run_started(log, REF, tmp_path)


@pytest.fixture(autouse=True)
def no_driver_of_this_machine(launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for operator in (LogioSparkOperator, LogioSuperviseOperator, LogioRecoverGroupOperator):
        monkeypatch.setattr(operator, "make_launcher", lambda self: launcher)
    monkeypatch.setattr(recovery, "make_launcher", lambda: launcher)
    yield
    assert not launcher.claims


def task(master: Master, group: str = GROUP, **arguments: Any) -> LogioSparkOperator:
    given = {"task_id": group, "pipeline": REF, "poll_interval": 0.01, "queue": "large", **arguments}
    return LogioSparkOperator(conf=master.conf, **given)


def supervisor() -> LogioSuperviseOperator:
    return LogioSuperviseOperator(task_id="supervise", pipeline=REF, poll_interval=0.01)


def again(waiting: TaskDeferred) -> Any:
    """The trigger, as another process makes it."""
    assert waiting.trigger is not None
    return type(waiting.trigger)(**waiting.trigger.serialize()[1])


def status(log: LogStore, run: Run, group: str = GROUP) -> GroupStatus:
    return log.group(run.run_id, group)


def register(log: LogStore, run: Run, master: Master) -> GroupRef:
    """What a driver on a node does first."""
    submission = status(log, run).submission
    assert submission is not None
    identity = DriverIdentity("node-1", "boot of the node", 4711, 1.0)
    master.states[submission.id] = "RUNNING"
    ref = log.register(master.claim(run), identity, reported=submission)
    log.heartbeat(ref, 1, ready=True, rss_bytes=1)
    return ref


def test_a_driver_waits_for_room_runs_and_is_recovered_by_the_triggerer(
    log: LogStore, run: Run, master: Master, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task has a queue, which says where it is submitted first, and not where it is recovered. No worker is needed."""
    monkeypatch.setattr(cluster_drivers, "SILENT_SECONDS", 0.5)
    waiting = deferred(lambda: task(master).execute(context()))
    found = status(log, run)
    assert (found.state, found.own_place, found.log_path, len(master.submitted)) == (
        GroupState.SUBMITTED,
        False,
        None,
        1,
    )
    assert found.submission is not None and found.submission.id == "driver-20261130000000-0000"
    assert "warehouse.db" not in json.dumps(master.submitted) and "postgresql" not in json.dumps(master.submitted)

    def runs_and_halts() -> None:
        said = lambda: (status(log, run).manager_said or ManagerSaid("")).state == "queued"  # noqa: E731
        eventually(said, what="the trigger notes what the master says")
        ref = register(log, run, master)
        log.request(run.run_id, GROUP, GroupState.HALTED, incarnation=1)
        log.halted(ref)

    event = fired(again(waiting), runs_and_halts)
    assert event["state"] == GroupState.HALTED.value

    cleared = deferred(lambda: task(master).execute(context(attempt=2, max_tries=4)))
    assert (len(master.submitted), status(log, run).incarnation, status(log, run).recoveries) == (2, 2, 0)
    ref = register(log, run, master)
    supervising = again(deferred(lambda: supervisor().execute(context())))

    def dies() -> None:
        master.states["driver-20261130000000-0001"] = "FAILED"
        eventually(lambda: len(master.submitted) == 3, what="the triggerer submits the next driver")
        eventually(lambda: status(log, run).state is GroupState.RESTARTED, what="it was accepted")

    watched(supervising, dies)  # no worker is woken for it
    found = status(log, run)
    assert (found.incarnation, found.recoveries) == (3, 1)
    assert "is launched as incarnation 3, by the triggerer" in caplog.text
    assert "What its JVM prints: tail -n 200" in caplog.text, "of the driver that has died"
    assert ref.incarnation == 2 and cleared.trigger is not None


def test_a_manager_that_does_not_answer_costs_time_only(
    log: LogStore, run: Run, master: Master, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the first launch, at a recovery by the triggerer and by workers, and where a person has cleared the task."""
    monkeypatch.setattr(recovery, "AGAIN_SECONDS", 0.01)
    conf_of = task(master)
    master.stop()
    waiting = deferred(lambda: conf_of.execute(context()))
    assert (status(log, run).state, status(log, run).incarnation) == (GroupState.NEW, 0)
    assert "no recovery is spent: no standalone master answers" in caplog.text
    event = fired(again(waiting))
    assert event["state"] == GroupState.NEW.value, "the task is woken for another attempt"
    master.start()
    deferred(lambda: task(master).resume(context(), event))
    assert (status(log, run).state, status(log, run).incarnation) == (GroupState.SUBMITTED, 1)

    ref = register(log, run, master)
    master.stop()
    log.declare_dead(ref, "killed by the test")
    [failed] = fired(LogioFailedGroupTrigger(logio_conn_id="logio_default", supervisor="s", run_uid=run.uid))[
        "findings"
    ]
    with pytest.raises(ManagerUnavailable):
        LogioRecoverGroupOperator(task_id="r", finding=failed).execute(context())
    waiting = deferred(lambda: supervisor().resume(context(), {"findings": [failed]}))
    trigger = again(waiting)
    assert trigger.unanswered == [f"{run.uid} {GROUP} 1"], "its worker was no use a moment ago"
    monkeypatch.setattr(failed_groups, "UNANSWERED_SECONDS", 0.0)
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 0.2)
    assert fired(again(waiting))["findings"] == [failed], "after a while it is asked again"
    monkeypatch.setattr(failed_groups, "UNANSWERED_SECONDS", 600.0)
    found = status(log, run)
    assert (found.state, found.incarnation, found.recoveries) == (GroupState.DEAD, 1, 0)

    def answers() -> None:
        master.start()
        eventually(lambda: len(master.submitted) == 2, what="the triggerer submits it by itself")
        eventually(lambda: status(log, run).state is GroupState.RESTARTED, what="it was accepted")

    watched(trigger, answers)
    assert status(log, run).recoveries == 1
    log.park(GroupRef(run.run_id, GROUP, 2), "enough")

    master.stop()
    started = threading.Timer(1.0, master.start)
    started.start()
    deferred(lambda: task(master).execute(context(attempt=2, max_tries=4)))  # it stays until the wish is met
    started.join()
    assert (status(log, run).incarnation, len(master.submitted)) == (3, 3)


def test_stopping_a_run_ends_a_driver_that_waits_at_its_manager(log: LogStore, run: Run, master: Master) -> None:
    """It may wait for hours, and has done nothing."""
    deferred(lambda: task(master).execute(context()))
    LogioStopOperator(
        task_id="stop", run_uid=run.uid, group=GROUP, mode="halt", deferrable=False, poll_interval=0.01
    ).execute(context())
    assert status(log, run).state is GroupState.HALTED
    assert master.states == {"driver-20261130000000-0000": "KILLED"}


def test_the_log_of_the_task_has_each_sentence_once(log: LogStore, run: Run, master: Master) -> None:
    deferred(lambda: task(master).execute(context()))
    ref, news = GroupRef(run.run_id, GROUP, 1), ClusterNews(120.0)
    submitted, *_ = news.news([status(log, run)])
    assert submitted.startswith("Group totals, incarnation 1: submitted to standalone at http://127.0.0.1")
    assert (
        "/driver-20261130000000-0000/stderr" in submitted and "Its manager's page: http://127.0.0.1:8080/" in submitted
    )
    for said in (ManagerSaid("queued", "queue etl", 0.0), ManagerSaid("starting", "pulls its image", 60.0)):
        log.note_said(ref, said)
        [sentence] = news.news([status(log, run)])
        assert said.state in sentence and said.why in sentence
        assert news.news([status(log, run)]) == []


def test_the_log_of_the_task_says_again_that_a_queue_lasts(log: LogStore, run: Run, master: Master) -> None:
    deferred(lambda: task(master).execute(context()))
    news = ClusterNews(120.0)
    waits = structs.replace(status(log, run), manager_said=ManagerSaid("queued", "queue etl"), said_age_seconds=1.0)
    news.news([waits])

    def said(seconds: float) -> list[str]:
        return news.news([structs.replace(waits, state_age_seconds=seconds)])

    assert [seconds for seconds in range(0, 500, 10) if said(seconds)] == [120, 240, 360, 480]
    [sentence] = said(600.0)
    assert "waited for room on its cluster for 600 s (queued: queue etl)" in sentence
    assert said(605.0) == []


# --- places -----------------------------------------------------------------------------------------------------------

CLUSTER, CLIENT = {"deploy-mode": "cluster"}, {"deploy-mode": "client"}


@pytest.mark.parametrize(
    ("extra", "arguments", "expected"),
    [
        (CLUSTER, {"queue": "large"}, False),
        (CLUSTER, {"pool": "spark", "executor": "CeleryExecutor"}, False),
        (CLIENT, {"queue": "large", "deploy_mode": "cluster"}, False),
        (CLUSTER, {"queue": "large", "deploy_mode": "client"}, True),
        (CLIENT, {"queue": "large"}, True),
        (CLUSTER, {"queue": "large", "own_place": True}, True),
        (CLUSTER, {"queue": "large", "own_place": False}, False),
        (CLUSTER, {"replica": 1, "group": "hourly", "pipeline": "pipelines.sales_scaled:sales_scaled"}, True),
        (CLUSTER, {}, False),
    ],
)
def test_a_queue_is_no_place_of_drivers_on_a_cluster(
    extra: Mapping[str, str], arguments: Mapping[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection("spark", host="spark://a:7077", extra=dict(extra)))
    made = LogioSparkOperator(**{"task_id": GROUP, "pipeline": REF, **arguments})
    assert recipe_of(made, context()).own_place is expected


def test_files_of_the_submitting_machine_are_known() -> None:
    arguments = SparkArguments(
        jars="hdfs://a/b.jar, local:/c.jar", py_files="x/d.py", conf={"spark.files": "/e,s3a://f"}
    )
    template = {"spark.kubernetes.driver.podTemplateFile": "/pod.yaml", "spark.other": "/g"}
    settings = arguments.settings(spark_target(None))
    assert local_files(settings, template) == ["x/d.py", "/e", "/pod.yaml"]


# --- connections of type kubernetes -----------------------------------------------------------------------------------

KUBECONFIG = {
    "clusters": [{"name": "c", "cluster": {"server": "https://api:6443"}}],
    "users": [{"name": "u", "user": {"token": "t0ken-of-the-cluster"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


def test_a_launch_names_the_connection_and_each_process_resolves_it(
    monkeypatch: pytest.MonkeyPatch, log: LogStore, run: Run
) -> None:
    """Several in one process, and nothing of them in the recipe."""
    master = connection("spark", host="k8s://https://api:6443", extra={"deploy-mode": "cluster", "namespace": "etl"})
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", master)
    by_content = connection("kubernetes", extra={"kube_config": json.dumps(KUBECONFIG)})
    monkeypatch.setenv("AIRFLOW_CONN_KUBE_A", by_content)
    monkeypatch.setenv("AIRFLOW_CONN_KUBE_B", connection("kubernetes", extra={"kube_config_path": "/etc/b"}))
    image = {"spark.kubernetes.container.image": "logio:1"}
    made = LogioSparkOperator(task_id=GROUP, pipeline=REF, kubernetes_conn_id="kube_a", conf=image)
    recipe = recipe_of(made, context())
    assert recipe.arguments["kubernetes_conn_id"] == "kube_a" and "t0ken" not in str(recipe)
    settings = SparkArguments.from_given(recipe.arguments).settings(spark_target(recipe.spark_conn_id))

    LogioHook().get_store().dispose()
    managers = Managers()
    launched = managers.for_settings(settings, settings.conf)
    assert isinstance(launched, KubernetesManager)
    assert launched._access == access_of("kube_a") and launched._access.content == KUBECONFIG
    submission = Submission("kubernetes", "https://api:6443", "logio-1", "etl", access="kube_a")
    first, second = managers.at(submission), managers.at(replace_access(submission, "kube_b"))
    assert isinstance(first, KubernetesManager) and isinstance(second, KubernetesManager)
    assert (first._access.content, str(second._access.kubeconfig)) == (KUBECONFIG, "/etc/b")
    assert managers.at(submission) is first
    with pytest.raises(ManagerUnavailable, match="kubernetes_conn_id is 'kube_c', and there is no such connection"):
        managers.at(replace_access(submission, "kube_c"))
    assert "t0ken" not in repr(launched._access)


def replace_access(submission: Submission, conn_id: str) -> Submission:
    return structs.replace(submission, access=conn_id)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (None, r"kubernetes_conn_id is 'kube_x', and there is no such connection.*airflow connections add kube_x"),
        (connection("http", host="api"), "is of type 'http'; kubernetes_conn_id needs one of type kubernetes"),
        (connection("kubernetes", extra={"kube_config": "{"}), "connection 'kube_x': kube_config .* is no JSON"),
        (connection("kubernetes", extra={"disable_verify_ssl": True}), "insecure-skip-tls-verify"),
    ],
)
def test_what_a_kubernetes_connection_may_not_say(
    fields: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fields is not None:
        monkeypatch.setenv("AIRFLOW_CONN_KUBE_X", fields)
    with pytest.raises(ConfigurationError, match=message):
        access_of("kube_x")


def test_a_kubernetes_connection_without_effect_is_refused(log: LogStore, run: Run, master: Master) -> None:
    with pytest.raises(ConfigurationError, match=r"kubernetes_conn_id='kube_a' would have no effect.*spark://"):
        task(master, kubernetes_conn_id="kube_a").execute(context())
    assert status(log, run).state is GroupState.NEW
