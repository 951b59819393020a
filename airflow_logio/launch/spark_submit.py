"""spark-submit as a command: settings, arguments, environment. Nothing secret is among them.

Setting names are those of Airflow's SparkSubmitOperator, so that both ways of launching share one vocabulary.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import spark_binary, spark_connect
from airflow_logio.launch.spark_versions import check_versions
from airflow_logio.spark.determinism import FRAMES_SAFETY

DRIVER_MEMORY = "spark.driver.memory"
APPLICATION_NAME = "spark.app.name"
JVM_OPTIONS = "spark.driver.extraJavaOptions"
KERBEROS_CREDENTIALS = "spark.kerberos.renewal.credentials"
TICKET_CACHE = "KRB5CCNAME"

INHERITED = (
    "HADOOP_CONF_DIR",
    "HOME",
    "JAVA_HOME",
    TICKET_CACHE,
    "KRB5_CONFIG",
    "LANG",
    "LC_ALL",
    "LOGNAME",
    "PATH",
    "SPARK_CONF_DIR",
    "SPARK_HOME",
    "TMPDIR",
    "TZ",
    "USER",
    "YARN_CONF_DIR",
)
"""The environment of a driver: these variables, and those that a launch adds. None are Airflow's, whose settings hold
secrets."""

_OF_SERVERS = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "JDK_", "JAVA_", "PYTHON", "MALLOC_")
"""How names of variables begin that a shared server gets from those of a launch."""

JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
"""Options of every JVM that is started by ``java``; what the command line says decides against them."""

_LITTLE_MEMORY = "-XX:+UseSerialGC -Xms96m -Xmn64m -XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=20"
LOCAL_JAVA_OPTIONS = f"-XX:TieredStopAtLevel=1 {_LITTLE_MEMORY}"
"""A driver that is one JVM of several on a machine: little memory, little compilation."""


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
    # An event is a job or two, and a run has any number of them: what Spark keeps of each for its UI is to stay small.
    "spark.sql.ui.retainedExecutions": "100",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "10000",
}
"""More defaults, of drivers that evaluate chains of DataFrames."""

LOCAL_FRAMES_JAVA_OPTIONS = "-XX:+UseParallelGC"
"""Such a driver's JVM is where the records are: code that is compiled well pays for itself within an event, and a heap that
is kept small is collected all the time."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """What concerns Spark in a launch; None leaves spark-submit's default."""

    master: str = "local[1]"
    deploy_mode: str = "client"
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

    def effective_conf(self, group_conf: Mapping[str, str], *, frames: bool = False) -> dict[str, str]:
        """The group's settings, overridden by the launch's; small-machine defaults for local masters underneath.

        `frames`: the group has operators of mode ``dataframe``. Raises `ConfigurationError` for properties that a session
        of a Spark Connect server cannot have.
        """
        conf = dict(BATCH_CONF)
        if frames:
            conf |= FRAMES_CONF
        if spark_connect.is_client(self):
            return {**spark_connect.session_conf(self, conf, group_conf), **(FRAMES_SAFETY if frames else {})}
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
        return {**conf, **group_conf, **self.conf, **memory, **(FRAMES_SAFETY if frames else {})}


_OPTIONS = (
    ("packages", "--packages"),
    ("exclude_packages", "--exclude-packages"),
    ("repositories", "--repositories"),
    ("jars", "--jars"),
    ("files", "--files"),
    ("archives", "--archives"),
    ("driver_class_path", "--driver-class-path"),
    ("driver_cores", "--driver-cores"),
    ("executor_memory", "--executor-memory"),
    ("executor_cores", "--executor-cores"),
    ("num_executors", "--num-executors"),
    ("total_executor_cores", "--total-executor-cores"),
    ("queue", "--queue"),
    ("properties_file", "--properties-file"),
    ("keytab", "--keytab"),
    ("principal", "--principal"),
    ("proxy_user", "--proxy-user"),
)


def command(
    settings: SparkSettings, conf: Mapping[str, str], name: str, bundle: Path | None, application: Path, config: Path
) -> list[str]:
    """The spark-submit command line of a driver; `bundle` is the zip file with the pipeline's code, if it is shipped.

    `name` is for an application to which nothing else gives a name.
    """
    options = _options(settings, conf, name, bundle)
    return [_binary(settings), *options, str(application), "--config", str(config)]


def shell_arguments(settings: SparkSettings, conf: Mapping[str, str], name: str, bundle: Path | None) -> str:
    """As pyspark takes them from the environment, for sessions that are made without spark-submit."""
    return shlex.join([*_options(settings, conf, name, bundle), "pyspark-shell"])


