"""What is sent to a standalone master, where to, and what becomes of answers that a master in order does not give."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import pytest

from airflow_logio.errors import ConfigurationError, ManagerUnavailable, SubmissionUnknown
from airflow_logio.launch.driver_config import DriverConfig, Launch
from airflow_logio.launch.managers import standalone, submission_server
from airflow_logio.launch.managers.cluster_manager import DriverSight
from airflow_logio.launch.managers.standalone import StandaloneManager, creation
from airflow_logio.launch.managers.submission_server import StandaloneAddress
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.spark_submit import properties_of
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support.launches import launch_of
from tests.support.listening import Listener

MASTER = "spark://spark.example.com:7077"
CLAIM = Claim(1, "0123456789abcdef", "sums", 2, "the nonce", True)
STANDS_BY = (
    '{"action":"CreateSubmissionResponse","success":false,"message":"Current state is not alive: STANDBY. '
    'Can only accept driver submissions in ALIVE state."}'
)
UNKNOWN_DRIVER = '{"action":"SubmissionStatusResponse","serverSparkVersion":"4.2.0","success":false}'
CREATED = '{"action":"CreateSubmissionResponse","success":true,"submissionId":"driver-20261130183030-0000"}'


def launch(settings: SparkSettings, conf: Mapping[str, str], *, spark: bool = True) -> Launch:
    config = DriverConfig("postgresql://u:secret@log/db", CLAIM, "m", "a", "/b", {"wh": "postgresql://u:other@wh"})
    return launch_of(replace(config, needs_spark=spark), settings, conf)


@pytest.mark.parametrize(
    ("master", "conf", "servers", "page"),
    [
        (MASTER, {}, ["http://spark.example.com:6066"], "http://spark.example.com:8080"),
        ("spark://a:7077,b:7078", {}, ["http://a:6066", "http://b:6066"], "http://a:8080"),
        ("spark://[fd00::1]:7077", {}, ["http://[fd00::1]:6066"], "http://[fd00::1]:8080"),
        (
            MASTER,
            {
                "spark.logio.standalone.rest": "https://gate.example.com/a/, http://b:16066",
                "spark.logio.standalone.page": "https://gate.example.com/page/",
            },
            ["https://gate.example.com/a", "http://b:16066"],
            "https://gate.example.com/page",
        ),
    ],
)
def test_the_rest_server_follows_from_the_master(
    master: str, conf: Mapping[str, str], servers: list[str], page: str
) -> None:
    address = StandaloneAddress.of_settings(master, conf)
    assert (list(address.servers), address.page) == (servers, page)
    assert StandaloneAddress.parse(str(address)) == address


@pytest.mark.parametrize(
    ("master", "conf", "message"),
    [
        ("spark://a:6066", {}, r"give spark://HOST:7077"),
        ("spark://a", {}, "no standalone master"),
        ("spark://a:7077,", {}, "no standalone master"),
        ("yarn", {}, "no standalone master"),
        (MASTER, {"spark.logio.standalone.rest": "spark.example.com:6066"}, "spark.logio.standalone.rest"),
        (MASTER, {"spark.logio.standalone.rest": "http://me:secret@a:6066"}, "with a user or a password in it is no"),
        (MASTER, {"spark.logio.standalone.page": "http://a:99999"}, "spark.logio.standalone.page"),
        (MASTER, {"spark.driver.supervise": "true"}, "was replaced: leave it out"),
        (MASTER, {"spark.kerberos.renewal.credentials": "ccache"}, "keytab and principal"),
    ],
)
def test_what_cannot_work_is_refused(master: str, conf: Mapping[str, str], message: str) -> None:
    settings = SparkSettings(master, deploy_mode="cluster")
    with pytest.raises(ConfigurationError, match=message) as refused:
        StandaloneManager(StandaloneAddress(("http://a:6066",), "")).check(settings, conf)
    assert "secret" not in str(refused.value)


def test_the_jvm_of_a_driver_gets_what_it_cannot_take_from_its_arguments() -> None:
    settings = SparkSettings(
        MASTER,
        deploy_mode="cluster",
        driver_cores=2,
        driver_class_path="/opt/a.jar",
        executor_memory="3g",
        total_executor_cores=4,
        jars="/opt/b.jar",
        env_vars={"HADOOP_CONF_DIR": "/etc/hadoop"},
    )
    conf = {
        "spark.driver.memory": "2g",
        "spark.driver.extraJavaOptions": "-Dx=1",
        "spark.driver.resource.gpu.amount": "1",
        "spark.sql.shuffle.partitions": "7",
        "spark.logio.connections": "/etc/logio.json",
        "spark.logio.application": "/opt/logio/logio_driver.py",
    }
    submission = Submission("standalone", "http://a:6066#http://a:8080", "logio-01234567-sums-2-abc")
    body = creation(submission, CLAIM, launch(settings, conf))
    assert body["sparkProperties"] == {
        "spark.app.name": "logio-01234567-sums-2-abc",
        "spark.driver.cores": "2",
        "spark.driver.extraClassPath": "/opt/a.jar",
        "spark.driver.extraJavaOptions": "-Dx=1",
        "spark.driver.memory": "2g",
        "spark.driver.resource.gpu.amount": "1",
        "spark.driver.supervise": "false",
        "spark.master": MASTER,
        "spark.submit.deployMode": "cluster",
    }
    words = body["appArgs"]
    place = words.index("/opt/logio/logio_driver.py")
    options = words[:place]
    assert options[:4] == ["--master", MASTER, "--deploy-mode", "client"]
    for pair in (
        ["--jars", "/opt/b.jar"],
        ["--total-executor-cores", "4"],
        ["--executor-memory", "3g"],
        ["--conf", "spark.sql.shuffle.partitions=7"],
    ):
        assert pair in [options[at : at + 2] for at in range(len(options))], pair
    assert set(words[place + 1 :]) >= {
        "--run=0123456789abcdef",
        "--group=sums",
        "--incarnation=2",
        "--nonce=the nonce",
        "--manager=standalone",
        f"--address={submission.address}",
        f"--name={submission.name}",
        "--connections=/etc/logio.json",
    }
    assert body["environmentVariables"] == {"PYTHONUNBUFFERED": "1", "HADOOP_CONF_DIR": "/etc/hadoop"}
    assert (body["mainClass"], body["appResource"]) == ("org.apache.spark.deploy.SparkSubmit", "")
    assert not any(secret in str(body) for secret in ("secret", "other@"))


def test_a_group_without_spark_gets_a_small_jvm_and_nothing_for_spark() -> None:
    settings = SparkSettings(MASTER, deploy_mode="cluster", jars="/opt/b.jar", packages="a:b:1", driver_memory="8g")
    conf = {
        "spark.driver.memory": "8g",
        "spark.driver.extraJavaOptions": "-Xss9m",
        "spark.pyspark.python": "/opt/py/bin/python",
        "spark.executor.instances": "3",
    }
    submission = Submission("standalone", "http://a:6066#http://a:8080", "logio-01234567-sums-2-abc")
    body = creation(submission, CLAIM, launch(settings, conf, spark=False))
    assert body["sparkProperties"]["spark.driver.memory"] == "256m"
    assert "spark.driver.extraJavaOptions" not in body["sparkProperties"]
    options = body["appArgs"][: body["appArgs"].index(str(APPLICATION))]
    conf_options = ["--conf", "spark.pyspark.python=/opt/py/bin/python"]
    assert options == ["--master", MASTER, "--deploy-mode", "client", "--name", submission.name, *conf_options]


def test_files_are_looked_for_where_they_are_read() -> None:
    """The workers of a standalone cluster read what spark-submit on this machine reads for other managers."""
    conf = {"spark.jars": "/only/the/workers/have.jar"}
    on_workers = SparkSettings(MASTER, "cluster", conf)
    assert properties_of(on_workers, {}, frames=False)["spark.jars"] == conf["spark.jars"]
    for settings in (replace(on_workers, deploy_mode="client"), replace(on_workers, master="yarn")):
        with pytest.raises(ConfigurationError, match=r"have\.jar"):
            properties_of(settings, {}, frames=False)


class Answering:
    """Servers that give one answer each to any request, in place of masters in states that are hard to come by."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    @contextmanager
    def server(self, status: str, body: str) -> Iterator[str]:
        def serve(client: socket.socket) -> None:
            request = b""
            while b"\r\n\r\n" not in request or (b"/create" in request and not request.endswith(b"}")):
                part = client.recv(65_536)
                if not part:
                    return
                request += part
            self.asked.append(request.split(b" HTTP", 1)[0].decode())
            self.headers = request.split(b"\r\n\r\n", 1)[0].decode()
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(f"{head}{body}".encode())

        listener = Listener(serve)
        try:
            yield f"http://127.0.0.1:{listener.port}"
        finally:
            listener.close()


