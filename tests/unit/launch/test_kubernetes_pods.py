"""The pod of a driver of Python alone: Spark's properties mean what they mean for Spark's own drivers, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.managers.kubernetes_pods import driver_container, python_pod

IMAGE = {"spark.kubernetes.container.image": "registry/logio:1"}
COMMAND = ["python3", "/opt/logio/logio_driver.py", "--run=r"]


def made(conf: dict[str, str], **variables: str) -> dict[str, Any]:
    return python_pod("logio-r-g-1", {"airflow-logio/run": "r"}, {**IMAGE, **conf}, COMMAND, variables)


def own(pod: dict[str, Any]) -> dict[str, Any]:
    [container] = pod["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def test_a_pod_runs_its_command_once() -> None:
    pod = made({}, PYTHONUNBUFFERED="1")
    shown = {"kubectl.kubernetes.io/default-container": "spark-kubernetes-driver"}
    assert pod["metadata"] == {"name": "logio-r-g-1", "labels": {"airflow-logio/run": "r"}, "annotations": shown}
    assert pod["spec"]["restartPolicy"] == "Never"
    container = own(pod)
    assert (container["command"], container["args"]) == (["python3"], COMMAND[1:])
    assert container["image"] == "registry/logio:1"
    assert container["imagePullPolicy"] == "IfNotPresent"
    assert container["env"] == [{"name": "PYTHONUNBUFFERED", "value": "1"}]


def test_what_spark_says_of_a_drivers_pod_is_said_of_this_one() -> None:
    pod = made(
        {
            "spark.kubernetes.driver.container.image": "registry/driver:2",
            "spark.kubernetes.container.image.pullPolicy": "Always",
            "spark.kubernetes.container.image.pullSecrets": "one, two",
            "spark.kubernetes.driver.label.team": "sales",
            "spark.kubernetes.driver.annotation.a/b": "c",
            "spark.kubernetes.authenticate.driver.serviceAccountName": "logio-driver",
            "spark.kubernetes.node.selector.disk": "ssd",
            "spark.kubernetes.driver.node.selector.zone": "a",
            "spark.kubernetes.driver.scheduler.name": "volcano",
            "spark.kubernetes.driverEnv.LEVEL": "info",
        }
    )
    assert own(pod)["image"] == "registry/driver:2"
    assert own(pod)["imagePullPolicy"] == "Always"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert pod["metadata"]["labels"] == {"team": "sales", "airflow-logio/run": "r"}
    assert pod["metadata"]["annotations"]["a/b"] == "c"
    assert pod["spec"]["serviceAccountName"] == "logio-driver"
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd", "zone": "a"}
    assert pod["spec"]["schedulerName"] == "volcano"
    assert own(pod)["env"] == [{"name": "LEVEL", "value": "info"}]


def test_a_secret_is_mounted_or_referred_to_and_its_content_is_nowhere() -> None:
    pod = made(
        {
            "spark.kubernetes.driver.secrets.logio": "/etc/logio",
            "spark.kubernetes.driver.secretKeyRef.LOGIO_CONNECTIONS_JSON": "logio:connections.json",
        }
    )
    assert pod["spec"]["volumes"] == [{"name": "logio-volume", "secret": {"secretName": "logio"}}]
    assert own(pod)["volumeMounts"] == [{"name": "logio-volume", "mountPath": "/etc/logio", "readOnly": True}]
    reference = {"secretKeyRef": {"name": "logio", "key": "connections.json"}}
    assert own(pod)["env"] == [{"name": "LOGIO_CONNECTIONS_JSON", "valueFrom": reference}]


@pytest.mark.parametrize(
    ("conf", "requests", "limits"),
    [
        ({}, {"cpu": "1", "memory": "1048576Ki"}, {"memory": "1048576Ki"}),
        (
            {"spark.driver.memory": "512m", "spark.driver.cores": "2", "spark.driver.memoryOverhead": "128"},
            {"cpu": "2", "memory": "655360Ki"},
            {"memory": "655360Ki"},
        ),
        (
            {
                "spark.driver.memory": "2g",
                "spark.kubernetes.driver.request.cores": "250m",
                "spark.kubernetes.driver.limit.cores": "1",
            },
            {"cpu": "250m", "memory": "2097152Ki"},
            {"cpu": "1", "memory": "2097152Ki"},
        ),
    ],
)
def test_memory_and_cores_are_what_the_settings_say(
    conf: dict[str, str], requests: dict[str, str], limits: dict[str, str]
) -> None:
    assert own(made(conf))["resources"] == {"requests": requests, "limits": limits}


def test_volumes_are_mounted() -> None:
    prefix = "spark.kubernetes.driver.volumes"
    pod = made(
        {
            f"{prefix}.persistentVolumeClaim.data.mount.path": "/data",
            f"{prefix}.persistentVolumeClaim.data.mount.readOnly": "true",
            f"{prefix}.persistentVolumeClaim.data.options.claimName": "payloads",
            f"{prefix}.emptyDir.scratch.mount.path": "/scratch",
            f"{prefix}.emptyDir.scratch.mount.subPath": "sub",
            f"{prefix}.emptyDir.scratch.options.sizeLimit": "1Gi",
            f"{prefix}.hostPath.host.mount.path": "/host",
            f"{prefix}.hostPath.host.options.path": "/srv",
            f"{prefix}.nfs.shared.mount.path": "/nfs",
            f"{prefix}.nfs.shared.options.server": "nfs.example",
            f"{prefix}.nfs.shared.options.path": "/export",
        }
    )
    assert {one["name"]: one for one in pod["spec"]["volumes"]} == {
        "data": {"name": "data", "persistentVolumeClaim": {"claimName": "payloads"}},
        "scratch": {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
        "host": {"name": "host", "hostPath": {"path": "/srv"}},
        "shared": {"name": "shared", "nfs": {"server": "nfs.example", "path": "/export"}},
    }
    assert {one["name"]: one for one in own(pod)["volumeMounts"]} == {
        "data": {"name": "data", "mountPath": "/data", "readOnly": True},
        "scratch": {"name": "scratch", "mountPath": "/scratch", "subPath": "sub"},
        "host": {"name": "host", "mountPath": "/host"},
        "shared": {"name": "shared", "mountPath": "/nfs"},
    }


def test_a_template_is_the_ground(tmp_path: Path) -> None:
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "its own", "namespace": "its own", "labels": {"a": "b", "airflow-logio/run": "forged"}},
        "spec": {
            "restartPolicy": "Always",
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "containers": [
                {"name": "beside", "image": "proxy"},
                {
                    "name": "own",
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                    "resources": {"requests": {"nvidia.com/gpu": "1", "cpu": "9"}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                },
            ],
            "volumes": [{"name": "v", "emptyDir": {}}],
        },
    }
    path = tmp_path / "template.yaml"
    path.write_text(yaml.safe_dump(template))
    pod = made(
        {
            "spark.kubernetes.driver.podTemplateFile": str(path),
            "spark.kubernetes.driver.podTemplateContainerName": "own",
            "spark.kubernetes.driverEnv.B": "3",
            "spark.kubernetes.driver.secrets.logio": "/etc/logio",
        }
    )
    assert pod["metadata"]["name"] == "logio-r-g-1"
    assert "namespace" not in pod["metadata"]
    assert pod["metadata"]["labels"] == {"a": "b", "airflow-logio/run": "r"}
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    beside, container = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "own"
    assert beside == {"name": "beside", "image": "proxy"}
    assert container["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}]
    assert container["resources"]["requests"] == {"nvidia.com/gpu": "1", "cpu": "1", "memory": "1048576Ki"}
    assert [one["name"] for one in container["volumeMounts"]] == ["v", "logio-volume"]
    assert [one["name"] for one in pod["spec"]["volumes"]] == ["v", "logio-volume"]


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"spark.kubernetes.driver.podTemplateFile": "s3a://bucket/template.yaml"}, "file of the machine"),
        ({"spark.kubernetes.driver.podTemplateFile": "/no/such.yaml"}, "cannot be read"),
        ({"spark.kubernetes.driver.pod.featureSteps": "org.example.Step"}, "pod of Python alone"),
        ({"spark.kubernetes.driver.secretKeyRef.A": "secret"}, "name:key"),
        ({"spark.driver.memory": "much"}, "spark.driver.memory='much'"),
        ({"spark.kubernetes.driver.volumes.csi.a.mount.path": "/a"}, "volumes of hostPath"),
        ({"spark.kubernetes.driver.volumes.emptyDir.a.options.medium": "Memory"}, "mount.path is missing"),
        (
            {
                "spark.kubernetes.driver.volumes.persistentVolumeClaim.a.mount.path": "/a",
                "spark.kubernetes.driver.volumes.persistentVolumeClaim.a.options.claimName": "OnDemand",
            },
            "on demand",
        ),
        (
            {
                "spark.kubernetes.driver.volumes.persistentVolumeClaim.a.mount.path": "/a",
                "spark.kubernetes.driver.volumes.persistentVolumeClaim.a.options.storageClass": "fast",
            },
            "pod template",
        ),
        ({"spark.kubernetes.container.image": ""}, "needs an image"),
    ],
)
def test_what_it_cannot_have_is_refused_by_its_name(conf: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        made(conf)


def test_a_template_that_is_no_pod_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "template.yaml"
    path.write_text("kind: Deployment\n")
    with pytest.raises(ConfigurationError, match="no pod"):
        made({"spark.kubernetes.driver.podTemplateFile": f"file://{path}"})


@pytest.mark.parametrize(
    ("template", "named", "own"),
    [
        ("spec: {containers: [{name: main}, {name: beside}]}", None, "main"),
        ("spec: {containers: [{name: main}, {name: beside}]}", "beside", "beside"),
        ("spec: {containers: [{name: main}]}", "missing", "main"),
        ("spec: {containers: [{image: a}]}", None, "spark-kubernetes-driver"),
        ("metadata: {labels: {a: b}}", None, "spark-kubernetes-driver"),
        (None, None, "spark-kubernetes-driver"),
    ],
)
def test_the_drivers_container_is_called_as_spark_calls_it(
    template: str | None, named: str | None, own: str, tmp_path: Path
) -> None:
    conf = {}
    if template is not None:
        (tmp_path / "pod.yaml").write_text(template)
        conf["spark.kubernetes.driver.podTemplateFile"] = str(tmp_path / "pod.yaml")
    if named is not None:
        conf["spark.kubernetes.driver.podTemplateContainerName"] = named
    assert driver_container(conf) == own
    if template is not None:
        conf["spark.kubernetes.driver.podTemplateFile"] = "hdfs://a/pod.yaml"
        assert driver_container(conf) == named
