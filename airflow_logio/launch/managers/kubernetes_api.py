"""The API of Kubernetes, as a manager of drivers asks it: what this process has by way of credentials, requests, refusals.

Objects are plain JSON, so that a newer server's fields do no harm. No request is repeated here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.launch.managers.cluster_manager import REQUEST_SECONDS
from airflow_logio.launch.managers.kubernetes_refusals import NoAnswer, Refusal, explained

SCHEME = "k8s://"
"""How Spark's masters begin that are API servers."""
DEFAULT_NAMESPACE = "default"
INSTALL = "pip install 'airflow-logio[kubernetes]'"
Json = dict[str, Any]
_JSON = "application/json"
_COLLECTIONS: Mapping[str, str] = {
    "pods": "/api/v1",
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "persistentvolumeclaims": "/api/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
}
"""Kinds of objects → where the API has them."""
LEFT_BEHIND = tuple(kind for kind in _COLLECTIONS if kind != "pods")
"""What drivers may leave beside their pods."""
_NAMESPACES = "/api/v1/namespaces"


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """What a process has by way of credentials for API servers. By default what `kubectl` and Spark would take there: the
    service account of its pod, else the file that ``KUBECONFIG`` names, else ``~/.kube/config``."""

    kubeconfig: Path | None = None
    content: Mapping[str, Any] | None = field(default=None, repr=False)
    """A kubeconfig that is in a connection, and in no file."""
    context: str | None = None
    """By default the current one."""
    in_cluster: bool | None = None
    """Whether the service account of this pod is taken; None: where there is one, and no kubeconfig is named."""
    namespace: str | None = None
    """Of drivers whose properties name none."""

    @classmethod
    def of_connection(cls, extra: Mapping[str, Any]) -> KubernetesAccess:
        """That of a connection of Airflow's type ``kubernetes``, whose extra has the names of that provider. Raises
        `ConfigurationError`."""
        said = {name.removeprefix("extra__kubernetes__"): value for name, value in extra.items()}
        ways = [
            name
            for name in ("in_cluster", "kube_config", "kube_config_path")
            if said.get(name) not in (None, "", False)
        ]
        if len(ways) > 1:
            raise ConfigurationError(f"the connection of type kubernetes has {' and '.join(ways)}: leave one of them")
        if said.get("disable_verify_ssl"):
            raise ConfigurationError(
                "disable_verify_ssl in the connection of type kubernetes would have no effect: spark-submit does not know "
                "it. Set insecure-skip-tls-verify in the kubeconfig"
            )
        content = said.get("kube_config") or None
        if isinstance(content, str):
            content = _parsed(content)
        path = said.get("kube_config_path")
        return cls(
            kubeconfig=Path(path) if path else None,
            content=content,
            context=said.get("cluster_context") or None,
            in_cluster=bool(said["in_cluster"]) if said.get("in_cluster") else None,
            namespace=said.get("namespace") or None,
        )


def _parsed(content: str) -> Mapping[str, Any]:
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigurationError("kube_config in the connection of type kubernetes is no JSON object: give one")
    return found


class KubernetesApi:
    """Requests to the API server at `address`, an URL. For use by several threads."""

    def __init__(self, address: str, access: KubernetesAccess) -> None:
        self._address = address
        self._access = access
        self._client: Any = None

    def list(self, kind: str, namespace: str, labels: str) -> list[Json]:
        """Objects of this `kind` (``pods``, ...) that a label selector takes. Raises `ManagerUnavailable`."""
        try:
            found = self._request("GET", self._path(kind, namespace), query=[("labelSelector", labels)])
        except (Refusal, NoAnswer) as error:
            raise self._unavailable(error) from error
        return list(found.get("items") or ())

    def get(self, kind: str, namespace: str, name: str) -> Json | None:
        """None: there is no such object. Raises `ManagerUnavailable`."""
        return self._got(f"{self._path(kind, namespace)}/{name}")

    def _got(self, path: str) -> Json | None:
        try:
            return self._request("GET", path)
        except Refusal as error:
            if error.code == 404:
                return None
            raise self._unavailable(error) from error
        except NoAnswer as error:
            raise self._unavailable(error) from error

    def namespace_uid(self, namespace: str) -> str | None:
        """What tells this namespace from all others, also from those of its name in other clusters; None: there is no such
        namespace. Raises `ManagerUnavailable`."""
        found = self._got(f"{_NAMESPACES}/{namespace}")
        return None if found is None else str(found["metadata"]["uid"])

    def create_pod(self, namespace: str, pod: Json) -> Json:
        """Raises `Refusal` and `NoAnswer`."""
        return self._request("POST", self._path("pods", namespace), body=pod)

    def delete(self, kind: str, one: Json, seconds: int | None = None) -> None:
        """Ask for the end of one object, if it is still that one; what it owns goes with it. A pod's containers get so many
        `seconds` to end. Raises `ManagerUnavailable`."""
        meta = one["metadata"]
        options: Json = {"preconditions": {"uid": meta["uid"]}, "propagationPolicy": "Background"}
        if seconds is not None:
            options["gracePeriodSeconds"] = seconds
        try:
            self._request("DELETE", f"{self._path(kind, meta['namespace'])}/{meta['name']}", body=options)
        except Refusal as error:
            if error.code not in {404, 409}:  # it is gone, or another one has its name
                raise self._unavailable(error) from error
        except NoAnswer as error:
            raise self._unavailable(error) from error

    def _path(self, kind: str, namespace: str) -> str:
        return f"{_COLLECTIONS[kind]}/namespaces/{namespace}/{kind}"

    def _request(self, method: str, path: str, *, query: Sequence[tuple[str, str]] = (), body: Any = None) -> Json:
        import urllib3
        from kubernetes.client.exceptions import ApiException

        try:
            client = self._connected()
            answer = client.rest_client.request(
                method,
                f"{client.configuration.host}{path}",
                query_params=list(query),
                headers={**client.default_headers, **_authorization(client), "Content-Type": _JSON},
                body=body,
                _request_timeout=REQUEST_SECONDS,
            )
            found = json.loads(answer.data)
        except ApiException as error:
            if error.status and 400 <= error.status < 500 and error.status not in {408, 429}:
                if error.status == 401:
                    self._client = None  # its token may have ended: the next request reads it anew
                raise Refusal(error.status, _said(error)) from error
            raise NoAnswer(f"{method} {path}: {error.status or ''} {_said(error)}") from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise NoAnswer(f"{method} {path}: {error}") from error
        if not isinstance(found, dict):
            raise NoAnswer(f"{method} {path}: the answer is no object of the API: {str(found)[:200]}")
        return found

    def _connected(self) -> Any:
        if self._client is None:
            self._client = _connect(self._address, self._access)
        return self._client

    def _unavailable(self, error: Exception) -> ManagerUnavailable:
        return ManagerUnavailable(f"the API server {self._address} {explained(error)}")


