"""Spark's own submission to Kubernetes, by spark-submit: what comes of it when an answer, a right or the process is gone."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from airflow_logio.errors import ConfigurationError, SubmissionUnknown
from airflow_logio.launch.driver_config import DriverConfig, DriverKind, Launch
from airflow_logio.launch.managers.cluster_manager import DriverSight
from airflow_logio.launch.managers.kubernetes import KubernetesManager
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support.kubernetes.api_server import ApiServer, api_server
from tests.support.kubernetes.client import Api
from tests.support.launches import launch_of
from tests.support.relay import relay
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.spark, pytest.mark.timeout(600)]

RUN = "0123456789abcdef0123456789abcdef"
CLAIM = Claim(1, RUN, "hourly", 1, "nonce", recovery=False)
SPACE = "/api/v1/namespaces/default"
LEFT = (f"{SPACE}/services", f"{SPACE}/configmaps", "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies")
PASSWORD = "pw-of-the-log"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as one:
        yield one


@pytest.fixture
def api(server: ApiServer) -> Iterator[Api]:
    one = Api(server.url)
    yield one
    one.close()


def launch(url: str, **conf: str) -> Launch:
    given = SparkSettings(f"k8s://{url}", "cluster", {"spark.kubernetes.container.image": "logio:1", **conf})
    config = DriverConfig(f"postgresql://logio:{PASSWORD}@db/logio", CLAIM, "m", "p", "/bundle", {}, needs_spark=True)
    return replace(launch_of(config, given, given.conf), kind=DriverKind.SPARK_SUBMIT)


def submit(manager: KubernetesManager, url: str, **conf: str) -> Submission:
    made = launch(url, **conf)
    return manager.submit(manager.prepare(CLAIM, made), CLAIM, made)


def items(api: Api, path: str) -> list[dict[str, Any]]:
    return list(api.get(path)["items"])


def test_spark_submits_a_driver_that_is_found_again_and_takes_all_of_its_things_along(
    server: ApiServer, api: Api
) -> None:
    manager = KubernetesManager(server.url)
    found = submit(manager, server.url, **{"spark.kubernetes.driver.label.team": "sales"})
    [pod] = items(api, f"{SPACE}/pods")
    assert (pod["metadata"]["name"], pod["metadata"]["uid"]) == (found.name, found.id)
    labels = pod["metadata"]["labels"]
    assert labels["airflow-logio/run"] == RUN
    assert (labels["airflow-logio/submission"], labels["team"]) == (found.name, "sales")
    [container] = pod["spec"]["containers"]
    assert container["name"] == "spark-kubernetes-driver"
    assert f"--run={RUN}" in container["args"]
    assert "local:///opt/logio/logio_driver.py" in container["args"]
    assert "PYSPARK_PYTHON" not in {one["name"] for one in container["env"]}, "the image has a Python of its own"
    things = [one for path in LEFT for one in items(api, path)]
    assert len(things) == 3
    assert PASSWORD not in json.dumps([pod, things])
    assert manager.look([found])[found].state is DriverSight.QUEUED
    assert submit(manager, server.url) == found, "the name of a claim is refused a second time"
    assert manager.end(found)
    eventually(lambda: not any(items(api, path) for path in LEFT), what="what the pod owned is collected", timeout=30)


def test_a_right_that_is_missing_is_named_and_nothing_is_left(server: ApiServer, api: Api) -> None:
    manager = KubernetesManager(server.url)
    who = 'services is forbidden: User "u" cannot {} resource "services" in API group "" in the namespace "default"'
    server.refuse("PATCH", "/services/", 403, who.format("patch"), times=100)
    with pytest.raises(ConfigurationError, match=r"lacks the verb 'patch' of 'services'"):
        submit(manager, server.url)
    assert items(api, f"{SPACE}/pods") == []


def test_a_driver_whose_pod_had_no_answer_lacks_its_properties_and_is_ended(server: ApiServer, api: Api) -> None:
    manager = KubernetesManager(server.url)
    server.lose_answers("POST", "/pods$")
    with pytest.raises(SubmissionUnknown):
        submit(manager, server.url)
    assert items(api, f"{SPACE}/pods") == [], "it could never have started"


def test_a_server_that_is_stopped_may_have_taken_it(server: ApiServer) -> None:
    manager = KubernetesManager(server.url)
    server.go_down()
    with pytest.raises(SubmissionUnknown):
        submit(manager, server.url)


def test_spark_submit_that_dies_between_the_pod_and_its_config_map_leaves_nothing(server: ApiServer, api: Api) -> None:
    killed = threading.Event()

    def kill_it() -> None:
        own = Api(server.url)
        eventually(lambda: items(own, f"{SPACE}/pods"), what="there is a pod", timeout=240, every=0.05)
        own.close()
        for child in psutil.Process().children(recursive=True):
            if "java" in child.name() and any("SparkSubmit" in word for word in child.cmdline()):
                child.kill()
                killed.set()

    with relay(server.port) as way:
        way.slow = re.compile(rb"PATCH \S+/services/")
        manager = KubernetesManager(f"http://127.0.0.1:{way.port}")
        killer = threading.Thread(target=kill_it)
        killer.start()
        try:
            with pytest.raises(SubmissionUnknown):
                submit(manager, f"http://127.0.0.1:{way.port}")
        finally:
            killer.join()
    assert killed.is_set()
    assert items(api, f"{SPACE}/pods") == []
