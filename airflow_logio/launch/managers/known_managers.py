"""Which cluster manager a launch is for, and which one a submission was made to. Each is imported when it is first asked."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from airflow_logio.errors import ConfigurationError, ManagerUnavailable
from airflow_logio.launch.managers.cluster_manager import ClusterManager
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.store.records.driver_records import NAMED, Submission

_OF_MASTERS = {"spark://": "standalone", "k8s://": "kubernetes", "yarn": "yarn"}
"""How a master begins → the manager that it is."""
_CLASSES = {"standalone": "StandaloneManager", "kubernetes": "KubernetesManager", "yarn": "YarnManager"}
AccessOf = Callable[[str], Any]
"""The id of a connection, empty for that of the deployment → the `KubernetesAccess` that it gives; None: what the environment
of the process has. Raises `ConfigurationError` and `ManagerUnavailable`."""
ACCESS_SECONDS = 60.0
"""After that a connection is asked for again: its credentials may have been changed."""
_accesses: list[AccessOf] = []
"""At most one: what the surroundings of this process know of connections."""


def resolve_accesses_by(access_of: AccessOf) -> None:
    """For a whole process of Airflow's: how credentials are found that a launch names by the id of a connection. A given
    access precedes it."""
    _accesses[:] = [access_of]


class Managers:
    """The cluster managers that this process asks, with what it has by way of credentials. For use by several threads."""

    def __init__(self, access: Any = None) -> None:
        """`access` is for API servers of Kubernetes (`KubernetesAccess`); None: what connections of this process say, or else
        what its environment has."""
        self._access = access
        self._made: dict[Submission, tuple[ClusterManager, float]] = {}
        """And when it was made, in monotonic seconds."""
        self._lock = threading.Lock()

    def for_settings(self, settings: SparkSettings, conf: Mapping[str, str]) -> ClusterManager:
        """That of the master. Raises `ConfigurationError`, also for a master whose drivers are processes of the launching
        machine, and `ManagerUnavailable` if it is not known now with what it is asked."""
        for begin, name in _OF_MASTERS.items():
            if settings.master.startswith(begin):
                access = self._access_of(name, settings.kubernetes_conn_id or "")
                return _class(name).of_settings(settings, conf, access)  # type: ignore[no-any-return]
        raise ConfigurationError(
            f"deploy_mode='cluster' needs a cluster: the master is {settings.master}. Give spark://host:7077, yarn or "
            "k8s://https://host:443, or leave deploy_mode out"
        )

    def at(self, submission: Submission) -> ClusterManager:
        """That to which a driver was submitted. Raises `ManagerUnavailable` if this process cannot ask it."""
        name, access = submission.manager, submission.access
        key = Submission(name, submission.address, "", submission.namespace, submission.cluster, access=access)
        with self._lock:
            made = self._made.get(key)
            if made is not None and (name != NAMED or time.monotonic() - made[1] < ACCESS_SECONDS):
                return made[0]
        if name not in _CLASSES:
            raise ManagerUnavailable(
                f"a driver was submitted to {name!r}, which this version of airflow_logio does not know"
            )
        try:
            manager: ClusterManager = _class(name).at(submission, self._access_of(name, access))
        except ConfigurationError as error:  # a package is missing here, a setting, or a connection
            raise ManagerUnavailable(str(error)) from error
        with self._lock:
            self._made[key] = manager, time.monotonic()
        return manager

    def _access_of(self, name: str, connection: str) -> Any:
        is_asked = self._access is None and name == NAMED and bool(_accesses)
        return _accesses[-1](connection) if is_asked else self._access


def where_its_output_is(submissions: Sequence[Submission]) -> str:
    """How a person reads what the JVM of a driver on a cluster has printed; `submissions` as `GroupStatus` has them, at least
    one. Asks no manager, and resolves no connection."""
    submission = next((one for one in reversed(submissions) if one.id), submissions[-1])
    found = f"{submission.manager} at {submission.address}: {submission.id or submission.name}"
    manager = _unasked(submission)
    if manager is None:
        return found
    page = manager.page(submission)
    shown = f". Its manager's page: {page}" if page else ""
    return f"{found}. What its JVM prints: {manager.output_command(submission)}{shown}"


def page_of(submissions: Sequence[Submission]) -> str:
    """The address of its manager's page about a driver on a cluster; empty if it has none. Asks nothing, as above."""
    submission = next((one for one in reversed(submissions) if one.id), None)
    manager = None if submission is None else _unasked(submission)
    return "" if submission is None or manager is None else manager.page(submission) or ""


def _unasked(submission: Submission) -> ClusterManager | None:
    """That to which a driver was submitted, without a way to it; None if this version, or this machine, has no such one."""
    try:
        return _class(submission.manager).at(submission, None)  # type: ignore[no-any-return]
    except (KeyError, ConfigurationError):
        return None


def _class(name: str) -> Any:
    class_name = _CLASSES[name]  # the name may come from a log that a later version has written
    return getattr(import_module(f"{__package__}.{name}"), class_name)