def _authorization(client: Any) -> dict[str, str]:
    """The header with the token, which is read anew when it ends; none for certificates."""
    said = client.configuration.auth_settings().get("BearerToken")
    return {"Authorization": said["value"]} if said and said["value"] else {}


def _said(error: Any) -> str:
    """The message of a `Status`, or the beginning of what else was answered."""
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.body or error.reason or error)[:300]


def check_installed() -> None:
    """Raises `ConfigurationError` if this Python lacks the client of Kubernetes."""
    try:
        import kubernetes  # noqa: F401
    except ImportError:
        raise ConfigurationError(
            f"drivers on Kubernetes need its Python client, which is not installed here: {INSTALL}"
        ) from None


def server_of(master: str) -> str:
    """The URL of the API server that a master names: as Spark reads it. Raises `ConfigurationError`."""
    address = master.removeprefix(SCHEME)
    if address == master or not address:
        raise ConfigurationError(f"master {master!r} is no API server of Kubernetes: give k8s://https://host:port")
    if "://" not in address:
        address = f"https://{address}"
    if not address.startswith(("http://", "https://")):
        raise ConfigurationError(f"master {master!r}: an API server is at https:// (or http://), as Spark has it")
    if "@" in address.partition("://")[2].partition("/")[0]:
        raise ConfigurationError("the address of the API server has a password in it: leave it to the kubeconfig")
    return address.rstrip("/")


def _connect(address: str, access: KubernetesAccess) -> Any:
    """A client of the API server there. Raises `NoAnswer` if the process has no credentials that can be read."""
    from kubernetes import client
    from kubernetes import config as configs

    configuration = client.Configuration()
    try:
        _authenticate(configs, configuration, address, access)
    except Exception as error:  # plugins of a kubeconfig raise anything
        raise NoAnswer(f"this process has no credentials for it: {error}") from error
    configuration.host = address
    configuration.retries = False
    return client.ApiClient(configuration)


def _authenticate(configs: Any, configuration: Any, address: str, access: KubernetesAccess) -> None:
    if access.content is not None:
        configs.load_kube_config_from_dict(
            dict(access.content), context=access.context, client_configuration=configuration, persist_config=False
        )
        return
    named = access.kubeconfig is not None or access.context is not None
    if access.in_cluster or (access.in_cluster is None and not named and _has_account()):
        configs.load_incluster_config(client_configuration=configuration)
        return
    file = None if access.kubeconfig is None else str(access.kubeconfig)
    context = access.context
    try:
        context = context or _context_of(configs, file, address)
        configs.load_kube_config(
            config_file=file, context=context, client_configuration=configuration, persist_config=False
        )
    except configs.ConfigException:
        # A server without authentication, such as the one of `kubectl proxy`, is asked without a kubeconfig.
        if named or not address.startswith("http://"):
            raise


def _has_account() -> bool:
    return Path("/var/run/secrets/kubernetes.io/serviceaccount/token").is_file()


def _context_of(configs: Any, file: str | None, address: str) -> str | None:
    """The context of a kubeconfig that is for this server: the current one, if it is, or none is."""
    contexts, current = configs.list_kube_config_contexts(config_file=file)
    merger = configs.kube_config.KubeConfigMerger(file or configs.kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
    clusters = {one["name"]: one["cluster"].safe_get("server") or "" for one in merger.config["clusters"].value}
    fitting = [one["name"] for one in contexts if clusters.get(one["context"]["cluster"], "").rstrip("/") == address]
    named = current["name"] if current else None
    return named if named in fitting or not fitting else str(fitting[0])