def server_command(settings: SparkSettings) -> list[str]:
    """The command line of the Spark Connect server that drivers with these settings share; its port is not in it."""
    own = replace(settings, connect=False)
    conf = own.effective_conf({}, frames=True)
    if settings.master.startswith("local"):
        conf.setdefault(DRIVER_MEMORY, spark_connect.LOCAL_MEMORY)
    conf[JVM_OPTIONS] = f"{conf.get(JVM_OPTIONS, '')} {spark_connect.OUT_OF_MEMORY}".strip()
    conf = {**spark_connect.SERVER_CONF, **conf}
    options = _options(own, conf, "logio connect", None)
    return [_binary(settings), *options, "--class", spark_connect.SERVER_CLASS, spark_connect.NO_FILE]


def _binary(settings: SparkSettings) -> str:
    return spark_binary.find_spark_submit(settings.spark_binary, environment(settings))


def _options(settings: SparkSettings, conf: Mapping[str, str], name: str, bundle: Path | None) -> list[str]:
    arguments = ["--master", settings.master, "--deploy-mode", settings.deploy_mode]
    if settings.name or APPLICATION_NAME not in conf:
        arguments += ["--name", settings.name or name]
    # Only where it was said: an option would decide against the properties file.
    if memory := conf.get(DRIVER_MEMORY):
        arguments += ["--driver-memory", memory]
    for attribute, option in _OPTIONS:
        if value := getattr(settings, attribute):
            arguments += [option, str(value)]
    if py_files := ",".join(filter(None, (settings.py_files, str(bundle or "")))):
        arguments += ["--py-files", py_files]
    for key, value in sorted(conf.items()):
        if key != DRIVER_MEMORY:
            arguments += ["--conf", f"{key}={value}"]
    if settings.verbose:
        arguments.append("--verbose")
    return arguments


def environment(settings: SparkSettings, scratch: Path | None = None) -> dict[str, str]:
    """The minimal environment of a driver on this machine; `scratch` is where its JVM puts temporary files.

    Spark's local directories are there too, unless ``spark.local.dir`` or ``SPARK_LOCAL_DIRS`` says otherwise. A property
    would decide against the site's spark-defaults.conf, so a variable says it.
    """
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    ours = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONUNBUFFERED": "1",
        "MALLOC_ARENA_MAX": "2",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    if not settings.master.startswith("local"):
        del ours["SPARK_LOCAL_IP"]
    found = {**inherited, **ours, **settings.env_vars}
    if scratch is not None:
        found[JAVA_OPTIONS] = f'"-Djava.io.tmpdir={scratch}" {found.get(JAVA_OPTIONS, "")}'.rstrip()
    return found


def server_environment(settings: SparkSettings, scratch: Path | None = None) -> dict[str, str]:
    """As `environment`, of a server that drivers share: what Spark, Java and Python read. The rest of `env_vars` is of each
    driver alone."""
    found = environment(settings, scratch)
    return {name: value for name, value in found.items() if name in INHERITED or name.startswith(_OF_SERVERS)}


def check_group(settings: SparkSettings, pipeline: Pipeline, group: str) -> None:
    """Refuse properties of a group that its driver cannot have. Raises `ConfigurationError`."""
    if not spark_connect.is_client(settings):  # an application of its own has any
        return
    try:
        settings.effective_conf(pipeline.group_of(group).spark)
    except ConfigurationError as error:
        raise ConfigurationError(f"group {group!r} of pipeline {pipeline.name!r}: {error}") from None


def check(settings: SparkSettings) -> None:
    """Refuse what cannot work before anything is claimed or started. Raises `ConfigurationError`."""
    if spark_connect.is_client(settings):
        spark_connect.check(settings)
        check_versions()
        if not settings.connect:
            return
    if settings.deploy_mode != "client":
        raise ConfigurationError(
            f"deploy_mode={settings.deploy_mode!r} is not supported yet: drivers are processes of the machine that launches "
            f"them, which can tell when one of them has died. Use deploy_mode='client' with the same master "
            f"({settings.master}): the jobs still run on the executors of the cluster"
        )
    if settings.use_krb5ccache and not environment(settings).get(TICKET_CACHE):
        raise ConfigurationError(
            f"use_krb5ccache: there is no {TICKET_CACHE} in the environment of this process, so the driver would find no "
            "ticket. Set it for the workers (and for what else launches drivers), or give keytab and principal"
        )
    check_versions()
    spark_binary.find_spark_submit(settings.spark_binary, environment(settings))
    spark_binary.check_java()
