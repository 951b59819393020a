"""Drivers at an API server of Kubernetes: what is asked, what an answer means, and what is left. Nothing is started."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.errors import ConfigurationError, ManagerUnavailable, NeverFits, SubmissionUnknown
from airflow_logio.launch.driver_config import DriverConfig, DriverKind, Launch, driver_kind
from airflow_logio.launch.managers import kubernetes as module
from airflow_logio.launch.managers.cluster_manager import DriverSight, claim_name
from airflow_logio.launch.managers.kubernetes import KubernetesManager
from airflow_logio.launch.managers.kubernetes_api import KubernetesAccess, KubernetesApi, server_of
from airflow_logio.launch.managers.kubernetes_refusals import NoAnswer, Refusal
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.client import Api
from tests.support.kubernetes.problems import Object
from tests.support.launches import launch_of

RUN = "0123456789abcdef0123456789abcdef"
LOG = "a" * 32
IMAGE = {"spark.kubernetes.container.image": "logio:1"}
PODS = "/api/v1/namespaces/default/pods"
PASSWORD = "pw-of-the-log"


@pytest.fixture
def manager(small_server: ApiServer) -> KubernetesManager:
    return KubernetesManager(small_server.url)


def claim(incarnation: int = 1, group: str = "Daily sales", nonce: str = "nonce") -> Claim:
    return Claim(1, RUN, group, incarnation, f"{nonce}{incarnation}", recovery=incarnation > 1)


def launch(url: str, conf: Mapping[str, str] | None = None, **settings: Any) -> Launch:
    """Of a group without Spark."""
    given = SparkSettings(f"k8s://{url}", "cluster", {**IMAGE, **(conf or {})}, **settings)
    config = DriverConfig(f"postgresql://logio:{PASSWORD}@db/logio", claim(), "m", "p", "/bundle", {})
    made = launch_of(config, given, given.conf)
    return replace(made, kind=DriverKind.PYTHON, log_uid=LOG)


def submitted(manager: KubernetesManager, url: str, one: Claim | None = None, log: str = LOG) -> Submission:
    one = one or claim()
    made = replace(launch(url), log_uid=log)
    return manager.submit(manager.prepare(one, made), one, made)


def say(api: Api, submission: Submission, status: Object, namespace: str = "default") -> None:
    api.merge(f"/api/v1/namespaces/{namespace}/pods/{submission.name}/status", {"status": status})


def bind(api: Api, name: str) -> None:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node-1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    api.create(f"{PODS}/{name}/binding", binding)


# --- submissions ------------------------------------------------------------------------------------------------------


def test_a_group_without_spark_is_a_pod_that_is_found_by_its_labels(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    manager.check_answers()
    found = submitted(manager, small_server.url)
    assert found.name == claim_name(claim(), most=47)
    pod = small_api.get(f"{PODS}/{found.name}")
    assert found.id == pod["metadata"]["uid"]
    assert found.cluster == small_api.get("/api/v1/namespaces/default")["metadata"]["uid"]
    assert pod["metadata"]["labels"] == {
        "airflow-logio/log": LOG,
        "airflow-logio/run": RUN,
        "airflow-logio/group": "Daily-sales",
        "airflow-logio/incarnation": "1",
        "airflow-logio/submission": found.name,
        "airflow-logio/part": "driver",
    }
    [container] = pod["spec"]["containers"]
    assert container["command"] == ["python3"]
    assert container["args"][0] == "/opt/logio/logio_driver.py"
    assert {f"--run={RUN}", "--nonce=nonce1", f"--name={found.name}"} <= set(container["args"])
    assert PASSWORD not in json.dumps(pod)
    assert manager.find(found) == [found]
    assert manager.output_command(found) == f"kubectl -n default logs {found.name}"


def test_a_group_without_spark_gets_the_python_that_is_named(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    made = launch(small_server.url, {"spark.pyspark.python": "/opt/python"})
    kind = driver_kind(made.settings, made.conf, spark=False)
    found = manager.submit(manager.prepare(claim(), made), claim(), replace(made, kind=kind))
    [container] = small_api.get(f"{PODS}/{found.name}")["spec"]["containers"]
    assert container["command"] == ["/opt/python"]


def test_a_claim_has_one_pod_whoever_submits_it_again(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    first = submitted(manager, small_server.url)
    assert submitted(KubernetesManager(small_server.url), small_server.url) == first
    assert len(small_api.get(PODS)["items"]) == 1
    other = submitted(manager, small_server.url, claim(2))
    assert (other.name != first.name, other.id != first.id) == (True, True)


def test_a_pod_of_that_name_that_is_not_ours_is_not_taken_for_it(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    made = launch(small_server.url)
    named = manager.prepare(claim(), made)
    spec = {"containers": [{"name": "a", "image": "b"}]}
    small_api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": named.name}, "spec": spec})
    with pytest.raises(SubmissionUnknown, match="exists already"):
        manager.submit(named, claim(), made)


def test_a_lost_answer_is_no_refusal_and_its_driver_is_found(
    manager: KubernetesManager, small_server: ApiServer
) -> None:
    made = launch(small_server.url)
    named = manager.prepare(claim(), made)
    small_server.lose_answers("POST", "/pods$")
    with pytest.raises(SubmissionUnknown):
        manager.submit(named, claim(), made)
    [found] = manager.find(named)
    assert found.id
    assert manager.look([named, found])[found].state is DriverSight.QUEUED
    assert manager.look([named])[named].state is DriverSight.QUEUED
    assert manager.end(named)
    assert manager.find(named) == []


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_fails_may_have_done_it(manager: KubernetesManager, small_server: ApiServer, code: int) -> None:
    small_server.refuse("POST", "/pods$", code)
    made = launch(small_server.url)
    with pytest.raises(SubmissionUnknown):
        manager.submit(manager.prepare(claim(), made), claim(), made)


def test_a_refusal_says_which_right_is_missing(manager: KubernetesManager, small_server: ApiServer) -> None:
    who = 'pods is forbidden: User "system:serviceaccount:a:b" cannot {} resource "pods" in API group "" in the namespace "x"'
    small_server.refuse("POST", "/pods$", 403, who.format("create"))
    made = launch(small_server.url)
    with pytest.raises(ConfigurationError, match=r"lacks the verb 'create' of 'pods'.*docker/k8s/rbac\.yaml"):
        manager.submit(manager.prepare(claim(), made), claim(), made)
    small_server.refuse("GET", "/pods$", 403, who.format("list"), times=3)
    named = manager.prepare(claim(), made)
    seen = manager.look([named])[named]
    assert seen.state is DriverSight.UNKNOWN
    assert "lacks the verb 'list' of 'pods'" in seen.why
    with pytest.raises(ManagerUnavailable, match="verb 'list'"):
        manager.find(named)
    with pytest.raises(ConfigurationError, match="verb 'list'"):
        manager.check_answers()


QUOTA = 'pods "a" is forbidden: exceeded quota: team, requested: pods=1, used: pods=9, limited: pods=9'


NOT_COUNTED = 'pods "a" is forbidden: status unknown for quota: team'


@pytest.mark.parametrize(("code", "said"), [(403, QUOTA), (403, NOT_COUNTED), (401, "Unauthorized")])
def test_a_quota_that_is_used_up_and_credentials_that_have_ended_are_not_for_now(
    manager: KubernetesManager, small_server: ApiServer, code: int, said: str
) -> None:
    small_server.refuse("POST", "/pods$", code, said)
    made = launch(small_server.url)
    named = manager.prepare(claim(), made)
    with pytest.raises(ManagerUnavailable, match=said.split(",", maxsplit=1)[0]):
        manager.submit(named, claim(), made)
    assert manager.submit(named, claim(), made).id


LARGER = (
    'pods "a" is forbidden: exceeded quota: team, requested: pods=1,requests.memory=8Gi, used: pods=9,requests.memory=0, '
    "limited: pods=9,requests.memory=4Gi"
)
RANGE = 'pods "a" is forbidden: [maximum memory usage per Container is 1Gi, but limit is 1408Mi]'


@pytest.mark.parametrize(
    ("said", "says"),
    [
        (LARGER, r"8Gi of requests\.memory, and the quota is 4Gi\).*spark\.driver\.memory"),
        (RANGE, "maximum memory usage"),
    ],
)
def test_a_pod_that_is_larger_than_a_whole_quota_or_limit_is_not_asked_for_again(
    manager: KubernetesManager, small_server: ApiServer, said: str, says: str
) -> None:
    small_server.refuse("POST", "/pods$", 403, said)
    made = launch(small_server.url)
    with pytest.raises(NeverFits, match=says):
        manager.submit(manager.prepare(claim(), made), claim(), made)


@pytest.mark.parametrize(
    ("requested", "limited", "fits"),
    [
        ("pods=1", "pods=0", False),
        ("cpu=500m", "cpu=1", True),
        ("cpu=1500m", "cpu=1", False),
        ("limits.memory=1408Mi", "limits.memory=1Gi", False),
        ("limits.memory=1Gi", "limits.memory=1Gi", True),
        ("count/pods=1,cpu=1", "count/pods=5", True),
        ("cpu=many", "cpu=1", True),
        ("", "", True),
    ],
)
def test_whether_a_pod_fits_its_quota_is_a_matter_of_quantities(requested: str, limited: str, fits: bool) -> None:
    said = f"exceeded quota: q, requested: {requested}, used: cpu=1, limited: {limited}"
    assert (Refusal(403, said).error is ManagerUnavailable) == fits
    assert Refusal(409, said).error is ConfigurationError


REFUSED = (
    'Exception in thread "main" io.fabric8.kubernetes.client.KubernetesClientException: Failure executing: POST at: '
    "https://host/api/v1/namespaces/default/pods. Message: {said}. Received status: Status(apiVersion=v1, code={code}, "
    "details=StatusDetails(causes=[], group=null, kind=pods), kind=Status, message={said}, reason=Forbidden, status=Failure)."
)


@pytest.mark.parametrize(
    ("printed", "error", "says"),
    [
        (REFUSED.format(said=QUOTA, code=403), ManagerUnavailable, "exceeded quota: team"),
        (REFUSED.format(said=LARGER, code=403), NeverFits, "8Gi of requests.memory"),
        (REFUSED.format(said=RANGE, code=403), NeverFits, "but limit is 1408Mi"),
        (REFUSED.format(said="Unauthorized", code=401), ManagerUnavailable, "renew the kubeconfig"),
        (REFUSED.format(said="pods is forbidden: no", code=403), ConfigurationError, "pods is forbidden: no"),
        ("Caused by: java.net.ConnectException: Connection refused", SubmissionUnknown, "ConnectException"),
        (f"Error: spark.x is not {PASSWORD}", ConfigurationError, r"Error: spark\.x is not \*\*\*$"),
    ],
)
def test_what_spark_submit_says_of_a_refusal_is_read_as_the_servers_own(
    manager: KubernetesManager, small_server: ApiServer, tmp_path: Path, printed: str, error: type[Exception], says: str
) -> None:
    script = tmp_path / "spark-submit"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n26/11/30 12:00:00 INFO A: noise\n{printed}\n\tat a.b\nEND\nexit 1\n")
    script.chmod(0o755)
    made = replace(launch(small_server.url, spark_binary=str(script)), kind=DriverKind.SPARK_SUBMIT, needs_spark=True)
    with pytest.raises(error, match=says) as caught:
        manager.submit(manager.prepare(claim(), made), claim(), made)
    assert PASSWORD not in str(caught.value) and "noise" not in str(caught.value)


def test_spark_is_told_to_say_which_container_is_the_drivers(
    manager: KubernetesManager, small_server: ApiServer, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text("spec: {containers: [{name: main}, {name: beside}]}")
    script = tmp_path / "spark-submit"
    script.write_text('#!/bin/sh\necho "Error: $*"\nexit 1\n')
    script.chmod(0o755)
    annotation = "spark.kubernetes.driver.annotation.kubectl.kubernetes.io/default-container"
    conf = {"spark.kubernetes.driver.podTemplateFile": str(tmp_path / "pod.yaml"), annotation: "beside"}
    made = replace(
        launch(small_server.url, conf, spark_binary=str(script)), kind=DriverKind.SPARK_SUBMIT, needs_spark=True
    )
    command = manager._command(manager.prepare(claim(), made), claim(), made)
    assert [word for word in command if word.startswith(annotation)] == [f"{annotation}=main"]


def test_what_the_server_finds_wrong_with_a_pod_is_refused_with_its_words(
    manager: KubernetesManager, small_server: ApiServer
) -> None:
    made = launch(small_server.url, {"spark.kubernetes.driver.label.bad key": "value"})
    with pytest.raises(ConfigurationError, match="bad key"):
        manager.submit(manager.prepare(claim(), made), claim(), made)
    missing = launch(small_server.url, {"spark.kubernetes.namespace": "nowhere"})
    with pytest.raises(ConfigurationError, match="nowhere"):
        manager.submit(manager.prepare(claim(), missing), claim(), missing)


def test_a_namespace_that_does_not_exist_is_known_before_a_claim(small_server: ApiServer) -> None:
    with pytest.raises(ConfigurationError, match="no namespace 'nowhere'"):
        KubernetesManager(small_server.url, namespace="nowhere").check_answers()


def test_without_the_right_to_read_its_namespace_nothing_is_launched(
    manager: KubernetesManager, small_server: ApiServer
) -> None:
    small_server.refuse("GET", "/namespaces/default$", 403, 'cannot get resource "namespaces"')
    with pytest.raises(ConfigurationError, match="lacks the verb 'get' of 'namespaces'"):
        manager.check_answers()


def test_a_server_that_is_stopped_says_nothing_and_is_asked_again(
    manager: KubernetesManager, small_server: ApiServer
) -> None:
    found = submitted(manager, small_server.url)
    small_server.go_down()
    made = launch(small_server.url)
    assert manager.look([found])[found].state is DriverSight.UNKNOWN
    for ask in (manager.check_answers, lambda: manager.find(found), lambda: manager.end(found)):
        with pytest.raises(ManagerUnavailable):
            ask()
    with pytest.raises(ManagerUnavailable):
        manager.sweep(LOG, lambda _: False)
    with pytest.raises(SubmissionUnknown):
        manager.submit(manager.prepare(claim(2), made), claim(2), made)
    small_server.come_back()
    assert manager.look([found])[found].state is DriverSight.QUEUED
    assert manager.find(manager.prepare(claim(2), made)) == []


# --- looks ------------------------------------------------------------------------------------------------------------


def test_one_list_tells_of_many_drivers_of_a_namespace(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    drivers = [submitted(manager, small_server.url, claim(number)) for number in range(1, 9)]
    bind(small_api, drivers[0].name)
    say(small_api, drivers[0], {"phase": "Running"})
    elsewhere = replace_of(drivers[1], address="https://other:6443")
    again = replace_of(drivers[2], id="another-uid")
    other_manager = replace_of(drivers[3], manager="yarn")
    before = len(small_server.requests)
    seen = manager.look([*drivers, elsewhere, again, other_manager])
    assert [one for one in small_server.requests[before:] if "/pods" in one] == [small_server.requests[before]]
    assert len(small_server.requests) == before + 2, "where a pod is missing, it is asked once which cluster says so"
    assert [seen[one].state for one in drivers] == [DriverSight.RUNNING, *[DriverSight.QUEUED] * 7]
    assert seen[elsewhere].state is DriverSight.UNKNOWN
    assert seen[other_manager].state is DriverSight.UNKNOWN
    assert seen[again].state is DriverSight.GONE


def replace_of(submission: Submission, **changed: str) -> Submission:
    return Submission(**{name: changed.get(name, getattr(submission, name)) for name in submission.__struct_fields__})


def test_a_selector_never_becomes_too_long(manager: KubernetesManager, small_server: ApiServer) -> None:
    made = launch(small_server.url)
    manager.check_answers()
    before = len(small_server.requests)
    many = [manager.prepare(claim(number), made) for number in range(1, 121)]
    seen = manager.look(many)
    assert {one.state for one in seen.values()} == {DriverSight.GONE}
    assert sum("labelSelector" in one for one in small_server.requests[before:]) == 3
    assert max(map(len, small_server.requests)) < 8_000


def test_a_pod_whose_config_map_never_came_is_stuck_when_nothing_can_bring_it(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = launch(small_server.url)
    named = manager.prepare(claim(), made)
    labels = {"airflow-logio/submission": named.name, "airflow-logio/part": "driver"}
    volumes = [{"name": "conf", "configMap": {"name": "spark-drv-conf-map"}}]
    spec = {"containers": [{"name": "a", "image": "b"}], "volumes": volumes}
    small_api.create(
        PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": named.name, "labels": labels}, "spec": spec}
    )
    bind(small_api, named.name)
    assert manager.look([named])[named].state is DriverSight.STARTING
    monkeypatch.setattr(module, "SUBMIT_SECONDS", 0.0)
    seen = manager.look([named])[named]
    assert seen.state is DriverSight.STUCK
    assert "spark-drv-conf-map is missing: spark-submit has died" in seen.why
    maps = "/api/v1/namespaces/default/configmaps"
    small_api.create(maps, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "spark-drv-conf-map"}})
    assert manager.look([named])[named].state is DriverSight.STARTING


# --- ends -------------------------------------------------------------------------------------------------------------


def test_an_end_is_confirmed_when_the_pod_is_no_longer_listed(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    found = submitted(manager, small_server.url)
    bind(small_api, found.name)
    say(small_api, found, {"phase": "Running"})
    assert not manager.end(found)
    asked = [one for one in small_server.requests if one.startswith("DELETE")]
    assert not manager.end(found)  # its node does not answer: it stays listed, and is not asked for again
    assert [one for one in small_server.requests if one.startswith("DELETE")] == asked
    seen = manager.look([found])[found]
    assert (seen.state, seen.why) == (DriverSight.RUNNING, "is being deleted on node node-1")
    small_api.delete(f"{PODS}/{found.name}", {"gracePeriodSeconds": 0})
    assert manager.end(found)
    assert manager.look([found])[found].state is DriverSight.GONE


def test_an_end_is_asked_for_by_the_uid_that_was_listed(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    found = submitted(manager, small_server.url)
    pod = small_api.get(f"{PODS}/{found.name}")
    pod["metadata"]["uid"] = "of-an-earlier-pod"
    KubernetesApi(small_server.url, KubernetesAccess()).delete("pods", pod)
    assert manager.find(found) == [found]


def test_a_driver_that_has_ended_keeps_its_output_and_its_executors_go(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api
) -> None:
    found = submitted(manager, small_server.url)
    labels = {"airflow-logio/submission": found.name, "airflow-logio/part": "executor"}
    spec = {"containers": [{"name": "a", "image": "b"}]}
    executor = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "exec-1", "labels": labels}, "spec": spec}
    small_api.create(PODS, executor)
    bind(small_api, found.name)
    ended = {"name": "spark-kubernetes-driver", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    say(small_api, found, {"phase": "Failed", "containerStatuses": [ended]})
    assert "OOMKilled" in manager.look([found])[found].why
    assert manager.end(found)
    assert [pod["metadata"]["name"] for pod in small_api.get(PODS)["items"]] == [found.name]


def test_another_cluster_at_the_same_address_confirms_no_end_and_has_lost_nothing(
    manager: KubernetesManager, small_server: ApiServer
) -> None:
    found = submitted(manager, small_server.url)
    elsewhere = replace_of(found, cluster="of-another-cluster")
    assert manager.end(found)
    assert not manager.end(elsewhere)
    seen = manager.look([found, elsewhere])
    assert [seen[one].state for one in (found, elsewhere)] == [DriverSight.GONE, DriverSight.UNKNOWN]
    assert "is another cluster now" in seen[elsewhere].why
    small_server.refuse("GET", "/namespaces/default$", 503)
    assert manager.look([found])[found].state is DriverSight.UNKNOWN


def test_the_cluster_is_noted_before_a_driver_is_submitted(small_server: ApiServer, small_api: Api) -> None:
    """Also of one whose id is never noted, and in the arguments by which a driver reports itself."""
    uid = small_api.get("/api/v1/namespaces/default")["metadata"]["uid"]
    manager = KubernetesManager(small_server.url)
    manager.check_answers()
    before = list(small_server.requests)
    named = manager.prepare(claim(), launch(small_server.url))
    assert (named.cluster, small_server.requests) == (uid, before)
    assert not manager.end(replace_of(named, cluster="of-another-cluster"))
    small_server.refuse("GET", "/namespaces/default$", 503)
    assert manager.submit(named, claim(), launch(small_server.url)).cluster == uid
    [pod] = small_api.get(PODS)["items"]
    assert f"--cluster={uid}" in pod["spec"]["containers"][0]["args"]


def test_where_clusters_cannot_be_told_apart_nothing_is_confirmed(
    manager: KubernetesManager, small_server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    """By a process that may not read the namespace, of a driver whose cluster was not noted, and where there is no such
    namespace: it was deleted, or another cluster says so."""
    found = submitted(manager, small_server.url)
    assert manager.end(found)
    small_server.refuse("GET", "/namespaces/default$", 403, 'cannot get resource "namespaces"', times=2)
    with pytest.raises(ManagerUnavailable, match="verb 'get' of 'namespaces'"):
        manager.end(found)
    assert manager.look([found])[found].state is DriverSight.UNKNOWN
    assert manager.look([found])[found].state is DriverSight.GONE
    caplog.set_level("INFO")
    for doubtful, why in {
        replace_of(found, cluster=""): "was not noted",
        replace_of(
            found, namespace="deleted"
        ): "has no namespace 'deleted': that was deleted, or it is another cluster",
    }.items():
        assert not manager.end(doubtful)
        seen = manager.look([doubtful])[doubtful]
        assert (seen.state, why in seen.why, why in caplog.text) == (DriverSight.UNKNOWN, True, True)


# --- what is left -----------------------------------------------------------------------------------------------------


def test_gc_takes_what_ended_runs_have_left_and_nothing_else(
    manager: KubernetesManager, small_server: ApiServer, small_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, unknown = RUN, "f" * 32
    names = {}
    for run in (known, unknown):
        for state in ("ended", "running"):
            one = Claim(1, run, state, 1, f"{run}{state}", recovery=False)
            found = submitted(manager, small_server.url, one)
            names[found.name] = (run, state)
            bind(small_api, found.name)
            say(small_api, found, {"phase": "Succeeded" if state == "ended" else "Running"})
    of_another_log = Claim(1, "e" * 32, "ended", 1, "of another log", recovery=False)
    found = submitted(manager, small_server.url, of_another_log, log="b" * 32)
    names[found.name] = ("another log's", "ended")
    say(small_api, found, {"phase": "Succeeded"})
    left = {"labels": {"airflow-logio/log": LOG, "airflow-logio/run": unknown}}
    small_api.create("/api/v1/namespaces/default/configmaps", thing("ConfigMap", "left", left))
    kept = {"labels": {"airflow-logio/log": LOG, "airflow-logio/run": known}}
    small_api.create("/api/v1/namespaces/default/configmaps", thing("ConfigMap", "kept", kept))
    small_api.create("/api/v1/namespaces/default/configmaps", thing("ConfigMap", "foreign", {}))
    others = {"labels": {"airflow-logio/log": "b" * 32, "airflow-logio/run": "e" * 32}}
    small_api.create("/api/v1/namespaces/default/configmaps", thing("ConfigMap", "of-another-log", others))
    ports = {"spec": {"ports": [{"port": 7078}]}}
    small_api.create("/api/v1/namespaces/default/services", {**thing("Service", "left", left), **ports})
    assert manager.sweep(LOG, lambda run: run == known) == 0  # all of it is young
    monkeypatch.setattr(module, "_KEPT_SECONDS", 0.0)
    assert manager.sweep(LOG, lambda run: run == known) == 3
    pods = {pod["metadata"]["name"] for pod in small_api.get(PODS)["items"]}
    of_ours = {(known, "ended"), (known, "running"), (unknown, "running")}
    assert {names[name] for name in pods} == {*of_ours, ("another log's", "ended")}
    maps = {one["metadata"]["name"] for one in small_api.get("/api/v1/namespaces/default/configmaps")["items"]}
    assert maps == {"kept", "foreign", "of-another-log"}
    assert small_api.get("/api/v1/namespaces/default/services")["items"] == []


def thing(kind: str, name: str, meta: Object) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, **meta}}


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"spark.kubernetes.container.image": ""}, "needs an image"),
        ({"spark.kubernetes.driver.pod.name": "mine"}, "leave it out"),
        ({"spark.kubernetes.submission.waitAppCompletion": "true"}, "leave it out"),
        ({"spark.kubernetes.driver.label.airflow-logio/run": "forged"}, "leave it out"),
        ({"spark.kubernetes.executor.label.airflow-logio/run": "forged"}, "leave it out"),
        ({"spark.kubernetes.authenticate.submission.oauthToken": "t"}, "oauthTokenFile"),
        ({"spark.kubernetes.authenticate.driver.oauthToken": "t"}, "oauthTokenFile"),
        ({"spark.kubernetes.driver.podTemplateFile": "/no/such.yaml"}, "no such file"),
        ({"spark.jars": "local:///a.jar,/b.jar"}, "jars has /b.jar"),
        ({"spark.submit.pyFiles": "file:///b.py"}, "local:///b.py"),
    ],
)
def test_what_cannot_work_is_refused_before_a_claim(
    manager: KubernetesManager, small_server: ApiServer, conf: dict[str, str], says: str
) -> None:
    settings = SparkSettings(f"k8s://{small_server.url}", "cluster")
    with pytest.raises(ConfigurationError, match=says):
        manager.check(settings, {**IMAGE, **conf})
    assert small_server.requests == []


def test_files_that_pods_reach_are_accepted(manager: KubernetesManager, small_server: ApiServer) -> None:
    settings = SparkSettings(f"k8s://{small_server.url}", "cluster", jars="local:///a.jar,s3a://bucket/b.jar")
    manager.check(settings, IMAGE)
    uploads = {"spark.kubernetes.file.upload.path": "s3a://bucket/uploads"}
    manager.check(replace(settings, jars="/here.jar"), {**IMAGE, **uploads})


def test_files_of_this_machine_are_refused_for_a_pod_of_python(
    manager: KubernetesManager, small_server: ApiServer
) -> None:
    made = launch(small_server.url, py_files="helper.py")
    with pytest.raises(ConfigurationError, match="pod of Python alone"):
        manager.submit(manager.prepare(claim(), made), claim(), made)


def test_without_the_client_of_kubernetes_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'airflow-logio\[kubernetes\]'"):
        KubernetesManager("https://host")


@pytest.mark.parametrize(
    ("master", "url"),
    [
        ("k8s://https://host:6443", "https://host:6443"),
        ("k8s://http://127.0.0.1:8001/", "http://127.0.0.1:8001"),
        ("k8s://host:6443", "https://host:6443"),
    ],
)
def test_a_master_is_read_as_spark_reads_it(master: str, url: str) -> None:
    assert server_of(master) == url


@pytest.mark.parametrize("master", ["k8s://", "spark://host:7077", "k8s://ftp://host", "k8s://https://a:b@host"])
def test_a_master_that_is_no_api_server_is_refused(master: str) -> None:
    with pytest.raises(ConfigurationError):
        server_of(master)


# --- credentials ------------------------------------------------------------------------------------------------------


def kubeconfig(servers: Mapping[str, tuple[str, str]], current: str) -> dict[str, Any]:
    """Context → server and token."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": current,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in servers],
        "clusters": [{"name": name, "cluster": {"server": url}} for name, (url, _) in servers.items()],
        "users": [{"name": name, "user": {"token": token}} for name, (_, token) in servers.items()],
    }


