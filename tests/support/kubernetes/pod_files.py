"""What a pod's container gets, as the kubelet makes it of the pod and the objects it names: environment, volumes, hosts."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.kubernetes.problems import Object, Problem

Lookup = Callable[[str, str], Object]
"""The object of a plural and a name in the pod's namespace; a `Problem` if it is not there."""
_REFERENCE = re.compile(r"\$\$|\$\(([^)]+)\)")
_FOLDERS = ("emptyDir", "hostPath", "persistentVolumeClaim")
_DATA = {"configMap": ("configmaps", "name"), "secret": ("secrets", "secretName")}


class Waiting(Exception):
    """The container cannot begin yet: `reason` as the kubelet gives it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def values_of(kind: str, one: Object) -> dict[str, bytes]:
    """What a config map or a secret holds."""
    if kind == "secrets":
        return {key: base64.b64decode(value) for key, value in (one.get("data") or {}).items()}
    plain = {key: value.encode() for key, value in (one.get("data") or {}).items()}
    return {**plain, **{key: base64.b64decode(value) for key, value in (one.get("binaryData") or {}).items()}}


# --- environment ------------------------------------------------------------------------------------------------------


def environment(pod: Object, container: Object, address: str, lookup: Lookup) -> dict[str, str]:
    """Raises Waiting if an object or a key is not there."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for kind, plural in (("configMapRef", "configmaps"), ("secretRef", "secrets")):
            if kind in source:
                for key, value in _referred(plural, source[kind], lookup).items():
                    found[source.get("prefix", "") + key] = value.decode()
    for variable in container.get("env") or []:
        if "valueFrom" not in variable:
            found[variable["name"]] = expanded(variable.get("value") or "", found)
        elif (referred := _value(variable["valueFrom"], pod, container, address, lookup)) is not None:
            found[variable["name"]] = referred
    return found


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` is the value of a variable that there is, `$$` a dollar."""
    return _REFERENCE.sub(lambda found: "$" if found[0] == "$$" else variables.get(found[1], found[0]), text)


def _value(source: Object, pod: Object, container: Object, address: str, lookup: Lookup) -> str | None:
    for kind, plural in (("configMapKeyRef", "configmaps"), ("secretKeyRef", "secrets")):
        if kind in source:
            values, key = _referred(plural, source[kind], lookup), source[kind]["key"]
            if key in values:
                return values[key].decode()
            if source[kind].get("optional"):
                return None
            raise Waiting("CreateContainerConfigError", f"couldn't find key {key} in {plural} {source[kind]['name']}")
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"], address)
    if "resourceFieldRef" in source:
        resources = {key.rstrip("s"): value for key, value in (container.get("resources") or {}).items()}
        sort, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str((resources.get(sort.rstrip("s")) or {}).get(name, "0"))
    raise Waiting("CreateContainerConfigError", f"this kubelet does not know {sorted(source)}")


def _referred(plural: str, reference: Object, lookup: Lookup) -> dict[str, bytes]:
    try:
        return values_of(plural, lookup(plural, reference["name"]))
    except Problem as problem:
        if reference.get("optional"):
            return {}
        raise Waiting("CreateContainerConfigError", problem.message) from problem


def field(pod: Object, path: str, address: str) -> str:
    """What a `fieldRef` says."""
    if found := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    if path in {"status.podIP", "status.podIPs"}:
        return address
    one: Any = pod
    for step in path.split("."):
        one = one.get(step, "")
    return str(one)


# --- volumes ----------------------------------------------------------------------------------------------------------


def mounts(pod: Object, container: Object, folder: Path, claims: Path, lookup: Lookup) -> list[dict[str, object]]:
    """Path, source and whether it is read only, of each mount; volumes are made below `folder`. Raises Waiting."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    made = []
    for mount in container.get("volumeMounts") or []:
        volume = volumes[mount["name"]]
        source = _volume(volume, pod, folder / volume["name"], claims, lookup)
        sub = mount.get("subPath", "")
        if sub and not (source / sub).exists():
            (source / sub).mkdir(parents=True)
        fixed = mount.get("readOnly", False) or any(kind in volume for kind in _DATA)
        made.append(
            {
                "path": mount["mountPath"],
                "source": str(source / sub),
                "read_only": fixed or mount.get("readOnly", False),
            }
        )
    return made


def _volume(volume: Object, pod: Object, folder: Path, claims: Path, lookup: Lookup) -> Path:
    for kind, (plural, named) in _DATA.items():
        if kind in volume:
            _write(folder, plural, volume[kind][named], volume[kind], lookup)
            return folder
    if "hostPath" in volume:
        path = Path(volume["hostPath"]["path"])
        if volume["hostPath"].get("type") == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            raise Waiting("ContainerCreating", f"hostPath {path} is not there")
        return path
    if "persistentVolumeClaim" in volume:
        folder = claims / pod["metadata"]["namespace"] / volume["persistentVolumeClaim"]["claimName"]
    elif "emptyDir" not in volume:
        raise Waiting("ContainerCreating", f"this kubelet has {', '.join((*_DATA, *_FOLDERS))} only: {sorted(volume)}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(folder: Path, plural: str, name: str, settings: Object, lookup: Lookup) -> None:
    try:
        values = values_of(plural, lookup(plural, name))
    except Problem as problem:
        if not settings.get("optional"):
            raise Waiting("ContainerCreating", f"MountVolume.SetUp failed for volume: {problem.message}") from problem
        values = {}
    if items := settings.get("items"):
        missing = [item["key"] for item in items if item["key"] not in values]
        if missing and not settings.get("optional"):
            raise Waiting("ContainerCreating", f"{plural} {name} references non-existent config key: {missing[0]}")
        values = {item["path"]: values[item["key"]] for item in items if item["key"] in values}
    place = folder / "..2026_11_30_12_00_00.1"
    place.mkdir(parents=True, exist_ok=True)
    for path, value in values.items():
        file = place / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(value)
        file.chmod(settings.get("defaultMode", 0o644))
    # As a node does it, so that all files change at once.
    links = {"..data": place.name, **{top: f"..data/{top}" for top in {path.partition("/")[0] for path in values}}}
    for link, target in links.items():
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(target)


# --- names ------------------------------------------------------------------------------------------------------------


def hosts(name: str, address: str, services: Iterable[Object], pods: Iterable[Object]) -> str:
    """`/etc/hosts` of a pod: itself, and what the cluster's DNS says of headless services, whether or not a pod is ready."""
    lines = ["127.0.0.1 localhost", f"{address} {name[:63]}"]
    running = [pod for pod in pods if pod["status"].get("podIP") and pod["status"].get("phase") == "Running"]
    for service in services:
        wanted = service["spec"].get("selector") or {}
        if service["spec"].get("clusterIP") != "None" or not wanted:
            continue
        own, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        names = " ".join((f"{own}.{namespace}.svc.cluster.local", f"{own}.{namespace}.svc", f"{own}.{namespace}", own))
        for pod in running:
            labels = pod["metadata"].get("labels") or {}
            if pod["metadata"]["namespace"] == namespace and wanted.items() <= labels.items():
                lines.append(f"{pod['status']['podIP']} {names}")
    return "\n".join(lines) + "\n"
