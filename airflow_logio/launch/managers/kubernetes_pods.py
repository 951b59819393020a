"""The pod of a group without Spark: a driver of Python alone, by the same properties that Spark reads for its own drivers.

What a property of Spark says of a driver's pod is done here as there, or refused. A pod template is the ground that all else
is put on, as in Spark.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.managers.kubernetes_api import Json
from airflow_logio.launch.managers.kubernetes_sights import CONTAINER, DEFAULT_CONTAINER

IMAGES = ("spark.kubernetes.driver.container.image", "spark.kubernetes.container.image")
TEMPLATE = "spark.kubernetes.driver.podTemplateFile"
TEMPLATE_CONTAINER = "spark.kubernetes.driver.podTemplateContainerName"
_DRIVER = "spark.kubernetes.driver."
_FEATURES = "spark.kubernetes.driver.pod.featureSteps"
_MEMORY = re.compile(r"(?P<number>\d+)\s*(?P<unit>[kmgtp]?)(?:i?b)?", re.IGNORECASE)
_DEFAULT_MEMORY = "1g"
_VOLUME_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "hostPath": {"path": "path", "type": "type"},
    "emptyDir": {"medium": "medium", "sizeLimit": "sizeLimit"},
    "nfs": {"server": "server", "path": "path"},
    "persistentVolumeClaim": {"claimName": "claimName"},
}
_CLAIM_PER_POD = "OnDemand"


def python_pod(
    name: str, labels: Mapping[str, str], conf: Mapping[str, str], command: Sequence[str], variables: Mapping[str, str]
) -> Json:
    """A pod that runs a command once. Raises `ConfigurationError` for properties that it cannot have."""
    if conf.get(_FEATURES):
        raise ConfigurationError(
            f"{_FEATURES}={conf[_FEATURES]} is Java of Spark's, and a group without Spark is a pod of Python alone: give "
            'that group spark={"' + _FEATURES + '": ""}, and say what it needs in a pod template'
        )
    pod = _template(conf)
    spec = pod.setdefault("spec", {})
    container = _container(spec.setdefault("containers", []), conf.get(TEMPLATE_CONTAINER))
    meta = pod.setdefault("metadata", {})
    meta["name"] = name
    meta["labels"] = {**(meta.get("labels") or {}), **under(conf, f"{_DRIVER}label."), **labels}
    annotations = {**(meta.get("annotations") or {}), **under(conf, f"{_DRIVER}annotation.")}
    meta["annotations"] = {**annotations, DEFAULT_CONTAINER: container["name"]}
    meta.pop("namespace", None)
    spec["restartPolicy"] = "Never"
    _fill_spec(spec, conf)
    container["image"] = image_of(conf) or container.get("image")
    if not container["image"]:
        raise ConfigurationError(no_image())
    container["imagePullPolicy"] = conf.get(
        "spark.kubernetes.container.image.pullPolicy", container.get("imagePullPolicy", "IfNotPresent")
    )
    container["command"], container["args"] = [command[0]], list(command[1:])
    container["env"] = [
        *_without(container.get("env") or (), _names(_variables(conf, variables))),
        *_variables(conf, variables),
    ]
    container["resources"] = _resources(container.get("resources") or {}, conf)
    volumes, mounts = _volumes(conf)
    spec["volumes"] = [*_without(spec.get("volumes") or (), _names(volumes)), *volumes]
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), *mounts]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def driver_container(conf: Mapping[str, str]) -> str | None:
    """What Spark calls a driver's container; None: its pod template is not on this machine, and names no container. Raises
    `ConfigurationError`."""
    named = conf.get(TEMPLATE_CONTAINER)
    if conf.get(TEMPLATE) and template_file(conf) is None:
        return named
    containers = (_template(conf).get("spec") or {}).get("containers") or []
    return str(_container(containers, named)["name"])


def image_of(conf: Mapping[str, str]) -> str | None:
    """The image of a driver, by the properties that Spark reads."""
    return next((conf[name] for name in IMAGES if conf.get(name)), None)


def no_image() -> str:
    return (
        "a driver on Kubernetes needs an image with this package and Spark in it: give spark.kubernetes.container.image "
        "(docker/k8s/Dockerfile makes one)"
    )


def template_file(conf: Mapping[str, str]) -> Path | None:
    """The file of the driver's pod template, if it is one of this machine."""
    named = conf.get(TEMPLATE)
    if not named or ("://" in named and not named.startswith("file://")):
        return None
    return Path(named.removeprefix("file://").removeprefix("file:"))