def created(urls: str) -> str:
    manager = StandaloneManager(StandaloneAddress(tuple(urls.split(",")), "http://a:8080"), token="a token")
    prepared = Submission("standalone", f"{urls}#http://a:8080", "logio-01234567-sums-2-abc")
    return manager.submit(prepared, CLAIM, launch(SparkSettings(MASTER), {})).id


def test_of_several_masters_the_one_that_is_alive_is_asked() -> None:
    masters = Answering()
    with masters.server("200 OK", STANDS_BY) as first, masters.server("200 OK", CREATED) as second:
        assert created(f"http://127.0.0.1:1,{first},{second}") == "driver-20261130183030-0000"
    assert masters.asked == ["POST /v1/submissions/create"] * 2, "who stands by has taken nothing"
    assert "Authorization: Bearer a token" in masters.headers


def test_masters_that_all_stand_by_have_taken_nothing() -> None:
    masters = Answering()
    with masters.server("200 OK", STANDS_BY) as first:
        with pytest.raises(SubmissionUnknown, match="STANDBY"):
            created(first)
        with pytest.raises(ManagerUnavailable, match="STANDBY"):
            StandaloneManager(StandaloneAddress((first,), "")).check_answers()


def test_a_master_that_lets_this_process_not_in_never_will() -> None:
    with Answering().server("401 Unauthorized", "") as url, pytest.raises(ConfigurationError, match="asks for a token"):
        StandaloneManager(StandaloneAddress((url,), "")).check_answers()


