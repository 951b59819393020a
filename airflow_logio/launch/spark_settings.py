"""What concerns Spark in a launch: settings, where they come from, and the properties of a group that follow from them.

Setting names are those of Airflow's SparkSubmitOperator, so that both ways of launching share one vocabulary. A driver is an
application of its own, or a client of a Spark Connect server (ADR-116): of an existing one, whose address is the master, or
of one that the drivers of a run share.

An argument of a task precedes its connection, which precedes the pipeline's own settings for the group. Paths among the
arguments are relative to where the task runs, as with SparkSubmitOperator. But a driver starts in a folder of its own, and
another process may recover its group: so they are made absolute.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from airflow_logio.errors import ConfigurationError
from airflow_logio.spark.session_safety import FRAMES_SAFETY, ONE_ATTEMPT, SHUFFLE_SAFETY

LOCAL_MASTER = "local[1]"
YARN = "yarn"
"""The master of YARN, whose address is in Hadoop's settings."""
CLIENT_MODE = "client"
"""The driver is a process of the machine that launches it."""
CLUSTER_MODE = "cluster"
"""The cluster manager starts the driver on a node."""
SCHEME = "sc://"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The environment has the token of a Spark Connect server under the name that Spark itself gives it."""
_TOKEN = "token="
OF_SESSIONS = "spark.sql."
"""Properties that a session may have of its own; others are of the server's application."""
DRIVER_MEMORY = "spark.driver.memory"
APPLICATION_NAME = "spark.app.name"
JVM_OPTIONS = "spark.driver.extraJavaOptions"
RESOURCE_MANAGER_PROPERTY = "spark.logio.yarn.resourcemanager"
"""Where YARN's ResourceManager has its pages, if yarn-site.xml does not say it: ``http://host:8088``, several with commas."""
KERBEROS_CREDENTIALS = "spark.kerberos.renewal.credentials"
_LITTLE_MEMORY = "-XX:+UseSerialGC -Xms96m -Xmn64m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20"
LOCAL_JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 {_LITTLE_MEMORY}"
"""A driver that is one JVM of several on a machine: little memory, little compilation."""
LOCAL_FRAMES_JAVA_OPTIONS = "-XX:+UseParallelGC"
"""Such a driver's JVM is where the records are: code that is compiled well pays for itself within an event, and a heap that
is kept small is collected all the time."""
BATCH_CONF: Mapping[str, str] = {
    "spark.log.level": "WARN",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Batches come as Arrow tables and go back as Arrow tables: no row of them belongs into a literal relation, which is
    # planned and collected on the driver's heap.
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    # A job is one batch of a few hundred thousand records: re-planning between stages costs more than it finds.
    "spark.sql.adaptive.enabled": "false",
}
"""Defaults of every driver; a group's and a launch's settings override them."""
FRAMES_CONF: Mapping[str, str] = {
    # Plans of DataFrames are large ones: what Spark learns between stages is worth more than planning again costs.
    "spark.sql.adaptive.enabled": "true",
    # Jobs of several events run side by side, and beside those of windows and writers (ADR-92).
    "spark.scheduler.mode": "FAIR",
    # An event is a few jobs, and a run has any number of them: what Spark keeps of each for its UI is to stay small. But the
    # driver asks which stages of an evaluation ran, and with adaptive execution each job counts all stages before it.
    "spark.sql.ui.retainedExecutions": "100",
    "spark.ui.retainedJobs": "2000",
    "spark.ui.retainedStages": "4000",
    "spark.ui.retainedTasks": "50",
}
"""More defaults, of drivers that evaluate chains of DataFrames."""
SEPARATORS: Mapping[str, str | None] = {
    "jars": ",",
    "files": ",",
    "archives": ",",
    "py_files": ",",
    "driver_class_path": os.pathsep,
    "properties_file": None,
    "keytab": None,
}
"""Arguments that are paths, and what separates several in one."""
PROPERTIES: Mapping[str, str | None] = {
    "spark.jars": ",",
    "spark.files": ",",
    "spark.archives": ",",
    "spark.submit.pyFiles": ",",
    "spark.driver.extraClassPath": os.pathsep,
    "spark.kerberos.keytab": None,
}
"""The properties of the same meaning."""
_ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]+:")
"""Such as hdfs://host/a.jar, or local:/opt/a.jar."""
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
    "kubernetes_conn_id",
)


