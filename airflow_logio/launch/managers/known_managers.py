"""Which cluster manager a launch is for, and which one a submission was made to. Each is imported when it is first asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.launch.managers.cluster_manager import ClusterManager
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import NAMED, Submission

_OF_MASTERS = {"spark://": "standalone", "k8s://": "kubernetes", "yarn": "yarn"}
"""How a master begins → the manager that it is."""
_CLASSES = {"standalone": "StandaloneManager", "kubernetes": "KubernetesManager", "yarn": "YarnManager"}


_Ask = Callable[[], Any]
_asked: list[_Ask] = []
"""What this process is asked for its credentials, if it has more to say than its environment; the last one counts."""


def ask_for_access(ask: _Ask) -> None:
    """For API servers of Kubernetes, from now on ask this: it returns a `KubernetesAccess`, or None for what the environment
    of the process has, and may raise `ConfigurationError`. A given access precedes it."""
    _asked[:] = [ask]


class Managers:
    """The cluster managers that this process asks, with what it has by way of credentials. For use by several threads."""

    def __init__(self, access: Any = None) -> None:
        """`access` is for API servers of Kubernetes (`KubernetesAccess`); None: what the environment has."""
        self._access = access
        self._made: dict[Submission, ClusterManager] = {}
        self._lock = threading.Lock()

    def for_settings(self, settings: SparkSettings, conf: Mapping[str, str]) -> ClusterManager:
        """That of the master. Raises `ConfigurationError` for one whose drivers are processes of the launching machine."""
        for begin, name in _OF_MASTERS.items():
            if settings.master.startswith(begin):
                return _class(name).of_settings(settings, conf, self._access_to(name))  # type: ignore[no-any-return]
        raise ConfigurationError(
            f"deploy_mode='cluster' needs a cluster: the master is {settings.master}. Give spark://host:7077, yarn or "
            "k8s://https://host:443, or leave deploy_mode out"
        )

    def at(self, submission: Submission) -> ClusterManager:
        """That to which a driver was submitted. Raises `ManagerUnavailable` if this process cannot ask it."""
        key = Submission(submission.manager, submission.address, "", submission.namespace, submission.cluster)
        with self._lock:
            if key not in self._made:
                if submission.manager not in _CLASSES:
                    raise ManagerUnavailable(
                        f"a driver was submitted to {submission.manager!r}, which this version of airflow_logio does not know"
                    )
                try:
                    self._made[key] = _class(submission.manager).at(submission, self._access_to(submission.manager))
                except ConfigurationError as error:  # a package is missing here, or a setting
                    raise ManagerUnavailable(str(error)) from error
            return self._made[key]

    def _access_to(self, name: str) -> Any:
        is_asked = self._access is None and name == NAMED and bool(_asked)
        return _asked[-1]() if is_asked else self._access


def _class(name: str) -> Any:
    return getattr(import_module(f"{__package__}.{name}"), _CLASSES[name])