def template_variables(conf: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Those of each container of the pod template, if that is a file of this machine: ``variable of container C in FILE`` →
    name → value. Raises `ConfigurationError`."""
    if (path := template_file(conf)) is None:
        return {}
    spec = _template(conf).get("spec") or {}
    found: dict[str, dict[str, str]] = {}
    for number, one in enumerate([*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]):
        values = {each["name"]: str(each["value"]) for each in one.get("env") or () if "value" in each}
        found[f"variable of container {one.get('name', number)} in {path}"] = values
    return found


def under(conf: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Properties that begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in conf.items() if name.startswith(prefix)}


def _template(conf: Mapping[str, str]) -> Json:
    if not conf.get(TEMPLATE):
        return {}
    path = template_file(conf)
    if path is None:
        raise ConfigurationError(
            f"{TEMPLATE}={conf[TEMPLATE]}: a group without Spark is launched without Spark's file systems; give a file of "
            "the machine that launches"
        )
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{TEMPLATE}={path} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("kind", "Pod") != "Pod":
        raise ConfigurationError(f"{TEMPLATE}={path} is no pod: it needs kind: Pod")
    return copy.deepcopy(found)


def _container(containers: list[Json], named: str | None) -> Json:
    """The driver's container of a template: the one that is named, else the first, as Spark takes it."""
    found = next((one for one in containers if named and one.get("name") == named), None)
    if found is None and containers:
        found = containers[0]
    if found is None:
        found = {}
        containers.append(found)
    found.setdefault("name", CONTAINER)
    return found


def _fill_spec(spec: Json, conf: Mapping[str, str]) -> None:
    selector = {
        **(spec.get("nodeSelector") or {}),
        **under(conf, "spark.kubernetes.node.selector."),
        **under(conf, f"{_DRIVER}node.selector."),
    }
    if selector:
        spec["nodeSelector"] = selector
    accounts = (
        "spark.kubernetes.authenticate.driver.serviceAccountName",
        "spark.kubernetes.authenticate.serviceAccountName",
    )
    if account := next((conf[name] for name in accounts if conf.get(name)), None):
        spec["serviceAccountName"] = account
    schedulers = ("spark.kubernetes.driver.scheduler.name", "spark.kubernetes.scheduler.name")
    if scheduler := next((conf[name] for name in schedulers if conf.get(name)), None):
        spec["schedulerName"] = scheduler
    if secrets := conf.get("spark.kubernetes.container.image.pullSecrets"):
        spec["imagePullSecrets"] = [{"name": one.strip()} for one in secrets.split(",") if one.strip()]


def _variables(conf: Mapping[str, str], variables: Mapping[str, str]) -> list[Json]:
    plain = {**under(conf, "spark.kubernetes.driverEnv."), **variables}
    found: list[Json] = [{"name": name, "value": value} for name, value in sorted(plain.items())]
    for name, reference in sorted(under(conf, f"{_DRIVER}secretKeyRef.").items()):
        secret, separator, key = reference.partition(":")
        if not (separator and secret and key):
            raise ConfigurationError(
                f"{_DRIVER}secretKeyRef.{name}={reference!r}: give the name of a Secret and a key of it, as name:key"
            )
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    return found


def _resources(given: Json, conf: Mapping[str, str]) -> Json:
    """What the container asks for; its memory is all Python's: there is no JVM."""
    memory = conf.get("spark.driver.memory", _DEFAULT_MEMORY)
    amounts = [_kibibytes(memory, "spark.driver.memory")]
    if overhead := conf.get("spark.driver.memoryOverhead"):
        amounts.append(_kibibytes(overhead, "spark.driver.memoryOverhead"))
    quantity = f"{sum(amounts)}Ki"
    cores = conf.get("spark.kubernetes.driver.request.cores") or conf.get("spark.driver.cores", "1")
    requests = {**(given.get("requests") or {}), "cpu": cores, "memory": quantity}
    limits = {**(given.get("limits") or {}), "memory": quantity}
    if limit := conf.get("spark.kubernetes.driver.limit.cores"):
        limits["cpu"] = limit
    return {**given, "requests": requests, "limits": limits}


def _kibibytes(memory: str, named: str) -> int:
    """A size as Spark writes it, in KiB; MiB if it has no unit."""
    found = _MEMORY.fullmatch(memory.strip())
    if found is None:
        raise ConfigurationError(f"{named}={memory!r} is no size: give one such as 2g")
    factor: int = 1024 ** ("k", "m", "g", "t", "p").index(found["unit"].lower() or "m")
    return int(found["number"]) * factor


def _volumes(conf: Mapping[str, str]) -> tuple[list[Json], list[Json]]:
    """Volumes, and where they are mounted: Secrets (``driver.secrets.NAME``) and ``driver.volumes.TYPE.NAME``."""
    volumes: list[Json] = []
    mounts: list[Json] = []
    for secret, path in sorted(under(conf, f"{_DRIVER}secrets.").items()):
        volumes.append({"name": f"{secret}-volume", "secret": {"secretName": secret}})
        mounts.append({"name": f"{secret}-volume", "mountPath": path, "readOnly": True})
    said: dict[tuple[str, str], dict[str, str]] = {}
    for rest, value in under(conf, f"{_DRIVER}volumes.").items():
        kind, _, more = rest.partition(".")
        name, _, option = more.partition(".")
        said.setdefault((kind, name), {})[option] = value
    for (kind, name), options in sorted(said.items()):
        volumes.append({"name": name, kind: _volume(kind, name, options)})
        mounts.append(_mount(kind, name, options))
    return volumes, mounts


def _volume(kind: str, name: str, options: Mapping[str, str]) -> Json:
    prefix = f"{_DRIVER}volumes.{kind}.{name}"
    known = _VOLUME_OPTIONS.get(kind)
    if known is None:
        raise ConfigurationError(f"{prefix}: a driver of Python alone has volumes of {', '.join(_VOLUME_OPTIONS)} only")
    given = under(options, "options.")
    if unknown := sorted(set(given) - set(known)):
        raise ConfigurationError(
            f"{prefix}.options.{unknown[0]} is not understood for a group without Spark: put the volume into a pod template"
        )
    if given.get("claimName") == _CLAIM_PER_POD:
        raise ConfigurationError(
            f"{prefix}: a claim made on demand is Spark's to make; give an existing claim to a group without Spark"
        )
    return {known[option]: value for option, value in given.items()}


def _mount(kind: str, name: str, options: Mapping[str, str]) -> Json:
    if not options.get("mount.path"):
        raise ConfigurationError(f"{_DRIVER}volumes.{kind}.{name}.mount.path is missing")
    mount: Json = {"name": name, "mountPath": options["mount.path"]}
    if options.get("mount.subPath"):
        mount["subPath"] = options["mount.subPath"]
    if options.get("mount.readOnly", "false").lower() == "true":
        mount["readOnly"] = True
    return mount


def _names(some: Iterable[Json]) -> set[str]:
    return {one["name"] for one in some}


def _without(some: Iterable[Json], names: set[str]) -> list[Any]:
    return [one for one in some if one.get("name") not in names]
