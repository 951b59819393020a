"""Connections of types ``spark`` and ``spark_connect`` as Spark settings, read as Airflow's hooks read them.

`tests/unit/airflow/test_spark_provider.py` lists where the two differ. Above all, a missing connection is an error here: the
hook falls back to YARN, so a typo submits to the wrong place.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any
from urllib.parse import quote

from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook
from airflow.sdk.log import mask_secret

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.spark_settings import LOCAL_MASTER, SCHEME, YARN, SparkTarget
from airflow_logio.launch.spark_submit import SPARK_SUBMIT

CONNECT_TYPE = "spark_connect"
SPARK_BINARIES = (SPARK_SUBMIT, "spark2-submit", "spark3-submit")


def spark_target(conn_id: str | None) -> SparkTarget:
    """Resolve a Spark connection; None means ``local[1]``: a driver with one core, without a cluster.

    Raises `ConfigurationError`.
    """
    if conn_id is None:
        return SparkTarget()
    try:
        connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        # --conn-type would make it one of type generic where the Spark provider is missing.
        fields = json.dumps({"conn_type": "spark", "host": LOCAL_MASTER})
        raise ConfigurationError(
            f"there is no Spark connection {conn_id!r}. Create it, for drivers on the workers themselves with: "
            f"airflow connections add {conn_id} --conn-json '{fields}'   "
            "(or with another master as its host, e.g. spark://HOST:7077), or give conn_id=None for local[1] without one"
        ) from error
    if connection.conn_type == CONNECT_TYPE:
        return _connect_target(connection)
    extra = {key: value for key, value in connection.extra_dejson.items() if value not in (None, "")}
    if "spark-home" in extra:
        raise ConfigurationError(
            f"connection {conn_id!r} has 'spark-home' in its extra, which is not used: set SPARK_HOME for the workers, or "
            "give the operator spark_binary=<path>"
        )
    return SparkTarget(
        master=_master(connection),
        deploy_mode=extra.get("deploy-mode"),
        yarn_queue=extra.get("queue"),
        namespace=extra.get("namespace"),
        spark_binary=_binary(conn_id, extra.get("spark-binary")),
        principal=extra.get("principal"),
        keytab_content=_keytab(conn_id, extra.get("keytab")),
        resource_manager=_resource_manager(extra.get("yarn_resourcemanager_webapp_address")),
    )


def _connect_target(connection: Any) -> SparkTarget:
    """The address of a Spark Connect server, without its token."""
    host = (connection.host or "").removeprefix(SCHEME)
    if not host or "/" in host:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has host {connection.host!r}; it is that of a Spark Connect server, e.g. "
            "spark.example.com or sc://spark.example.com"
        )
    if connection.password:
        mask_secret(connection.password)
    params = {"user_id": connection.login, "use_ssl": connection.extra_dejson.get("use_ssl")}
    said = "".join(f";{name}={quote(str(value))}" for name, value in params.items() if value not in (None, ""))
    port = f":{connection.port}" if connection.port else ""
    return SparkTarget(f"{SCHEME}{host}{port}{'/' + said if said else ''}", token=connection.password or None)


def _master(connection: Any) -> str:
    """From the form, the host is the whole master. From a URI (``spark://host:7077``), the type is its scheme."""
    kind, host = connection.conn_type or "", connection.host or ""
    if not host and kind != YARN:
        raise ConfigurationError(
            f"connection {connection.conn_id!r} has no host; it is the Spark master, e.g. local[1], yarn, spark://HOST"
        )
    if kind == YARN:
        return YARN
    # Where the Spark provider is missing, `airflow connections add` makes type generic of type spark.
    whole = kind in ("generic", "") or (kind == "spark" and ("://" in host or not connection.port))
    master = host if whole else f"{kind}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def _resource_manager(said: str | None) -> str | None:
    """Without a scheme it is one of HTTP, as to Airflow's Spark provider."""
    return said if said is None or "://" in said else f"http://{said}"


def _binary(conn_id: str, name: str | None) -> str | None:
    """None if the connection names none: then it is the one of ``SPARK_HOME``, or of the worker's own pyspark."""
    if name is not None and name not in SPARK_BINARIES:
        raise ConfigurationError(
            f"connection {conn_id!r}: spark-binary is {name!r}; a connection may only name one of "
            f"{', '.join(SPARK_BINARIES)}"
        )
    return name


def _keytab(conn_id: str, text: str | None) -> bytes | None:
    """The form takes what ``base64 FILE`` prints."""
    if text is None:
        return None
    mask_secret(text)
    try:
        content = base64.b64decode(text)
    except (binascii.Error, ValueError):
        content = b""
    if not content:
        raise ConfigurationError(
            f"connection {conn_id!r}: keytab is not in base64; put there what `base64 <path of the keytab>` prints"
        ) from None
    return content
