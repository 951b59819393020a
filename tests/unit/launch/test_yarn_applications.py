"""Where YARN's ResourceManager is found, what is believed of its answers, and what spark-submit is told."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from airflow_logio.errors import ConfigurationError, LogioError, ManagerUnavailable, SubmissionUnknown
from airflow_logio.launch.driver_config import DriverConfig, Launch
from airflow_logio.launch.managers import resource_manager, yarn
from airflow_logio.launch.managers.cluster_manager import DriverSight, claim_name
from airflow_logio.launch.managers.resource_manager import addresses_of
from airflow_logio.launch.managers.yarn import YarnManager
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.launch.spark_settings import RESOURCE_MANAGER_PROPERTY, SparkSettings
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support.launches import launch_of
from tests.support.listening import Listener

CLAIM = Claim(1, "0123456789abcdef0123456789abcdef", "Sums of Hours", 2, "the nonce", True)
ID = "application_1796063496178_0001"
CONTAINER = "http://east:8042/node/containerlogs/container_e17_1796063496178_0001_{:02}_000001/root"
NOT_FOUND = b'{"RemoteException":{"exception":"NotFoundException","message":"app with id: x not found"}}'
ACTIVE = {"clusterInfo": {"haState": "ACTIVE"}}
Asked = tuple[str, str]
"""Method and path."""


def site(folder: Path, **properties: str) -> Mapping[str, str]:
    """The environment of a process with such a yarn-site.xml."""
    lines = "".join(
        f"<property><name>yarn.{name.replace('__', '.').replace('_', '-')}</name><value> {value}\n</value></property>"
        for name, value in properties.items()
    )
    (folder / "yarn-site.xml").write_text(f"<configuration>{lines}</configuration>")
    return {"YARN_CONF_DIR": str(folder)}


@pytest.mark.parametrize(
    ("properties", "addresses"),
    [
        ({"resourcemanager__hostname": "rm"}, "http://rm:8088"),
        (
            {
                "resourcemanager__hostname": "rm",
                "resourcemanager__webapp__address": "${yarn.resourcemanager.hostname}:1",
            },
            "http://rm:1",
        ),
        ({"resourcemanager__hostname": "rm", "http__policy": "HTTPS_ONLY"}, "https://rm:8090"),
        (
            {
                "resourcemanager__ha__enabled": "true",
                "resourcemanager__ha__rm_ids": "a, b",
                "resourcemanager__hostname__a": "one",
                "resourcemanager__webapp__address__b": "two:18088",
            },
            "http://one:8088,http://two:18088",
        ),
    ],
)
def test_hadoops_settings_say_where_the_resource_manager_is(
    properties: Mapping[str, str], addresses: str, tmp_path: Path
) -> None:
    assert addresses_of({}, site(tmp_path, **properties)) == addresses


@pytest.mark.parametrize("properties", [{}, {"resourcemanager__webapp__address": "0.0.0.0:8088"}])
def test_settings_that_do_not_say_it_are_refused(properties: Mapping[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not say where the ResourceManager is"):
        addresses_of({}, site(tmp_path, **properties))
    (tmp_path / "yarn-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigurationError, match=r"yarn-site\.xml cannot be read"):
        addresses_of({}, {"HADOOP_CONF_DIR": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="HADOOP_CONF_DIR or YARN_CONF_DIR"):
        addresses_of({}, {})


def test_a_property_precedes_them_and_names_no_user(tmp_path: Path) -> None:
    environment = site(tmp_path, resourcemanager__hostname="rm")
    named = {RESOURCE_MANAGER_PROPERTY: "https://gate.example.com/yarn/, http://b:8088"}
    assert addresses_of(named, environment) == "https://gate.example.com/yarn,http://b:8088"
    for wrong in ("rm:8088", "ftp://rm", "http://anna:geheim@rm:8088"):
        with pytest.raises(ConfigurationError, match="give http://host:port") as caught:
            addresses_of({RESOURCE_MANAGER_PROPERTY: wrong}, environment)
        assert "geheim" not in str(caught.value)


# --- answers ----------------------------------------------------------------------------------------------------------


@contextmanager
def answering(answer: Callable[[Asked], object]) -> Iterator[str]:
    """A server at this address. An answer is JSON, or text, or an int for a status, or a str that begins with http for a
    redirection, or bytes for what the ResourceManager says with 404; None: it stays silent."""

    def serve(connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(65536)
        method, path = head.split(b" ", 2)[:2]
        said = answer((method.decode(), path.decode()))
        if said is None:
            connection.recv(1)
            return
        status, place, body = "200 OK", "", b""
        if isinstance(said, int):
            status = f"{said} Said"
        elif isinstance(said, bytes):
            status, body = "404 Not Found", said
        elif isinstance(said, str) and said.startswith("http"):
            status, place = "307 Temporary Redirect", f"Location: {said}\r\n"
        else:
            body = said.encode(errors="surrogateescape") if isinstance(said, str) else json.dumps(said).encode()
        connection.sendall(
            f"HTTP/1.1 {status}\r\n{place}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
        )

    listener = Listener(serve)
    try:
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        listener.close()


def submission(address: str, attempt: int = 0) -> Submission:
    return Submission("yarn", address, claim_name(CLAIM), id=ID, attempt=attempt)


def application(state: str, **more: object) -> dict[str, object]:
    tags = f"{claim_name(CLAIM)},logio,logio-run-{CLAIM.run_uid}"
    usual = {
        "id": ID,
        "user": "anna",
        "queue": "root.etl",
        "applicationTags": tags,
        "startedTime": 5000,
        "launchTime": 0,
    }
    return {**usual, "state": state, **more}


def hidden(state: str, diagnostics: str) -> dict[str, object]:
    """As it is shown to users who may not see it."""
    return application(state, diagnostics=f"[Mon Nov 30 20:07:36] {diagnostics}", startedTime=0)


def killed_by(code: int) -> dict[str, object]:
    said = f"Application {ID} failed 1 times due to AM Container exited with  exitCode: {code}\nFailing this attempt."
    return application("FAILED", diagnostics=said, amContainerLogs=CONTAINER.format(1))


@pytest.mark.parametrize(
    ("found", "attempt", "state"),
    [
        (application("NEW_SAVING"), 0, DriverSight.QUEUED),
        (application("ACCEPTED", diagnostics="no room"), 0, DriverSight.QUEUED),
        (application("ACCEPTED", amContainerLogs=CONTAINER.format(1)), 0, DriverSight.STARTING),
        (application("ACCEPTED", amContainerLogs=CONTAINER.format(1), launchTime=7), 1, DriverSight.RUNNING),
        (hidden("ACCEPTED", "Application is Activated, waiting for resources to be"), 0, DriverSight.QUEUED),
        (hidden("ACCEPTED", "Scheduler has assigned a container for AM, waiting"), 0, DriverSight.STARTING),
        (hidden("ACCEPTED", "AM container is launched, waiting for AM container to"), 0, DriverSight.RUNNING),
        (hidden("RUNNING", ""), 0, DriverSight.RUNNING),
        (application("RUNNING", amContainerLogs=CONTAINER.format(1), launchTime=7), 1, DriverSight.RUNNING),
        (application("RUNNING", amContainerLogs=CONTAINER.format(2), launchTime=7), 0, DriverSight.RUNNING),
        (application("RUNNING", amContainerLogs=CONTAINER.format(2), launchTime=7), 1, DriverSight.LOST),
        (application("FINISHED", amContainerLogs=CONTAINER.format(2)), 1, DriverSight.LOST),
        (application("FINISHED", amContainerLogs=CONTAINER.format(2)), 2, DriverSight.EXITED),
        (killed_by(137), 1, DriverSight.EXITED),
        (killed_by(-104), 1, DriverSight.EXITED),
        (killed_by(-100), 1, DriverSight.LOST),
        (killed_by(-101), 1, DriverSight.EXITED),
        (killed_by(-102), 1, DriverSight.LOST),
        (application("FAILED", diagnostics="timed out", amContainerLogs=CONTAINER.format(1)), 1, DriverSight.LOST),
        (application("FAILED", diagnostics="unknown queue"), 0, DriverSight.EXITED),
        (application("KILLED", diagnostics="by anna"), 0, DriverSight.EXITED),
        (application("KILLED", diagnostics="by anna", amContainerLogs=CONTAINER.format(1)), 1, DriverSight.LOST),
        (hidden("KILLED", "by anna"), 0, DriverSight.LOST),
    ],
)
def test_what_an_application_says_of_its_driver(found: dict[str, object], attempt: int, state: DriverSight) -> None:
    with answering(lambda asked: {"apps": {"app": [found]}}) as address:
        one = submission(address, attempt)
        sighting = YarnManager(address).look([one])[one]
    assert sighting.state is state
    taken = ("attempt 2", "exitCode: -100", "exitCode: -101", "exitCode: -102")
    assert sighting.was_taken == any(word in sighting.why for word in taken)


def test_a_second_attempt_that_waits_for_its_container_is_asked_for() -> None:
    def answer(asked: Asked) -> object:
        if asked[1].endswith("/appattempts"):
            return {"appAttempts": {"appAttempt": [{"id": 1}, {"id": 2}]}}
        return {"apps": {"app": [application("ACCEPTED")]}}

    with answering(answer) as address:
        first, either = submission(address, 1), submission(address)
        seen = YarnManager(address).look([first, either])
    assert (seen[first].state, seen[first].was_taken) == (DriverSight.LOST, True)
    assert seen[either].state is DriverSight.QUEUED


def test_one_that_recovers_lists_nothing_and_is_not_believed() -> None:
    states = ["INITIALIZING"]

    def answer(asked: Asked) -> object:
        if asked[1].endswith("/info"):
            return {"clusterInfo": {"haState": states[0]}}
        return NOT_FOUND if ID in asked[1] else {"apps": None}

    with answering(answer) as address:
        one, manager = submission(address), YarnManager(address)
        sighting = manager.look([one])[one]
        assert (sighting.state, "not active" in sighting.why) == (DriverSight.UNKNOWN, True)
        for asked in (manager.check_answers, lambda: manager.end(one), lambda: manager.find(one)):
            with pytest.raises(ManagerUnavailable, match="is not active"):
                asked()
        states[0] = "ACTIVE"
        assert manager.look([one])[one].state is DriverSight.GONE
        assert manager.end(one) and manager.find(one) == []


def test_a_standby_sends_to_the_active_one_whatever_is_asked() -> None:
    asked: list[Asked] = []

    def active(one: Asked) -> object:
        asked.append(one)
        return {"app": application("RUNNING")} if one[0] == "GET" else {"state": "KILLING"}

    with answering(active) as other, answering(lambda one: f"{other}{one[1]}") as address:
        assert not YarnManager(address).end(submission(address))
    assert [method for method, _ in asked] == ["GET", "PUT", "GET"]


def test_what_is_no_resource_manager_or_silent_leaves_time_for_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_manager, "REQUEST_SECONDS", 2.0)
    with (
        answering(lambda asked: "This is standby RM. Can not find any active RM.") as standby,
        answering(lambda asked: None) as silent,
        answering(lambda asked: {"apps": {"app": [application("RUNNING")]}}) as active,
    ):
        one = submission(f"{standby},{silent},{active}")
        assert YarnManager(one.address).look([one])[one].state is DriverSight.RUNNING
        one = submission(f"{standby},{silent}")
        sighting = YarnManager(one.address).look([one])[one]
    assert sighting.state is DriverSight.UNKNOWN
    assert "no active ResourceManager" in sighting.why and "no answer" in sighting.why.replace("timed out", "no answer")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (401, "requests-kerberos"),
        (403, "refuses this"),
        (500, "500 Said"),
        ("http://login.example.com/sign-in", "no ResourceManager: a page to log in"),
        ({"apps": {"app": [{"id": 7}]}}, "in an unknown way"),
    ],
)
def test_an_answer_that_says_nothing_says_why(answer: object, said: str) -> None:
    with answering(lambda asked: answer) as address:
        one = submission(address)
        sighting = YarnManager(address).look([one])[one]
    assert sighting.state is DriverSight.UNKNOWN and said in sighting.why


ODD: list[object] = [
    *(None, [], "", 7, "text", {}, {"apps": 7}, {"apps": []}, {"apps": {"app": {}}}, {"apps": {"app": [None]}}),
    *({"apps": {"app": [{}]}}, {"app": None}, {"app": []}, {"app": {"id": "application_1_0009"}}),
    *({"appAttempts": [{"id": 1}]}, {"appAttempts": {"appAttempt": {"id": 1}}}, {"appAttempts": {"appAttempt": [{}]}}),
    *({"clusterInfo": None}, {"clusterInfo": []}, {"clusterInfo": {"haState": None}}),
]


NOT_EVEN_JSON = ("", "<html><body>Sign in</body></html>", "{", "\udcff\udcfe", "[" * 100_000)
STATUSES = (204, 302, 400, 404, 410, 500, 503, b"<html>NotFound</html>")


def test_an_odd_answer_is_no_answer_whatever_is_asked() -> None:
    """Neither an exception of Python, nor one from which an end, or that there is none, is concluded."""
    answers: list[object] = [*map(json.dumps, ODD), *NOT_EVEN_JSON, *STATUSES, NOT_FOUND]
    with answering(lambda asked: answers[-1]) as address:
        manager = YarnManager(address)
        named = msgspec.structs.replace(submission(address), id="")
        ones = [submission(address), submission(address, 1), named]
        asked: list[Callable[[], object]] = [lambda one=one: manager.end(one) for one in ones]  # type: ignore[misc]
        asked += [manager.check_answers, lambda: manager.find(named), lambda: manager.sweep("log", lambda uid: False)]
        while answers:
            assert {one.state for one in manager.look(ones).values()} == {DriverSight.UNKNOWN}, answers[-1]
            for ask in asked:
                with pytest.raises(ManagerUnavailable):
                    ask()
            answers.pop()


@pytest.mark.parametrize("part", ["/appattempts", "/info", f"/apps/{ID}"])
def test_an_odd_part_of_the_answers_concludes_nothing(part: str) -> None:
    """The list is as it should be: of the first, or of none. What is asked besides is not."""
    answers: list[object] = [*map(json.dumps, ODD), *NOT_EVEN_JSON, *STATUSES]
    listed: list[object] = []

    def answer(asked: Asked) -> object:
        if asked[1].endswith(part):
            return answers[-1]
        if asked[1].endswith("/info"):
            return ACTIVE
        return NOT_FOUND if ID in asked[1] else {"apps": {"app": listed}}

    with answering(answer) as address:
        manager, one = YarnManager(address), submission(address, 1)
        while answers:
            listed[:] = [application("ACCEPTED")]
            state = DriverSight.UNKNOWN if part == "/appattempts" else DriverSight.QUEUED
            assert manager.look([one])[one].state is state, answers[-1]
            listed.clear()
            state = DriverSight.UNKNOWN if part == "/info" else DriverSight.GONE
            assert manager.look([one])[one].state is state, answers[-1]
            if part != "/appattempts":
                with pytest.raises(ManagerUnavailable):
                    manager.end(one)
            answers.pop()


def test_a_request_to_kill_with_an_odd_answer_is_repeated() -> None:
    with (
        answering(lambda asked: {"app": application("RUNNING")} if asked[0] == "GET" else 204) as address,
        pytest.raises(ManagerUnavailable, match="no active ResourceManager"),
    ):
        YarnManager(address).end(submission(address))


@pytest.mark.parametrize("filters", ["true", "false", 404, "<html>"])
@pytest.mark.parametrize("asks_who", ["true", "false"])
def test_a_list_that_may_hide_an_application_confirms_no_end(filters: object, asks_who: str) -> None:
    """By its id it is shown to everyone, without what not everyone may see."""
    settings = {"filter-entity-list-by-user": filters, "acl.enable": asks_who}
    states = ["RUNNING"]

    def answer(asked: Asked) -> object:
        if asked[1].startswith("/conf?"):
            value = next(value for name, value in settings.items() if asked[1].endswith(name))
            return {"property": {"value": value}} if value in ("true", "false") else value
        if asked[1].endswith("/info"):
            return ACTIVE
        return {"app": hidden(states[0], "")} if ID in asked[1] else {"apps": {}}

    hides = filters == asks_who == "true"
    with answering(answer) as address:
        manager, one = YarnManager(address), submission(address)
        named = msgspec.structs.replace(one, id="")
        seen = manager.look([one, named])
        if hides:
            assert (seen[one].state, seen[named].state) == (DriverSight.RUNNING, DriverSight.UNKNOWN)
            assert "filter-entity-list-by-user" in seen[named].why
            for ask in (manager.end, manager.find):
                with pytest.raises(ManagerUnavailable, match="filter-entity-list-by-user"):
                    ask(named)
        else:
            assert (seen[one].state, seen[named].state) == (DriverSight.GONE, DriverSight.GONE)
            assert manager.end(named) and manager.find(named) == []
        assert not manager.end(one)
        states[0] = "KILLED"
        assert manager.end(one)


def test_one_that_does_not_say_whether_its_list_is_whole_is_asked_again() -> None:
    def answer(asked: Asked) -> object:
        return 503 if asked[1].startswith("/conf?") else ACTIVE if asked[1].endswith("/info") else {"apps": {}}

    with answering(answer) as address:
        one = msgspec.structs.replace(submission(address), id="")
        assert YarnManager(address).look([one])[one].state is DriverSight.UNKNOWN
        with pytest.raises(ManagerUnavailable, match="503"):
            YarnManager(address).end(one)


def test_a_client_of_hadoop_that_does_not_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").touch(mode=0o755)  # and no spark-class beside it
    for name, value in site(tmp_path, resourcemanager__hostname="rm").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))

    def answer(asked: Asked) -> object:
        return {"app": application("RUNNING")} if asked[0] == "GET" else 403

    with answering(answer) as address, pytest.raises(ManagerUnavailable, match="Hadoop's client does not run"):
        YarnManager(address).end(submission(address))


# --- a submission -----------------------------------------------------------------------------------------------------


def launch(settings: SparkSettings, conf: Mapping[str, str]) -> Launch:
    config = DriverConfig("postgresql://u:secret@log/db", CLAIM, "m", "a", "/b", {"wh": "postgresql://u:other@wh"})
    return launch_of(config, settings, conf)


def test_spark_submit_is_told_what_the_provider_tells_it_and_no_secret(tmp_path: Path) -> None:
    settings = SparkSettings(
        "yarn",
        "cluster",
        queue="etl",
        principal="anna@EXAMPLE.COM",
        keytab_content=b"geheim",
        proxy_user="bob",
        env_vars={"SHOP": "north"},
    )
    conf = {
        "spark.yarn.tags": "of-the-team",
        "spark.logio.connections": "/etc/logio.json",
        RESOURCE_MANAGER_PROPERTY: "http://rm",
    }
    one = YarnManager.of_settings(settings, conf).prepare(CLAIM, launch(settings, conf))
    assert one == Submission("yarn", "http://rm", claim_name(CLAIM)) and len(one.name) <= 100
    command = yarn.command_of(one, CLAIM, launch(settings, conf), tmp_path)
    said = dict(zip(command[1::2], command[2::2], strict=False))
    assert [said[name] for name in ("--master", "--deploy-mode")] == ["yarn", "cluster"]
    assert [said[name] for name in ("--queue", "--principal", "--proxy-user")] == ["etl", "anna@EXAMPLE.COM", "bob"]
    assert Path(said["--keytab"]).read_bytes() == b"geheim" and Path(said["--keytab"]).stat().st_mode & 0o77 == 0
    properties = dict(word.split("=", 1) for before, word in pairwise(command) if before == "--conf")
    assert properties["spark.yarn.tags"] == f"{one.name},logio,logio-log-,logio-run-{CLAIM.run_uid},of-the-team"
    assert properties["spark.yarn.maxAppAttempts"] == "1"
    assert properties["spark.yarn.submit.waitAppCompletion"] == "false"
    assert properties["spark.yarn.appMasterEnv.SHOP"] == "north"
    words = command[command.index(str(APPLICATION)) + 1 :]
    assert f"--run={CLAIM.run_uid}" in words and "--incarnation=2" in words and "--nonce=the nonce" in words
    assert "--manager=yarn" in words and "--connections=/etc/logio.json" in words
    assert not any(secret in " ".join(command) for secret in ("secret", "other", "geheim"))


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ({"spark.yarn.maxAppAttempts": "3"}, "spark.yarn.maxAppAttempts=3 cannot be had"),
        ({"spark.yarn.submit.waitAppCompletion": "true"}, "waitAppCompletion=true cannot be had"),
        ({"spark.logio.application": "local:///opt/logio_driver.py"}, "takes none that lies on the nodes"),
        ({"spark.jars": "/nowhere/a.jar"}, "/nowhere/a.jar"),
    ],
)
def test_what_cannot_be_had_on_yarn_is_refused_before_a_claim(
    conf: Mapping[str, str], said: str, tmp_path: Path
) -> None:
    settings = SparkSettings("yarn", "cluster", env_vars=site(tmp_path, resourcemanager__hostname="rm"))
    YarnManager.of_settings(settings, {})
    with pytest.raises(ConfigurationError, match=said.replace("=", ".")):
        YarnManager.of_settings(settings, conf).check(settings, conf)


SAFE_MODE = (
    "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs.server.namenode.SafeModeException): Cannot create "
    "directory /user/anna/.sparkStaging. Name node is in safe mode."
)
REFUSED = "java.net.ConnectException: Call From a/10.0.0.1 to nn:8020 failed on connection exception"


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        (f'Exception in thread "main" {SAFE_MODE}', ManagerUnavailable),
        (f'Exception in thread "main" {REFUSED}', ManagerUnavailable),
        ('Exception in thread "main" java.lang.X\nCaused by: java.net.SocketTimeoutException', ManagerUnavailable),
        ("Error: Operation category WRITE is not supported in state standby", ManagerUnavailable),
        ("26/11/30 12:00:00 INFO RetryInvocationHandler: Connection refused\nError: no queue", ConfigurationError),
        ("Error: spark.network.timeout is no number", ConfigurationError),
        (f"26/11/30 12:00:00 INFO Client: Submitting application {ID} to X\nError: timed out", SubmissionUnknown),
    ],
)
def test_a_service_that_does_not_serve_for_now_is_no_refusal(
    printed: str, error: type[LogioError], tmp_path: Path
) -> None:
    """YARN lists no application: what spark-submit has printed says whether the same submission may succeed later."""
    with pytest.raises(error):
        submitted_by(printed, tmp_path)


def test_what_spark_submit_has_printed_has_no_secret_of_the_launch(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        submitted_by("Error: spark.x is not 0ther-of-w4rehouse, and not s3cret-of-log", tmp_path)
    assert str(caught.value).endswith("Error: spark.x is not ***, and not ***")


def submitted_by(printed: str, folder: Path) -> Submission:
    script = folder / "spark-submit"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{printed}\nEND\nexit 1\n")
    script.chmod(0o755)
    with answering(lambda asked: ACTIVE if asked[1].endswith("/info") else {"apps": None}) as address:
        conf = {RESOURCE_MANAGER_PROPERTY: address}
        settings = SparkSettings("yarn", "cluster", spark_binary=str(script))
        connections = {"wh": "postgresql://u:0ther-of-w4rehouse@wh"}
        config = DriverConfig("postgresql://u:s3cret-of-log@log/db", CLAIM, "m", "a", "/b", connections)
        made, manager = launch_of(config, settings, conf), YarnManager.of_settings(settings, conf)
        return manager.submit(manager.prepare(CLAIM, made), CLAIM, made)


def test_what_a_driver_has_printed_is_with_yarn() -> None:
    one = submission("http://a:8088,http://b:8088")
    manager = YarnManager.at(one)
    assert manager.output_command(one) == f"yarn logs -applicationId {ID}"
    assert manager.page(one) == f"http://a:8088/cluster/app/{ID}"
    unknown = msgspec.structs.replace(one, id="")
    assert one.name in manager.output_command(unknown) and manager.page(unknown) is None


def test_only_what_runs_have_left_that_nothing_knows_is_removed(tmp_path: Path) -> None:
    """A folder is named by what the ResourceManager says: nothing else comes to a command that removes."""
    ones = [
        application("KILLED", applicationTags="logio,logio-log-ours,logio-run-gone"),
        application("FAILED", id="application_1_0006", applicationTags="logio,logio-log-of-others,logio-run-gone"),
        application("FAILED", id="application_1_0002", applicationTags="logio,logio-log-ours,logio-run-of-a-known-run"),
        application("FAILED", id="application_1_0003/..", applicationTags="logio,logio-log-ours,logio-run-gone"),
        application(
            "FAILED", id="application_1_0004", user="../..", applicationTags="logio,logio-log-ours,logio-run-gone"
        ),
        application("FAILED", id="application_1_0005", applicationTags="logio,logio-log-ours"),
    ]
    found = [msgspec.convert(one, resource_manager.Application) for one in ones]
    left = [one.id for one in found if yarn._is_left(one, "ours", "of-a-known-run".__eq__)]
    assert left == [ID] and os.sep not in left[0]