@pytest.mark.parametrize(
    ("status", "body", "error", "message"),
    [
        ("200 OK", "<html>", SubmissionUnknown, "no REST server"),
        ("500 Server Error", '{"action":"ErrorResponse","message":"timeout"}', SubmissionUnknown, "timeout"),
        ("504 Gateway Timeout", "", SubmissionUnknown, "Gateway Timeout"),
        ("403 Forbidden", "", ConfigurationError, "LOGIO_SPARK_REST_TOKEN"),
        ("400 Bad Request", '{"action":"ErrorResponse","message":"Malformed"}', ConfigurationError, "Malformed"),
        ("404 Not Found", "<html>", ConfigurationError, "spark.logio.standalone.rest"),
    ],
)
def test_an_answer_to_a_submission_says_whether_there_may_be_a_driver(
    status: str, body: str, error: type[Exception], message: str
) -> None:
    masters = Answering()
    with (
        masters.server(status, body) as url,
        masters.server("200 OK", CREATED) as other,
        pytest.raises(error, match=message),
    ):
        created(f"{url},{other}")
    assert len(masters.asked) == 1, "no second submission after one that may have been taken"


@pytest.mark.parametrize(
    ("status", "body", "state", "why"),
    [
        ("200 OK", UNKNOWN_DRIVER, DriverSight.GONE, "forgotten"),
        ("200 OK", STANDS_BY, DriverSight.UNKNOWN, "STANDBY"),
        ("403 Forbidden", "", DriverSight.UNKNOWN, "LOGIO_SPARK_REST_TOKEN"),
        ("200 OK", '{"success":true,"driverState":"UNKNOWN"}', DriverSight.UNKNOWN, "does not know yet"),
        ("200 OK", '{"success":true,"driverState":"RELAUNCHING"}', DriverSight.QUEUED, "another worker"),
        ("200 OK", '{"success":true,"driverState":"ERROR"}', DriverSight.LOST, "written it off"),
        (
            "200 OK",
            '{"success":true,"driverState":"ERROR","message":"Exception from the cluster:\\nIOException: no\\n\\tat x"}',
            DriverSight.EXITED,
            "IOException: no",
        ),
        ("200 OK", "<html>", DriverSight.UNKNOWN, "no REST server"),
        ("500 Server Error", "", DriverSight.UNKNOWN, "500"),
    ],
)
def test_what_a_master_says_of_a_driver(status: str, body: str, state: DriverSight, why: str) -> None:
    masters = Answering()
    with masters.server(status, body) as url:
        submission = Submission("standalone", f"{url}#http://a:8080", "name", id="driver-1")
        found = StandaloneManager.at(submission).look([submission, submission])[submission]
    assert found.state is state and why in found.why and "\tat" not in found.why


@pytest.mark.parametrize(("state", "was_taken"), [("KILLED", False), ("FAILED", False), ("ERROR", True)])
def test_an_end_that_was_asked_for_is_not_taken_for_the_masters_own(state: str, was_taken: bool) -> None:
    """KILLED is what the master says of our own kill, too: a driver that hangs each time would be tried for ever."""
    masters = Answering()
    with masters.server("200 OK", f'{{"success":true,"driverState":"{state}"}}') as url:
        submission = Submission("standalone", f"{url}#http://a:8080", "name", id="driver-1")
        assert StandaloneManager.at(submission).look([submission])[submission].was_taken is was_taken


def test_one_master_that_does_not_answer_is_asked_once_for_all_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (standalone, submission_server):
        monkeypatch.setattr(module, "REQUEST_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}#http://a:8080"
        drivers = [Submission("standalone", address, f"name {number}", id=f"driver-{number}") for number in range(9)]
        found = StandaloneManager.at(drivers[0]).look(drivers)
    assert {one.state for one in found.values()} == {DriverSight.UNKNOWN} and len(found) == 9
    assert all("no answer in time" in one.why for one in found.values())
