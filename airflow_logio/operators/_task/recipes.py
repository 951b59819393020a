"""What a group is launched with: by its own task, and from the log by every task that recovers it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_logio import _compat
from airflow_logio.errors import ConfigurationError
from airflow_logio.hooks.spark import spark_target
from airflow_logio.launch.spark_arguments import SparkArguments
from airflow_logio.launch.spark_connect import is_address
from airflow_logio.operators._task import openlineage_properties as openlineage
from airflow_logio.store.records.driver_records import LaunchRecipe

log = logging.getLogger(__name__)


def _is_client(task: Any, given: SparkArguments) -> bool:
    return given.connect or is_address(spark_target(task.conn_id).master)


def recipe_of(
    task: Any, context: Mapping[str, Any], *, parent_job_info: bool | None, transport_info: bool | None
) -> LaunchRecipe:
    """From the attributes of an operator, after templating. What only this task knows (its folder, its place in the lineage,
    the principal of this deployment) is in it. Raises `ConfigurationError`."""
    given = SparkArguments.of(task).placed(Path.cwd())
    if given.use_krb5ccache:
        given = replace(given, principal=_compat.kerberos_principal(given.principal))
    if parent_job_info is None and transport_info is None and _is_client(task, given):
        parent_job_info = transport_info = (
            False  # there is one application for all tasks, which none of them is parent of
        )
    conf = given.conf or {}
    if openlineage.is_wanted(parent_job_info, "spark_inject_parent_job_info"):
        conf = openlineage.with_parent(conf, context)
    if openlineage.is_wanted(transport_info, "spark_inject_transport_info"):
        try:
            conf = openlineage.with_transport(conf, context)
        except ConfigurationError as error:
            if transport_info:
                raise
            log.warning("The deployment's transport of OpenLineage is not given to drivers: %s", error)
    return LaunchRecipe(task.conn_id, task.connections, replace(given, conf=conf).given())
