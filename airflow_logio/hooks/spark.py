"""Connections of type ``spark`` as Spark settings, read as Airflow's SparkSubmitOperator reads them.

There is one difference: a missing connection is an error. Upstream falls back to YARN, so a typo submits to the wrong
place.
"""

from __future__ import annotations

from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

from airflow_logio.errors import ConfigurationError
from airflow_logio.runtime.launch.spark_arguments import SparkTarget

SPARK_BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")


def spark_target(conn_id: str | None) -> SparkTarget:
    """Resolve a Spark connection; None means ``local[1]``: a driver with one core, without a cluster.

    Raises `ConfigurationError`.
    """
    if conn_id is None:
        return SparkTarget()
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise ConfigurationError(
            f"there is no Spark connection {conn_id!r}. Create it, for drivers on the workers themselves with: "
            f"airflow connections add {conn_id} --conn-type spark --conn-host 'local[1]'   "
            "(or e.g. spark://HOST and --conn-port 7077), or give conn_id=None for local[1] without a connection"
        ) from error
    extra = {key: value for key, value in connection.extra_dejson.items() if value not in (None, "")}
    for refused in ("keytab", "spark-home"):
        if refused in extra:
            raise ConfigurationError(
                f"connection {conn_id!r} has {refused!r} in its extra, which LOG.io does not use: give the operator "
                f"{'keytab=<path on the worker>' if refused == 'keytab' else 'spark_binary=<path>'} instead"
            )
    return SparkTarget(
        master=_master(connection),
        deploy_mode=extra.get("deploy-mode"),
        yarn_queue=extra.get("queue"),
        namespace=extra.get("namespace"),
        spark_binary=_binary(conn_id, extra.get("spark-binary")),
        principal=extra.get("principal"),
    )


def _master(connection: Any) -> str:
    """From the form, the host is the whole master. From a URI (``spark://host:7077``), the type is its scheme."""
    kind, host = connection.conn_type or "", connection.host or ""
    if not host and kind != "yarn":
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has no host; it is the Spark master, e.g. local[1], yarn, spark://HOST"
        )
    if kind == "yarn":
        return "yarn"
    # Without the Spark provider the form has no type spark: with any other type the host is the whole master as well.
    whole = kind != "k8s" and ("://" in host or kind != "spark" or not connection.port)
    master = host if whole else f"{kind}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def _binary(conn_id: str, name: str | None) -> str | None:
    """None means the spark-submit of the installed pyspark; it also replaces the default that the form fills in."""
    if name is not None and name not in SPARK_BINARIES:
        raise ConfigurationError(
            f"connection {conn_id!r}: spark-binary is {name!r}; a connection may only name one of "
            f"{', '.join(SPARK_BINARIES)}"
        )
    return None if name == SPARK_BINARIES[0] else name
