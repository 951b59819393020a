"""The tests' kubelet runs pods as a node does, and loses them as told."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.launch.spark_submit import find_spark_submit
from tests.support import hosts
from tests.support.kubernetes import real
from tests.support.kubernetes.api_server import ApiServer
from tests.support.kubernetes.client import Api
from tests.support.kubernetes.kubelet import Kubelet, kubelet
from tests.support.kubernetes.problems import Object, Problem
from tests.support.kubernetes.real import Kubernetes
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(hosts.why_not() is not None, reason=str(hosts.why_not()))
POLICIES = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
BUILT = pytest.mark.skipif(real.why_not() is not None, reason=str(real.why_not()))
SPACE = "/api/v1/namespaces/default"


@pytest.fixture(scope="module")
def kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    with real.kubernetes(tmp_path_factory.mktemp("kubernetes")) as one:
        yield one


@pytest.fixture(params=["small", pytest.param("real", marks=BUILT)])
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer | Kubernetes]:
    if request.param == "small":
        yield request.getfixturevalue("small_server")
    else:
        shared = request.getfixturevalue("kubernetes")
        yield shared
        api = Api(shared.url)
        for plural in ("pods", "services", "configmaps", "secrets"):
            api.delete(f"{SPACE}/{plural}", {"gracePeriodSeconds": 0}, {"fieldSelector": "metadata.name!=kubernetes"})
        eventually(lambda: not api.get("/api/v1/pods")["items"], what="no pods are left")
        api.close()


@pytest.fixture
def api(server: ApiServer | Kubernetes) -> Iterator[Api]:
    one = Api(server.url)
    yield one
    one.close()


@pytest.fixture
def cluster(server: ApiServer | Kubernetes, tmp_path: Path) -> Iterator[Kubelet]:
    with kubelet(server.url, tmp_path / "kubelet", shared=[tmp_path]) as one:
        yield one


def start(api: Api, name: str, script: str, container: Mapping[str, Any] | None = None, **spec: Any) -> Object:
    """A pod whose container runs a script of the shell."""
    main = {"name": "main", "image": "spark", "command": ["sh", "-c", script], **(container or {})}
    labels = {"app": name}
    made: Object = api.create(
        f"{SPACE}/pods",
        {
            "metadata": {"name": name, "labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [main], **spec},
        },
    )
    return made


def ended(api: Api, name: str) -> Object:
    """The status of a pod when it has ended."""
    has = lambda: api.get(f"{SPACE}/pods/{name}")["status"]["phase"] in {"Succeeded", "Failed"}  # noqa: E731
    eventually(has, what=f"pod {name} ends")
    status: Object = api.get(f"{SPACE}/pods/{name}")["status"]
    return status


def runs(api: Api, name: str) -> None:
    eventually(lambda: api.get(f"{SPACE}/pods/{name}")["status"]["phase"] == "Running", what=f"pod {name} runs")


def state(api: Api, name: str) -> Object:
    status: Object = api.get(f"{SPACE}/pods/{name}")["status"]
    return status


def waits_for(api: Api, name: str) -> str | None:
    """The reason why its container waits."""
    [container] = state(api, name).get("containerStatuses") or [{}]
    waiting = container.get("state", {}).get("waiting") or {}
    return str(waiting["reason"]) if waiting else None


def terminated(status: Object) -> Object:
    state: Object = status["containerStatuses"][0]["state"]["terminated"]
    return state


def is_gone(api: Api, name: str) -> bool:
    try:
        api.get(f"{SPACE}/pods/{name}")
    except Problem as problem:
        assert problem.code == 404
        return True
    return False


def test_a_pod_has_its_files_its_variables_its_address_and_nothing_on_this_machine(api: Api, cluster: Kubelet) -> None:
    api.create(f"{SPACE}/configmaps", {"metadata": {"name": "files"}, "data": {"a.txt": "of the map", "level": "7"}})
    api.create(f"{SPACE}/secrets", {"metadata": {"name": "hidden"}, "stringData": {"password": "of the secret"}})
    variables = [
        {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "password"}}},
        {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "files", "key": "level"}}},
        {"name": "ABSENT", "valueFrom": {"secretKeyRef": {"name": "none", "key": "x", "optional": True}}},
        {"name": "BOTH", "value": "$(NAME)-$(LEVEL)-$(UNKNOWN)-$$"},
    ]
    mounts = [
        {"name": "map", "mountPath": "/etc/logio/deep"},
        {"name": "secret", "mountPath": "/var/run/secrets/logio"},
        {"name": "scratch", "mountPath": "/logio-scratch"},
        {"name": "map", "mountPath": "/opt/one.txt", "subPath": "a.txt"},
    ]
    volumes = [
        {"name": "map", "configMap": {"name": "files"}},
        {"name": "secret", "secret": {"secretName": "hidden", "items": [{"key": "password", "path": "in/it"}]}},
        {"name": "scratch", "emptyDir": {}},
    ]
    script = """
        echo "$ADDRESS|$NAME|$PASSWORD|$LEVEL|$ABSENT|$BOTH"
        cat /etc/logio/deep/a.txt /opt/one.txt /var/run/secrets/logio/in/it; echo
        touch /etc/logio/deep/b.txt 2>/dev/null || echo read only
        echo written > /logio-scratch/file && cat /logio-scratch/file
        ls /tmp/logio-* 2>/dev/null || echo own tmp
        touch /tmp/of-a-pod
        hostname; hostname -i; ls /proc | grep -c '^[0-9]'; pwd
        python -c 'import airflow_logio, pyspark; print("Python of the clone")'
        exit 3
    """
    start(api, "one", script, {"env": variables, "volumeMounts": mounts}, volumes=volumes)
    status, pod = ended(api, "one"), cluster.pod("one")
    lines = pod.log.splitlines()
    assert lines[0] == f"{pod.address}|one|of the secret|7||one-7-$(UNKNOWN)-$"
    assert lines[1:7] == ["of the mapof the mapof the secret", "read only", "written", "own tmp", "one", pod.address]
    assert int(lines[7]) < 10, "it sees processes of others"
    assert lines[8:] == ["/opt/spark/work-dir", "Python of the clone"]
    assert (status["phase"], status["podIP"]) == ("Failed", pod.address)
    assert (terminated(status)["exitCode"], terminated(status)["reason"]) == (3, "Error")
    for path in ("/etc/logio/deep", "/logio-scratch", "/opt/one.txt", "/opt/entrypoint.sh", "/tmp/of-a-pod"):
        assert not Path(path).exists()


def test_a_deleted_pod_is_told_to_end_and_then_killed(api: Api, cluster: Kubelet) -> None:
    start(api, "hears", "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.1; done")
    start(api, "deaf", "trap '' TERM; echo ready; sleep 1000 & wait; sleep 1000")
    for name in ("hears", "deaf"):
        eventually(lambda name=name: "ready" in cluster.pod(name).log, what=f"{name} is ready")  # type: ignore[misc]
    hears, deaf = cluster.pod("hears"), cluster.pod("deaf")
    api.delete(f"{SPACE}/pods/hears")
    api.delete(f"{SPACE}/pods/deaf", {"gracePeriodSeconds": 1})
    eventually(lambda: is_gone(api, "hears") and is_gone(api, "deaf"), what="both have gone")
    assert (hears.exit_code, deaf.exit_code) == (0, 137)
    assert "told" in hears.log


def test_a_pod_that_the_api_has_no_more_is_killed(api: Api, cluster: Kubelet) -> None:
    start(api, "one", "sleep 1000")
    pod = cluster.pod("one")
    api.delete(f"{SPACE}/pods/one", {"gracePeriodSeconds": 0})
    eventually(lambda: pod.exit_code is not None, what="it has ended")


def test_pods_wait_for_room_for_their_image_and_for_what_they_mount(api: Api, cluster: Kubelet) -> None:
    cluster.hold()
    start(api, "one", "true", {"image": "missing"}, volumes=[{"name": "map", "configMap": {"name": "later"}}])
    eventually(lambda: "conditions" in state(api, "one"), what="there is no room")
    [condition] = state(api, "one")["conditions"]
    assert state(api, "one")["phase"] == "Pending"
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    cluster.missing_images.add("missing")
    cluster.release()
    eventually(lambda: waits_for(api, "one") == "ImagePullBackOff", what="there is no image")
    cluster.missing_images.clear()
    assert ended(api, "one")["phase"] == "Succeeded", "what is not mounted is not waited for"
    mount = {"volumeMounts": [{"name": "map", "mountPath": "/map"}]}
    start(api, "two", "cat /map/key", mount, volumes=[{"name": "map", "configMap": {"name": "later"}}])
    eventually(lambda: waits_for(api, "two") == "ContainerCreating", what="there is nothing to mount")
    api.create(f"{SPACE}/configmaps", {"metadata": {"name": "later"}, "data": {"key": "has come"}})
    ended(api, "two")
    assert cluster.pod("two").log == "has come"


def test_evicted_out_of_memory_and_preempted_are_told_apart(api: Api, cluster: Kubelet) -> None:
    for name in ("evicted", "memory", "killed", "preempted"):
        start(api, name, "sleep 1000")
        runs(api, name)
    cluster.evict(cluster.pod("evicted"))
    cluster.run_out_of_memory(cluster.pod("memory"))
    cluster.pod("killed").kill()
    evicted, memory, killed = ended(api, "evicted"), ended(api, "memory"), ended(api, "killed")
    assert (evicted["phase"], evicted["reason"]) == ("Failed", "Evicted")
    assert (memory["phase"], terminated(memory)["reason"], terminated(memory)["exitCode"]) == (
        "Failed",
        "OOMKilled",
        137,
    )
    assert (killed.get("reason"), terminated(killed)["reason"], terminated(killed)["exitCode"]) == (None, "Error", 137)
    with api.watch(f"{SPACE}/pods", {"fieldSelector": "metadata.name=preempted"}) as events:
        cluster.preempt(cluster.pod("preempted"))
        told = next(event for event in events if "deletionTimestamp" in event["object"]["metadata"])
    reasons = {one["type"]: one.get("reason") for one in told["object"]["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "PreemptionByScheduler"


def test_a_node_is_cut_off_and_back_with_what_runs_there(api: Api, cluster: Kubelet) -> None:
    start(api, "one", "sleep 1000")
    runs(api, "one")
    pod = cluster.pod("one")
    cluster.cut_off(pod.node)
    conditions = {one["type"]: one["status"] for one in api.get(f"{SPACE}/pods/one")["status"]["conditions"]}
    assert conditions["Ready"] == "False"
    api.delete(f"{SPACE}/pods/one", {"gracePeriodSeconds": 0})
    start(api, "one", "sleep 1000")
    runs(api, "one")
    second = cluster.pod("one")
    assert (pod.exit_code, second.node != pod.node) == (None, True), "the old one is a zombie on its node"
    cluster.reconnect(pod.node)
    eventually(lambda: pod.exit_code is not None, what="the old one is ended")
    assert second.exit_code is None


def test_a_node_that_is_lost_says_nothing_until_it_is_removed(api: Api, cluster: Kubelet) -> None:
    start(api, "one", "sleep 1000")
    runs(api, "one")
    pod = cluster.pod("one")
    cluster.lose(pod.node)
    assert pod.exit_code is not None
    assert api.get(f"{SPACE}/pods/one")["status"]["phase"] == "Running"
    api.delete(f"{SPACE}/pods/one")
    assert api.get(f"{SPACE}/pods/one")["metadata"]["deletionTimestamp"]
    cluster.remove(pod.node)
    assert is_gone(api, "one")


def test_a_headless_service_is_found_by_its_name(api: Api, cluster: Kubelet) -> None:
    service = {"metadata": {"name": "first"}, "spec": {"clusterIP": "None", "selector": {"app": "server"}}}
    api.create(f"{SPACE}/services", service)
    start(api, "server", "cd /opt/spark/bin && exec python -m http.server 8000")
    asks = "import urllib.request as r; print(r.urlopen('http://first.default.svc:8000').status)"
    start(api, "client", f'until python -c "{asks}"; do sleep 0.1; done')
    ended(api, "client")
    assert cluster.pod("client").log.splitlines()[-1] == "200"


def test_the_entrypoint_passes_signals_and_exit_codes(api: Api, cluster: Kubelet) -> None:
    start(
        api,
        "told",
        "",
        {"command": None, "args": ["bash", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.1; done"]},
    )
    start(api, "unknown", "", {"command": None, "args": ["no-such-program"]})
    eventually(lambda: "ready" in cluster.pod("told").log, what="it is ready")
    cluster.pod("told").terminate()
    assert terminated(ended(api, "told"))["exitCode"] == 9
    assert terminated(ended(api, "unknown"))["exitCode"] == 127


def test_one_program_of_a_pod_is_killed_and_the_others_go_on(api: Api, cluster: Kubelet) -> None:
    start(api, "one", "sleep 1000 & wait $!; echo it ended with $?; exit 5")
    pod = cluster.pod("one")
    eventually(lambda: pod.processes("sleep"), what="it sleeps")
    assert pod.kill_all_of("java") == 0
    assert pod.kill_all_of("sleep") == 1
    assert terminated(ended(api, "one"))["exitCode"] == 5
    assert "it ended with 137" in pod.log


def test_the_kubelet_outlives_an_outage_of_the_server(
    server: ApiServer | Kubernetes, api: Api, cluster: Kubelet, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    start(api, "one", f"until [ -e {go} ]; do sleep 0.1; done; exit 4")
    runs(api, "one")
    server.go_down()
    pod = cluster.pod("one")
    go.touch()
    eventually(lambda: pod.exit_code is not None, what="it ends meanwhile")
    server.come_back()
    assert terminated(ended(api, "one"))["exitCode"] == 4


# --- Spark ------------------------------------------------------------------------------------------------------------

JOB = """
import json, socket, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
numbers = spark.sparkContext.parallelize(range(int(sys.argv[1])), 3)
total = numbers.sum()
places = sorted(set(numbers.map(lambda _: socket.gethostname()).collect()))
print("RESULT", json.dumps({"total": total, "on": places, "here": socket.gethostname()}), flush=True)
spark.stop()
"""


OF = ("submission", "driver")
"""Clients whose usual ten seconds are too few for a busy machine."""


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_spark_runs_a_job_on_an_executor_and_leaves_nothing_of_a_deleted_driver(
    server: ApiServer | Kubernetes, api: Api, cluster: Kubelet, tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(JOB)
    conf = {
        "spark.kubernetes.container.image": "spark",
        "spark.kubernetes.driver.master": f"http://{cluster.network.address}:{server.port}",
        "spark.kubernetes.driver.pod.name": "driver",
        "spark.kubernetes.executor.podNamePrefix": "of-the-driver",
        "spark.kubernetes.report.interval": "1s",
        **{f"spark.kubernetes.{of}.{what}Timeout": "120000" for of in OF for what in ("connection", "request")},
        "spark.executor.instances": "1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
    }
    options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    where = ["--master", f"k8s://{server.url}", "--deploy-mode", "cluster", "--name", "job"]
    submitted = subprocess.run(
        [find_spark_submit(None, os.environ), *where, *options, f"local://{tmp_path}/job.py", "1000"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
    )
    driver = cluster.pod("driver")
    assert submitted.returncode == 0, submitted.stderr[-3000:] + driver.log[-3000:]
    [result] = [line for line in driver.log.splitlines() if line.startswith("RESULT ")]
    expected = {"total": 499_500, "on": ["of-the-driver-exec-1"], "here": "driver"}
    assert json.loads(result.removeprefix("RESULT ")) == expected
    assert (ended(api, "driver")["phase"], cluster.pod("of-the-driver-exec-1").exit_code) == ("Succeeded", 0)
    assert left_in(api) != []
    api.delete(f"{SPACE}/pods/driver")
    eventually(lambda: left_in(api) == [], what="all of it is collected")


def left_in(api: Api) -> list[str]:
    """Names of what is no pod."""
    found = [one for path in ("configmaps", "services") for one in api.get(f"{SPACE}/{path}")["items"]]
    found += api.get(POLICIES)["items"]
    return [one["metadata"]["name"] for one in found if one["metadata"]["name"] != "kubernetes"]


def test_hosts_that_come_and_go_do_not_cut_others_off(tmp_path: Path) -> None:
    """A bridge whose hardware address changed with its cables was out of reach for those who had learnt the former one."""
    program = (
        "import socket, sys, time\n"
        "line = socket.socket(type=socket.SOCK_DGRAM)\n"
        "while True:\n"
        "    line.sendto(str(time.monotonic()).encode(), (sys.argv[1], int(sys.argv[2])))\n"
        "    time.sleep(0.05)"
    )
    with hosts.network("first") as network, socket.socket(type=socket.SOCK_DGRAM) as heard:
        more = [f"more-{number}" for number in range(8)]
        for name in more:
            network.plug_in(name)
        heard.bind((network.address, 0))
        heard.settimeout(10)
        words = [sys.executable, "-c", program, network.address, str(heard.getsockname()[1])]
        network.hosts["first"].run(words, {"PATH": os.environ["PATH"]}, tmp_path, tmp_path / "log")
        for name in more:
            eventually(lambda: heard.recv(99), what="it is heard")
            network.unplug(name)
            heard_since(heard, time.monotonic())


def heard_since(heard: socket.socket, when: float) -> None:
    eventually(lambda: float(heard.recv(99)) > when, what="it is heard again")