def check_deploy_mode(deploy_mode: str | None) -> None:
    """Raises `ConfigurationError` for a deploy mode that Spark does not have."""
    if deploy_mode not in (None, CLIENT_MODE, CLUSTER_MODE):
        raise ConfigurationError(
            f"deploy_mode={deploy_mode!r} is none of Spark's: give {CLIENT_MODE!r} (the driver is a process of the machine "
            f"that launches it) or {CLUSTER_MODE!r} (the cluster manager starts it on a node)"
        )


def is_on_cluster(settings: SparkSettings) -> bool:
    """Whether drivers are started by the cluster manager, and not by the process that launches them."""
    return settings.deploy_mode == CLUSTER_MODE


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What concerns Spark in a launch; None leaves spark-submit's default."""

    master: str = "local[1]"
    deploy_mode: str = CLIENT_MODE
    conf: Mapping[str, str] = field(default_factory=dict)
    packages: str | None = None
    exclude_packages: str | None = None
    repositories: str | None = None
    jars: str | None = None
    files: str | None = None
    archives: str | None = None
    py_files: str | None = None
    driver_class_path: str | None = None
    driver_memory: str | None = None
    driver_cores: int | None = None
    executor_memory: str | None = None
    executor_cores: int | None = None
    num_executors: int | None = None
    total_executor_cores: int | None = None
    queue: str | None = None
    properties_file: str | None = None
    keytab: str | None = None
    principal: str | None = None
    proxy_user: str | None = None
    verbose: bool = False
    name: str | None = None
    """By default one that tells group, run and incarnation."""
    use_krb5ccache: bool = False
    spark_binary: str | None = None
    keytab_content: bytes | None = field(default=None, repr=False)
    """A keytab that is in the connection, and in no file yet."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    token: str | None = field(default=None, repr=False)
    """What a Spark Connect server knows its clients by."""
    connect: bool = False
    """The drivers of a run share one Spark application on a machine, whose clients they are (ADR-116)."""
    kubernetes_conn_id: str | None = None
    """The connection of Airflow by which the API server is asked that starts drivers; by default by what the process has."""

    def texts(self) -> dict[str, str]:
        """The settings that are text, by name; a token is not among them."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "token"}
        return {name: value for name, value in values.items() if isinstance(value, str)}

    def effective_conf(
        self, group_conf: Mapping[str, str], *, frames: bool = False, guarded: bool = True
    ) -> dict[str, str]:
        """The group's settings, overridden by the launch's; small-machine defaults for local masters underneath.

        `frames`: the group has operators of mode ``dataframe``. What keeps apart what a task made, and what it made when it
        ran again, is always on; Spark may ignore a part of it unless it is `guarded`. Raises `ConfigurationError` for
        properties that a session of a Spark Connect server cannot have.
        """
        safety = FRAMES_SAFETY if frames else SHUFFLE_SAFETY
        conf = dict(BATCH_CONF)
        if frames:
            conf |= FRAMES_CONF
        if is_client(self):
            return {**_session_conf(self, conf, group_conf), **safety}
        if self.master.startswith("local"):
            conf |= {
                "spark.ui.enabled": "false",
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.sql.shuffle.partitions": "2",
                JVM_OPTIONS: LOCAL_FRAMES_JAVA_OPTIONS if frames else LOCAL_JAVA_OPTIONS,
            }
        if self.use_krb5ccache:
            conf[KERBEROS_CREDENTIALS] = "ccache"
        memory = {DRIVER_MEMORY: self.driver_memory} if self.driver_memory else {}
        if frames or not guarded:
            safety = {**safety, **ONE_ATTEMPT}
        return {**conf, **group_conf, **self.conf, **memory, **safety}


def is_address(master: str) -> bool:
    """Whether a master is the address of a Spark Connect server."""
    return master.startswith(SCHEME)


def is_client(settings: SparkSettings) -> bool:
    """Whether drivers are clients of a server: of an existing one, or of one that they share."""
    return settings.connect or is_address(settings.master)


def split_token(master: str) -> tuple[str, str | None]:
    """A master without the token that its URL may have, and that token."""
    if not is_address(master):
        return master, None
    address, *params = master.split(";")
    tokens = [param.partition("=")[2] for param in params if param.startswith(_TOKEN)]
    kept = [param for param in params if not param.startswith(_TOKEN)]
    return ";".join([address, *kept]), (unquote(tokens[-1]) if tokens else None)


