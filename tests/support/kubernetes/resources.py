"""Which resources the small API server has, what it demands of an object, and what it fills in, as Kubernetes does."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.kubernetes.problems import Object, bad_request, invalid


@dataclass(frozen=True)
class Resource:
    plural: str
    kind: str
    group: str = ""
    namespaced: bool = True
    answers_deleted: bool = False
    """Whether a deletion is answered with the object, rather than with a `Status`."""
    statuses: bool = False
    """Whether its status is written separately."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def name(self) -> str:
        """As messages call it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("pods", "Pod", answers_deleted=True, statuses=True)
NAMESPACES = Resource("namespaces", "Namespace", namespaced=False, answers_deleted=True, statuses=True)
RESOURCES = (
    NAMESPACES,
    PODS,
    Resource("services", "Service", answers_deleted=True, statuses=True),
    Resource("configmaps", "ConfigMap"),
    Resource("secrets", "Secret"),
    Resource("serviceaccounts", "ServiceAccount", answers_deleted=True),
    Resource("persistentvolumeclaims", "PersistentVolumeClaim", answers_deleted=True, statuses=True),
    Resource("networkpolicies", "NetworkPolicy", "networking.k8s.io"),
)
BY_PLURAL = {resource.plural: resource for resource in RESOURCES}
VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_VARIABLE = re.compile(r"[ -<>-~]+")
_QUANTITY = re.compile(r"[+-]?\d+(\.\d*)?([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_RESTARTS = ("Always", "OnFailure", "Never")
_BYTES = 1024 * 1024
"""What the values of a config map or a secret may have in all."""


Faults = Iterator[tuple[str, str]]
"""Fields, and what is wrong with them."""


# --- what is demanded -------------------------------------------------------------------------------------------------


def check(resource: Resource, one: Object) -> None:
    """Refuse what Kubernetes refuses of a new or changed object (`Problem`)."""
    metadata = one["metadata"]
    for field in _mistyped(resource, one):
        message = (
            f'{resource.kind} in version "v1" cannot be handled as a {resource.kind}: json: cannot unmarshal {field}'
        )
        raise bad_request(message)
    name = str(metadata.get("name", ""))
    for field, why in (*_metadata(resource, metadata), *_CHECKS.get(resource.plural, _nothing)(one)):
        raise invalid(resource.kind, name, field, why)


def _mistyped(resource: Resource, one: Object) -> Iterator[str]:
    """Fields that hold something else than text or a quantity, of those that callers fill."""
    texts: dict[str, Any] = {f"metadata.{field}": one["metadata"].get(field) for field in ("labels", "annotations")}
    if resource.plural in {"configmaps", "secrets"}:
        texts.update({field: one.get(field) for field in ("data", "stringData")})
    yield from (field for field, values in texts.items() if not _are_texts(values))
    for container in ((one.get("spec") or {}).get("containers") or []) if resource is PODS else ():
        yield from _mistyped_of(container)


def _mistyped_of(container: Object) -> Iterator[str]:
    for field in ("args", "command"):
        if not _are_texts(dict(enumerate(container.get(field) or []))):
            yield field
    if not _are_texts({number: variable.get("value") for number, variable in enumerate(container.get("env") or [])}):
        yield "env"
    for sort in ("limits", "requests"):
        quantities = ((container.get("resources") or {}).get(sort) or {}).values()
        if not all(_QUANTITY.fullmatch(str(quantity)) for quantity in quantities):
            yield f"resources.{sort}"


def _are_texts(values: Mapping[Any, object] | None) -> bool:
    return all(value is None or isinstance(value, str) for value in (values or {}).values())


def _metadata(resource: Resource, metadata: Object) -> Faults:
    name = str(metadata.get("name", ""))
    if not name:
        yield "metadata.name", "Required value: name or generateName is required"
    elif not _is_name(resource, name):
        yield "metadata.name", f'Invalid value: "{name}": it is no name of a DNS record'
    for key, value in (metadata.get("labels") or {}).items():
        if not _is_qualified(key):
            yield "metadata.labels", f'Invalid value: "{key}": name part must consist of alphanumeric characters'
        if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
            yield "metadata.labels", f'Invalid value: "{value}": must be no more than 63 alphanumeric characters'
    for key in metadata.get("annotations") or {}:
        if not _is_qualified(key.lower()):
            yield "metadata.annotations", f'Invalid value: "{key}": name part must consist of alphanumeric characters'
    yield from _owners(metadata.get("ownerReferences") or [])


def _owners(owners: list[Object]) -> Faults:
    for place, owner in enumerate(owners):
        for wanted in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(wanted):
                yield f"metadata.ownerReferences[{place}].{wanted}", 'Invalid value: "": must not be empty'


def check_change(resource: Resource, before: Object, after: Object) -> None:
    """Refuse a change of what cannot change."""
    if resource is PODS and _fixed(before) != _fixed(after):
        why = "Forbidden: pod updates may not change fields other than images, deadlines and tolerations"
        raise invalid(resource.kind, before["metadata"]["name"], "spec", why)
    if (
        resource.plural in {"configmaps", "secrets"}
        and before.get("immutable")
        and before.get("data") != after.get("data")
    ):
        why = "Forbidden: field is immutable when `immutable` is set"
        raise invalid(resource.kind, before["metadata"]["name"], "data", why)


def _fixed(pod: Object) -> Object:
    spec = {key: value for key, value in pod["spec"].items() if key not in {"activeDeadlineSeconds", "tolerations"}}
    for several in ("containers", "initContainers"):
        spec[several] = [{**container, "image": None} for container in spec.get(several) or []]
    return spec


def _is_name(resource: Resource, name: str) -> bool:
    if resource is NAMESPACES or resource.plural == "services":
        return len(name) <= 63 and bool(_LABEL.fullmatch(name))
    return len(name) <= 253 and bool(_SUBDOMAIN.fullmatch(name))


def _is_qualified(key: str) -> bool:
    prefix, slash, name = key.rpartition("/")
    proper = bool(_QUALIFIED.fullmatch(name)) and len(name) <= 63
    return proper and (not slash or (len(prefix) <= 253 and bool(_SUBDOMAIN.fullmatch(prefix))))


def _nothing(one: Object) -> Faults:
    yield from ()


def _pod(pod: Object) -> Faults:
    spec = pod.get("spec") or {}
    if not spec.get("containers"):
        yield "spec.containers", "Required value"
    names = {volume.get("name") for volume in spec.get("volumes") or []}
    for place, container in enumerate(spec.get("containers") or []):
        yield from ((f"spec.containers[{place}].{field}", why) for field, why in _container(container, names))
    if spec.get("restartPolicy", "Never") not in _RESTARTS:
        yield "spec.restartPolicy", f'Unsupported value: "{spec["restartPolicy"]}"'
    if len(names) < len(spec.get("volumes") or []):
        yield "spec.volumes", "Duplicate value"
    for place, volume in enumerate(spec.get("volumes") or []):
        if not _LABEL.fullmatch(str(volume.get("name", ""))) or len(volume["name"]) > 63:
            yield f"spec.volumes[{place}].name", f'Invalid value: "{volume.get("name", "")}"'


def _container(container: Object, volumes: set[Any]) -> Faults:
    for wanted in ("name", "image"):
        if not container.get(wanted):
            yield wanted, "Required value"
    for number, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            yield f"volumeMounts[{number}].name", f'Not found: "{mount.get("name")}"'
    paths = [mount.get("mountPath") for mount in container.get("volumeMounts") or []]
    if len(set(paths)) < len(paths):
        yield "volumeMounts", "Invalid value: mountPath must be unique"
    for number, variable in enumerate(container.get("env") or []):
        if not _VARIABLE.fullmatch(str(variable.get("name", ""))):
            yield f"env[{number}].name", f'Invalid value: "{variable.get("name", "")}"'
        if variable.get("value") and variable.get("valueFrom"):
            yield f"env[{number}].valueFrom", "Invalid value: may not be specified when `value` is not empty"


def _data(one: Object) -> Faults:
    size = 0
    for field in ("data", "binaryData"):
        for key, value in (one.get(field) or {}).items():
            size += len(str(value).encode())
            if not _KEY.fullmatch(key) or len(key) > 253:
                yield (
                    f"{field}[{key}]",
                    f'Invalid value: "{key}": a valid config key must consist of alphanumeric characters',
                )
    if size > _BYTES:
        yield "data", f"Too long: may not be more than {_BYTES} bytes"


def _service(service: Object) -> Faults:
    spec = service.get("spec") or {}
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        yield "spec.ports", "Required value"


def _claim(claim: Object) -> Faults:
    spec = claim.get("spec") or {}
    if not spec.get("accessModes"):
        yield "spec.accessModes", "Required value: at least 1 access mode is required"
    if not ((spec.get("resources") or {}).get("requests") or {}).get("storage"):
        yield "spec.resources[storage]", "Required value"


_CHECKS = {
    "pods": _pod,
    "configmaps": _data,
    "secrets": _data,
    "services": _service,
    "persistentvolumeclaims": _claim,
}


# --- what is filled in ------------------------------------------------------------------------------------------------


def complete(resource: Resource, one: Object) -> None:
    """Fill in what a new object has without being given it."""
    if resource is PODS:
        _complete_pod(one)
    elif resource.plural == "secrets":
        _complete_secret(one)
    elif resource.plural == "services":
        spec = one.setdefault("spec", {})
        spec.setdefault("type", "ClusterIP")
        spec.setdefault("sessionAffinity", "None")
        for port in spec.get("ports") or []:
            port.setdefault("protocol", "TCP")
            port.setdefault("targetPort", port.get("port"))
    elif resource is NAMESPACES:
        one["spec"] = {"finalizers": ["kubernetes"]}
        one["status"] = {"phase": "Active"}
        one["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = one["metadata"]["name"]
    elif resource.plural == "persistentvolumeclaims":
        one["status"] = {"phase": "Pending"}
    if resource.statuses:
        one.setdefault("status", {})


def _complete_pod(pod: Object) -> None:
    spec = pod["spec"]
    usual: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "enableServiceLinks": True,
    }
    for field, value in usual.items():
        spec.setdefault(field, value)
    for container in spec["containers"]:
        container.setdefault("resources", {})
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        latest = ":" not in container["image"].rpartition("/")[2] or container["image"].endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        for variable in container.get("env") or []:
            if "fieldRef" in (variable.get("valueFrom") or {}):
                variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    for volume in spec.get("volumes") or []:
        for sort in ("configMap", "secret"):
            if sort in volume:
                volume[sort].setdefault("defaultMode", 0o644)
    pod["status"] = {"phase": "Pending", "qosClass": "BestEffort"}


def _complete_secret(secret: Object) -> None:
    secret.setdefault("type", "Opaque")
    for key, value in (secret.pop("stringData", None) or {}).items():
        secret["data"] = {**(secret.get("data") or {}), key: base64.b64encode(value.encode()).decode()}
    for value in (secret.get("data") or {}).values():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError):
            message = 'Secret in version "v1" cannot be handled as a Secret: illegal base64 data at input byte 0'
            raise bad_request(message) from None
