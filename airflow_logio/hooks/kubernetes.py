"""Connections of type ``kubernetes`` as credentials for API servers, by the names that Airflow's provider gives its fields.

The provider itself is not needed. A launch, and what the log has of it, names the connection by its id; whatever process asks
the API server resolves that by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from airflow.sdk.log import mask_secret

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError, ManagerUnavailable

if TYPE_CHECKING:
    from airflow_logio.launch.managers.kubernetes_api import KubernetesAccess

TYPES = ("kubernetes", "generic", "")
"""Where the provider is not installed, `airflow connections add --conn-type kubernetes` makes one of type ``generic``."""
_SECRETS = ("token", "password", "client-key-data", "id-token", "refresh-token", "client-secret")
"""Keys of a kubeconfig whose values are secret."""


def access_of(conn_id: str) -> KubernetesAccess | None:
    """What the connection of this id gives a process; if it is empty, that which ``[logio] kubernetes_conn_id`` names. None:
    what the environment has. Raises `ConfigurationError`, and `ManagerUnavailable` if Airflow does not say now what it is."""
    source = "kubernetes_conn_id" if conn_id else "[logio] kubernetes_conn_id"
    conn_id = conn_id or _compat.kubernetes_conn_id()
    if not conn_id:
        return None
    from airflow_logio.launch.managers.kubernetes_api import KubernetesAccess

    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"{source} is {conn_id!r}, and there is no such connection. Create it, for the service account of Airflow's own "
            f"pods with: airflow connections add {conn_id} --conn-json "
            '\'{"conn_type": "kubernetes", "extra": {"in_cluster": true}}\'   (or with kube_config_path); or leave '
            "kubernetes_conn_id empty: then each process takes what its environment has"
        ) from error
    except Exception as error:  # what a secrets backend raises is its own
        said = f"connection {conn_id!r} cannot be asked for now: {type(error).__name__}"
        raise ManagerUnavailable(said) from error
    if (connection.conn_type or "") not in TYPES:
        raise ConfigurationError(
            f"connection {conn_id!r} is of type {connection.conn_type!r}; {source} needs one of type kubernetes"
        )
    try:
        access = KubernetesAccess.of_connection(connection.extra_dejson)
    except ConfigurationError as error:
        raise ConfigurationError(f"connection {conn_id!r}: {error}") from None
    _mask(access.content)
    return access


def _mask(content: Any) -> None:
    """Have Airflow hide what is secret in a kubeconfig, however deep."""
    if isinstance(content, Mapping):
        for name, value in content.items():
            if name in _SECRETS and isinstance(value, str):
                mask_secret(value)
            _mask(value)
    elif isinstance(content, list):
        for one in content:
            _mask(one)
