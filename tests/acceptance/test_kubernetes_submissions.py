"""Spark's own submission to Kubernetes, by spark-submit: what comes of it when an answer, a right or the process is gone."""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_logio.errors import ConfigurationError, LogioError, ManagerUnavailable, NeverFits, SubmissionUnknown
from airflow_logio.launch.driver_config import DriverConfig, DriverKind, Launch
from airflow_logio.launch.managers.cluster_manager import DriverSight
from airflow_logio.launch.managers.kubernetes import KubernetesManager
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support.kubernetes import real
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.client import Api
from tests.support.kubernetes.real import Kubernetes
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
def its_own(tmp_path: Path) -> Iterator[Kubernetes]:
    """Kubernetes' own API server."""
    if (why := real.why_not()) is not None:
        pytest.skip(why)
    with real.kubernetes(tmp_path) as one:
        yield one


@pytest.fixture
def its_api(its_own: Kubernetes) -> Iterator[Api]:
    api = Api(its_own.url)
    yield api
    api.close()


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
    small_server: ApiServer, small_api: Api
) -> None:
    manager = KubernetesManager(small_server.url)
    found = submit(manager, small_server.url, **{"spark.kubernetes.driver.label.team": "sales"})
    [pod] = items(small_api, f"{SPACE}/pods")
    assert (pod["metadata"]["name"], pod["metadata"]["uid"]) == (found.name, found.id)
    labels = pod["metadata"]["labels"]
    assert labels["airflow-logio/run"] == RUN
    assert (labels["airflow-logio/submission"], labels["team"]) == (found.name, "sales")
    [container] = pod["spec"]["containers"]
    assert container["name"] == "spark-kubernetes-driver"
    assert f"--run={RUN}" in container["args"]
    assert "local:///opt/logio/logio_driver.py" in container["args"]
    assert "PYSPARK_PYTHON" not in {one["name"] for one in container["env"]}, "the image has a Python of its own"
    things = [one for path in LEFT for one in items(small_api, path)]
    assert len(things) == 3
    assert PASSWORD not in json.dumps([pod, things])
    assert manager.look([found])[found].state is DriverSight.QUEUED
    assert submit(manager, small_server.url) == found, "the name of a claim is refused a second time"
    assert manager.end(found)
    eventually(
        lambda: not any(items(small_api, path) for path in LEFT), what="what the pod owned is collected", timeout=30
    )


def test_a_right_that_is_missing_is_named_and_nothing_is_left(small_server: ApiServer, small_api: Api) -> None:
    manager = KubernetesManager(small_server.url)
    who = 'services is forbidden: User "u" cannot {} resource "services" in API group "" in the namespace "default"'
    small_server.refuse("PATCH", "/services/", 403, who.format("patch"), times=100)
    with pytest.raises(ConfigurationError, match=r"lacks the verb 'patch' of 'services'"):
        submit(manager, small_server.url)
    assert items(small_api, f"{SPACE}/pods") == []


def test_a_driver_whose_pod_had_no_answer_lacks_its_properties_and_is_ended(
    small_server: ApiServer, small_api: Api
) -> None:
    manager = KubernetesManager(small_server.url)
    small_server.lose_answers("POST", "/pods$")
    with pytest.raises(SubmissionUnknown):
        submit(manager, small_server.url)
    assert items(small_api, f"{SPACE}/pods") == [], "it could never have started"


def test_a_server_that_is_stopped_may_have_taken_it(small_server: ApiServer) -> None:
    manager = KubernetesManager(small_server.url)
    small_server.go_down()
    with pytest.raises(SubmissionUnknown):
        submit(manager, small_server.url)


def test_spark_submit_that_dies_between_the_pod_and_its_config_map_leaves_nothing(
    small_server: ApiServer, small_api: Api
) -> None:
    killed = threading.Event()

    def kill_it() -> None:
        own = Api(small_server.url)
        eventually(lambda: items(own, f"{SPACE}/pods"), what="there is a pod", timeout=240, every=0.05)
        own.close()
        for child in psutil.Process().children(recursive=True):
            if "java" in child.name() and any("SparkSubmit" in word for word in child.cmdline()):
                child.kill()
                killed.set()

    with relay(small_server.port) as way:
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
    assert items(small_api, f"{SPACE}/pods") == []


def _refusal(manager: KubernetesManager, made: Launch, incarnations: Iterator[int]) -> LogioError | None:
    """What a driver of Python alone is refused with, if it is."""
    claim = replace(CLAIM, incarnation=next(incarnations))
    try:
        manager.submit(manager.prepare(claim, made), claim, made)
    except (ManagerUnavailable, ConfigurationError) as error:
        return error
    return None


def test_what_kubernetes_own_quotas_and_limits_say_is_told_apart(its_own: Kubernetes, its_api: Api) -> None:
    """What is used up may have room later; what is smaller than the driver alone never has. Spark says the same."""
    manager, incarnations = KubernetesManager(its_own.url), itertools.count(1)
    made = replace(launch(its_own.url), kind=DriverKind.PYTHON, needs_spark=False)
    quota = {"hard": {"pods": "9", "requests.memory": "4Gi"}}
    its_api.create(f"{SPACE}/resourcequotas", {"metadata": {"name": "team"}, "spec": quota})

    def refused(error: type[LogioError], says: str) -> None:
        def is_so() -> bool:
            found = _refusal(manager, made, incarnations)
            return isinstance(found, error) and re.search(says, str(found)) is not None

        eventually(is_so, what=says, timeout=60, every=0.2)

    # The status is what the controller of quotas would write.
    its_api.merge(f"{SPACE}/resourcequotas/team/status", {"status": quota})
    refused(ManagerUnavailable, "status unknown for quota: team")
    counted = {"pods": "9", "requests.memory": "0"}
    its_api.merge(f"{SPACE}/resourcequotas/team/status", {"status": {**quota, "used": counted}})
    refused(ManagerUnavailable, "exceeded quota: team, requested: pods=1, used: pods=9, limited: pods=9")
    small = {"hard": {"pods": "9", "requests.memory": "512Mi"}, "used": {"pods": "0", "requests.memory": "0"}}
    its_api.merge(f"{SPACE}/resourcequotas/team/status", {"status": small})
    refused(NeverFits, r"quota 'team' has in all \(1Gi of requests.memory, and the quota is 512Mi\)")
    with pytest.raises(NeverFits, match=r"1433Mi of requests\.memory, and the quota is 512Mi"):
        submit(manager, its_own.url)
    its_api.delete(f"{SPACE}/resourcequotas/team")
    limits = {"limits": [{"type": "Container", "max": {"memory": "512Mi"}}]}
    its_api.create(f"{SPACE}/limitranges", {"metadata": {"name": "team"}, "spec": limits})
    refused(NeverFits, "maximum memory usage per Container is 512Mi, but limit is 1Gi")
    with pytest.raises(NeverFits, match="but limit is 1433Mi"):
        submit(manager, its_own.url)