def check_session_conf(conf: Mapping[str, str], server: str) -> None:
    if refused := sorted(name for name in conf if not name.startswith(OF_SESSIONS)):
        raise ConfigurationError(
            f"{', '.join(refused)}: a session of {server} has properties of {OF_SESSIONS}* only; others are the server's. "
            "Set them where the server is started, and leave them out here"
        )


def _session_conf(
    settings: SparkSettings, defaults: Mapping[str, str], group_conf: Mapping[str, str]
) -> dict[str, str]:
    """The properties of a group's session: our defaults, those of the group, and those of the launch, as far as they are a
    session's. Raises `ConfigurationError` for others of the group, or of the launch where the server exists already."""
    server = f"the Spark Connect server {settings.master}"
    if settings.connect:
        server = "the Spark Connect server that the groups of a run share (`connect`)"
    else:
        check_session_conf(settings.conf, server)
    check_session_conf(group_conf, server)
    return {**_of_sessions(defaults), **group_conf, **_of_sessions(settings.conf)}


def _of_sessions(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if name.startswith(OF_SESSIONS)}


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
    """The token of a Spark Connect server."""
    resource_manager: str | None = None
    """The address of YARN's ResourceManager."""


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
    kubernetes_conn_id: str | None = None

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
        values = {name: getattr(self, name) for name in SEPARATORS}
        conf = self.conf and _absolutes(self.conf, PROPERTIES, folder)
        binary = self.spark_binary
        if binary and os.sep in binary:  # others are looked up on PATH
            binary = _below(folder, binary)
        found = _absolutes(values, SEPARATORS, folder)
        return replace(self, conf=conf, spark_binary=binary, **found)

    def settings(self, target: SparkTarget) -> SparkSettings:
        """Raises `ConfigurationError` for a property that has no value."""
        conf = {str(key): _text(value) for key, value in (self.conf or {}).items()}
        if target.namespace and target.master.startswith("k8s"):
            conf.setdefault("spark.kubernetes.namespace", target.namespace)
        if target.resource_manager and target.master == YARN:
            conf.setdefault(RESOURCE_MANAGER_PROPERTY, target.resource_manager)
        return SparkSettings(
            master=target.master,
            deploy_mode=self.deploy_mode or target.deploy_mode or CLIENT_MODE,
            conf=conf,
            queue=self.yarn_queue or target.yarn_queue,
            principal=self.principal or target.principal,
            spark_binary=self.spark_binary or target.spark_binary,
            keytab_content=None if self.keytab else target.keytab_content,
            token=target.token,
            env_vars={str(key): _text(value) for key, value in (self.env_vars or {}).items()},
            **{name: getattr(self, name) for name in _SAME},
        )


def local_files(settings: SparkSettings, own: Mapping[str, str]) -> list[str]:
    """The files of its own machine that whatever submits with these settings reads; `own` are the group's own properties.

    Addresses are read by Spark, and ``local:`` is a file of the nodes.
    """
    conf = {**own, **settings.conf}
    given = [(getattr(settings, name), separator) for name, separator in SEPARATORS.items()]
    given += [(conf.get(name), separator) for name, separator in PROPERTIES.items()]
    given += [(value, None) for name, value in conf.items() if name.endswith("podTemplateFile")]
    paths = [
        path.strip() for text, separator in given if text for path in (text.split(separator) if separator else [text])
    ]
    return [path for path in paths if path and not _ADDRESS.match(path)]


def _absolutes(values: Mapping[str, Any], separators: Mapping[str, str | None], folder: Path) -> dict[str, Any]:
    """The values, in which each relative path that `separators` knows is one below `folder`."""
    return {name: _absolute(value, separators.get(name, ""), folder) for name, value in values.items()}


def _absolute(value: Any, separator: str | None, folder: Path) -> Any:
    if separator == "" or not isinstance(value, str) or not value:
        return value
    if separator is None:
        return _below(folder, value)
    return separator.join(_below(folder, one) for one in value.split(separator))


def _below(folder: Path, path: str) -> str:
    """Addresses and absolute paths stay as they are."""
    return path if not path.strip() or _ADDRESS.match(path) else os.path.normpath(folder / path.strip())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        raise ConfigurationError("a Spark property or environment variable has the value None; leave it out instead")
    return str(value)
