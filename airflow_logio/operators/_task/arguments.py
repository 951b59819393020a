"""The Spark arguments of a group's task: those that are refused, their templates, and the recipe that the log keeps of them.

The group's own task launches with this recipe, and so does every task that recovers the group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from airflow.providers.common.compat.sdk import conf as airflow_conf

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError, PipelineDefinitionError
from airflow_logio.hooks.spark import spark_target
from airflow_logio.launch import spark_settings
from airflow_logio.launch.spark_settings import CLUSTER_MODE, SparkArguments, SparkTarget, is_address
from airflow_logio.operators._task.pipeline_reference import is_template

if TYPE_CHECKING:
    from airflow_logio.dataflow.pipeline import Pipeline
    from airflow_logio.store.records.driver_records import LaunchRecipe

log = logging.getLogger(__name__)
_Task = TypeVar("_Task", bound=type)

# --- arguments of SparkSubmitOperator that mean nothing here ----------------------------------------------------------

_OWN_DRIVER = (
    "the application is LOG.io's driver, which runs the operators of the group: give pipeline and group instead"
)
_BY_LOG = "how a driver fares is read from the log, not asked of the cluster's manager: leave it out"
_DURABLE = (
    "a retry always resumes a group that lives, because the log knows it. To compute a run again from its beginning, use "
    "LogioFreshRunOperator"
)
_REASONS = {
    "application": _OWN_DRIVER,
    "application_args": f"{_OWN_DRIVER}; values for the pipeline are its parameters (LogioPipelineGroup(params={{...}}))",
    "java_class": _OWN_DRIVER,
    "post_submit_commands": (
        "a driver may be recovered by another task on another machine, so there is no place behind it for commands. Put them "
        "into a task downstream of this one"
    ),
    "track_driver_via_k8s_api": _BY_LOG,
    "yarn_track_via_rm_api": _BY_LOG,
    "yarn_rm_auth": _BY_LOG,
    "durable": _DURABLE,
    "reconnect_on_retry": _DURABLE,
}
_ALWAYS = ("durable", "reconnect_on_retry")
"""They are on here, so that only False is refused."""


def refuse(task_id: str, given: MutableMapping[str, Any]) -> None:
    """Take these arguments out of `given`. Raises `ConfigurationError` for one that asks for something."""
    for name, reason in _REASONS.items():
        value = given.pop(name, None)
        if value is False if name in _ALWAYS else value:
            raise ConfigurationError(f"task {task_id!r}: LogioSparkOperator has no {name}={value!r}: {reason}")


def check_deploy_mode(task_id: str, deploy_mode: str | None) -> None:
    """Raises `ConfigurationError` for a mode that Spark does not have."""
    try:
        spark_settings.check_deploy_mode(deploy_mode)
    except ConfigurationError as error:
        raise ConfigurationError(f"task {task_id!r}: {error}") from None


def check_group(task_id: str, pipeline: Pipeline | None, group: str, replica: object) -> None:
    """Raises `PipelineDefinitionError` for a group, or a replica of one, that the pipeline does not have.

    What cannot be known while the DAG is parsed, a pipeline (None) or a template, the worker checks.
    """
    if pipeline is None or is_template(group):
        return
    if group not in pipeline.groups:
        raise PipelineDefinitionError(f"task {task_id!r}: {pipeline.no_group(group)}")
    if not isinstance(replica, int):
        return
    most = len(pipeline.replicated[group].replicas) if group in pipeline.replicated else 0
    if not 1 <= replica <= most:
        has = f"has replicas 1 to {most}" if most else "is not replicated"
        raise PipelineDefinitionError(f"task {task_id!r}: there is no replica {replica} of group {group!r}: it {has}")


# --- arguments as attributes ------------------------------------------------------------------------------------------


class _Argument:
    """One of `task.spark` (`SparkArguments`) as an attribute of the task."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, task: Any, owner: type | None = None) -> Any:
        return self if task is None else getattr(task.spark, self._name)

    def __set__(self, task: Any, value: Any) -> None:
        task.spark = replace(task.spark, **{self._name: value})