def test_credentials_come_from_the_context_of_that_server(small_server: ApiServer, tmp_path: Path) -> None:
    small_server.token = "right"
    file = tmp_path / "config"
    both = {"elsewhere": ("https://elsewhere", "wrong"), "here": (small_server.url, "right")}
    file.write_text(json.dumps(kubeconfig(both, "elsewhere")))
    KubernetesManager(small_server.url, KubernetesAccess(kubeconfig=file)).check_answers()
    named = KubernetesManager(small_server.url, KubernetesAccess(kubeconfig=file, context="elsewhere"))
    with pytest.raises(ManagerUnavailable, match="credentials"):
        named.check_answers()
    content = KubernetesAccess(content=kubeconfig(both, "here"))
    KubernetesManager(small_server.url, content).check_answers()
    with pytest.raises(ManagerUnavailable, match="no credentials"):
        KubernetesManager(small_server.url, KubernetesAccess(kubeconfig=tmp_path / "none")).check_answers()


def test_a_token_that_was_renewed_is_read_again(small_server: ApiServer, tmp_path: Path) -> None:
    file = tmp_path / "config"
    small_server.token = "old"
    file.write_text(json.dumps(kubeconfig({"here": (small_server.url, "old")}, "here")))
    manager = KubernetesManager(small_server.url, KubernetesAccess(kubeconfig=file))
    manager.check_answers()
    small_server.token = "new"
    file.write_text(json.dumps(kubeconfig({"here": (small_server.url, "new")}, "here")))
    with pytest.raises(ManagerUnavailable, match="renew"):
        manager.check_answers()
    manager.check_answers()


