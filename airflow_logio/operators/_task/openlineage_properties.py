"""Spark properties from which a driver's OpenLineage listener learns whose child it is, and where to send events.

Airflow's own functions make them, as for SparkSubmitOperator. The log keeps them with the launch, so that a recovered driver
has the same parent. So nothing secret may be among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from airflow.providers.common.compat.openlineage.utils.spark import (
    inject_parent_job_information_into_spark_properties,
    inject_transport_information_into_spark_properties,
)
from airflow.providers.common.compat.sdk import conf as airflow_conf

from airflow_logio.errors import ConfigurationError


def is_wanted(given: bool | None, option: str) -> bool:
    """What a task says, or else option `option` of section ``[openlineage]``."""
    return bool(airflow_conf.getboolean("openlineage", option, fallback=False)) if given is None else given


def with_parent(conf: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """The properties, with the task as the parent of Spark's jobs, unless they name one."""
    return _injected(inject_parent_job_information_into_spark_properties, conf, context)


def with_transport(conf: Mapping[str, Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """The properties, with the transport of this deployment, unless they name one.

    Raises `ConfigurationError` if it has a key or headers: properties are on a command line, in Spark's UI, and in the log.
    """
    found = _injected(inject_transport_information_into_spark_properties, conf, context)
    if secret := [name for name, value in found.items() if name not in conf and _may_be_secret(name, str(value))]:
        raise ConfigurationError(
            f"openlineage_inject_transport_info: {', '.join(secret)} may be secret, and every user can read a command line. "
            "Put spark.openlineage.transport.* into a file that only the drivers can read, name it by properties_file, "
            "and set openlineage_inject_transport_info=False"
        )
    return found


def _injected(
    inject: Callable[[dict[str, Any], Any], Mapping[str, Any]], conf: Mapping[str, Any], context: Mapping[str, Any]
) -> dict[str, Any]:
    return dict(inject(dict(conf), context))


def _may_be_secret(name: str, value: str) -> bool:
    if ".headers." in name or ".auth." in name:
        return not name.endswith(".auth.type")
    parts = urlsplit(value)
    return name.endswith((".url", ".endpoint")) and ("@" in parts.netloc or bool(parts.query))