def with_spark_attributes(task: _Task) -> _Task:
    """Give an operator an attribute for each of its `SparkArguments`: Airflow renders and shows templates as attributes."""
    for one in fields(SparkArguments):
        setattr(task, one.name, _Argument(one.name))
    return task


# --- the recipe -------------------------------------------------------------------------------------------------------


def recipe_of(task: Any, context: Mapping[str, Any]) -> LaunchRecipe:
    """From the arguments of an operator, after templating.

    The recipe holds what only this task knows: its folder, its place in the lineage, the principal of this deployment.
    Raises `ConfigurationError`.
    """
    from airflow_logio.store.records.driver_records import LaunchRecipe

    given: SparkArguments = task.spark.placed(Path.cwd())
    if given.use_krb5ccache:
        given = replace(given, principal=_compat.kerberos_principal(given.principal))
    target = spark_target(task.conn_id)
    parent_job_info: bool | None = task.openlineage_inject_parent_job_info
    transport_info: bool | None = task.openlineage_inject_transport_info
    if parent_job_info is None and transport_info is None and (given.connect or is_address(target.master)):
        # One application serves all tasks, and none of them is its parent.
        parent_job_info = transport_info = False
    conf = given.conf or {}
    if _is_wanted(parent_job_info, "spark_inject_parent_job_info"):
        conf = _injected("parent_job", conf, context)
    if _is_wanted(transport_info, "spark_inject_transport_info"):
        try:
            conf = _with_transport(conf, context)
        except ConfigurationError as error:
            if transport_info:
                raise
            log.warning("The deployment's transport of OpenLineage is not given to drivers: %s", error)
    return LaunchRecipe(
        task.conn_id, task.connections, replace(given, conf=conf).given(), own_place=_has_place(task, given, target)
    )


def _has_place(task: Any, given: SparkArguments, target: SparkTarget) -> bool:
    """Whether only this task launches the group's drivers. On a cluster they are not where their task is: its queue, pool and
    executor say where the first one is submitted."""
    on_cluster = (given.deploy_mode or target.deploy_mode) == CLUSTER_MODE
    return bool(task.own_place and (task.place_is_asked or not on_cluster))


# --- properties of Spark's own OpenLineage listener -------------------------------------------------------------------
# They tell the listener its parent task and where to send events. Airflow's own functions make them, as for
# SparkSubmitOperator. The log keeps them with the launch, so a recovered driver has the same parent, and none may be secret.


def _is_wanted(given: bool | None, option: str) -> bool:
    """What a task says, or else option `option` of section ``[openlineage]``."""
    return bool(airflow_conf.getboolean("openlineage", option, fallback=False)) if given is None else given


def _with_transport(conf: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """The properties, with the transport of this deployment, unless they name one.

    Raises `ConfigurationError` if it has a key or headers: properties are on a command line, in Spark's UI, and in the log.
    """
    found = _injected("transport", conf, context)
    if secret := [name for name, value in found.items() if name not in conf and _may_be_secret(name, str(value))]:
        raise ConfigurationError(
            f"openlineage_inject_transport_info: {', '.join(secret)} may be secret, and every user can read a command line. "
            "Put spark.openlineage.transport.* into a file that only the drivers can read, name it by properties_file, "
            "and set openlineage_inject_transport_info=False"
        )
    return found


def _injected(what: str, conf: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    # Imported by the few tasks that want it: it costs more than all else that a DAG of ours needs.
    from airflow.providers.common.compat.openlineage.utils import spark

    return dict(getattr(spark, f"inject_{what}_information_into_spark_properties")(dict(conf), context))


def _may_be_secret(name: str, value: str) -> bool:
    if ".headers." in name or ".auth." in name:
        return not name.endswith(".auth.type")
    parts = urlsplit(value)
    return name.endswith((".url", ".endpoint")) and ("@" in parts.netloc or bool(parts.query))