def test_a_context_among_the_properties_is_the_one_that_is_asked(small_server: ApiServer, tmp_path: Path) -> None:
    small_server.token = "right"
    file = tmp_path / "config"
    two = {"one": (small_server.url, "wrong"), "two": (small_server.url, "right")}
    file.write_text(json.dumps(kubeconfig(two, "one")))
    settings = SparkSettings(f"k8s://{small_server.url}", "cluster")
    conf = {"spark.kubernetes.context": "two", "spark.kubernetes.namespace": "default"}
    manager = KubernetesManager.of_settings(settings, conf, KubernetesAccess(kubeconfig=file))
    manager.check_answers()
    submission = Submission("kubernetes", small_server.url, "pod", "default")
    assert manager.output_command(submission) == "kubectl --context two -n default logs pod"


def test_a_connection_of_airflow_says_where_credentials_are() -> None:
    content = kubeconfig({"a": ("https://a", "t")}, "a")
    made = KubernetesAccess.of_connection(
        {"kube_config": json.dumps(content), "cluster_context": "a", "namespace": "n"}
    )
    assert made == KubernetesAccess(content=content, context="a", namespace="n")
    assert "token" not in repr(made)
    path = KubernetesAccess.of_connection({"extra__kubernetes__kube_config_path": "/etc/kube/config"})
    assert path == KubernetesAccess(kubeconfig=Path("/etc/kube/config"))
    assert KubernetesAccess.of_connection({"in_cluster": True}) == KubernetesAccess(in_cluster=True)
    with pytest.raises(ConfigurationError, match="leave one"):
        KubernetesAccess.of_connection({"in_cluster": True, "kube_config_path": "/a"})
    with pytest.raises(ConfigurationError, match="no JSON object"):
        KubernetesAccess.of_connection({"kube_config": "a: yaml"})


def test_a_request_without_credentials_is_no_answer(tmp_path: Path) -> None:
    api = KubernetesApi("https://127.0.0.1:1", KubernetesAccess(kubeconfig=tmp_path / "none"))
    with pytest.raises(NoAnswer, match="no credentials"):
        api.create_pod("default", {})
