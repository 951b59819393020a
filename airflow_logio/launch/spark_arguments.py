"""The Spark arguments of an Airflow task as settings of a launch; their names are those of Airflow's SparkSubmitOperator.

Precedence: an argument of the operator, then its connection, then the pipeline's own settings for the group.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import relative_paths
from airflow_logio.launch.spark_submit import SparkSettings

LOCAL_MASTER = "local[1]"
_SAME = (
    "packages",
    "exclude_packages",
    "repositories",
    "jars",
    "files",
    "archives",
    "py_files",
    "driver_class_path",
    "driver_memory",
    "executor_memory",
    "executor_cores",
    "num_executors",
    "total_executor_cores",
    "properties_file",
    "keytab",
    "proxy_user",
    "use_krb5ccache",
    "connect",
    "name",
    "verbose",
)


@dataclass(frozen=True, slots=True)
class SparkTarget:
    """Where an application is submitted, and what else its connection says."""

    master: str = LOCAL_MASTER
    deploy_mode: str | None = None
    yarn_queue: str | None = None
    namespace: str | None = None
    spark_binary: str | None = None
    principal: str | None = None
    keytab_content: bytes | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    """Of a Spark Connect server."""


@dataclass(frozen=True, slots=True)
class SparkArguments:
    """None (or empty) keeps the value of the connection, the group or Spark."""

    conf: Mapping[str, Any] | None = None
    deploy_mode: str | None = None
    packages: str | None = None
    exclude_packages: str | None = None
    repositories: str | None = None
    jars: str | None = None
    files: str | None = None
    archives: str | None = None
    py_files: str | None = None
    driver_class_path: str | None = None
    driver_memory: str | None = None
    executor_memory: str | None = None
    executor_cores: int | None = None
    num_executors: int | None = None
    total_executor_cores: int | None = None
    properties_file: str | None = None
    yarn_queue: str | None = None
    keytab: str | None = None
    principal: str | None = None
    proxy_user: str | None = None
    use_krb5ccache: bool = False
    connect: bool = False
    name: str | None = None
    env_vars: Mapping[str, Any] | None = None
    verbose: bool = False
    spark_binary: str | None = None

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> SparkArguments:
        """Those among all arguments of an operator."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})

    @classmethod
    def from_given(cls, given: Mapping[str, Any]) -> SparkArguments:
        """Read from the `given` of another process. Raises `ConfigurationError` for arguments unknown to this version."""
        known = {field.name for field in fields(cls)}
        if unknown := [name for name in given if name not in known]:
            raise ConfigurationError(
                f"the log says that the group is launched with {', '.join(map(repr, unknown))}, which this version of "
                "airflow_logio does not know: use the version of the workers that launched it"
            )
        return cls(**given)

    def given(self) -> dict[str, Any]:
        """The arguments that were given, as plain data. Raises `ConfigurationError`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in ("conf", "env_vars"):
            values[name] = {str(key): _text(value) for key, value in (values[name] or {}).items()}
        return {name: value for name, value in values.items() if value not in (None, False, {})}

    def placed(self, folder: Path) -> SparkArguments:
        """With relative paths below `folder`, where the task has them; a driver starts in a folder of its own."""
        values = {name: getattr(self, name) for name in relative_paths.SEPARATORS}
        conf = self.conf and relative_paths.absolute(self.conf, relative_paths.PROPERTIES, folder)
        binary = self.spark_binary
        if binary and os.sep in binary:  # others are looked up on PATH
            binary = relative_paths.below(folder, binary)
        found = relative_paths.absolute(values, relative_paths.SEPARATORS, folder)
        return replace(self, conf=conf, spark_binary=binary, **found)

    def settings(self, target: SparkTarget) -> SparkSettings:
        """Raises `ConfigurationError` for a property that has no value."""
        conf = {str(key): _text(value) for key, value in (self.conf or {}).items()}
        if target.namespace and target.master.startswith("k8s"):
            conf.setdefault("spark.kubernetes.namespace", target.namespace)
        return SparkSettings(
            master=target.master,
            deploy_mode=self.deploy_mode or target.deploy_mode or "client",
            conf=conf,
            queue=self.yarn_queue or target.yarn_queue,
            principal=self.principal or target.principal,
            spark_binary=self.spark_binary or target.spark_binary,
            keytab_content=None if self.keytab else target.keytab_content,
            token=target.token,
            env_vars={str(key): _text(value) for key, value in (self.env_vars or {}).items()},
            **{name: getattr(self, name) for name in _SAME},
        )


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        raise ConfigurationError("a Spark property or environment variable has the value None; leave it out instead")
    return str(value)
