"""What a launch is resolved to, what its driver is given of it in a file, and the exit codes that the driver answers with.

The file has mode 0600, so that no secret is on a command line. Exit codes are for people: supervisors believe only the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import driver_folders, spark_settings
from airflow_logio.launch.bundle import PipelineRef
from airflow_logio.launch.code_bundle import CodeBundle
from airflow_logio.launch.shared_server import ServerRecipe
from airflow_logio.launch.spark_settings import CLUSTER_MODE, SparkSettings
from airflow_logio.protocol.values import ExecutionMode
from airflow_logio.spark.connect_engine import ConnectTarget
from airflow_logio.store.records.driver_records import Claim, GroupNeeds, Submission

FINISHED = 0
"""Finished or halted."""
FAILED = 1
"""Failed, and will be recovered."""
REPLACED = 3
"""Another incarnation has taken its place."""
PARKED = 4
"""A person has to fix something first."""
OF_PYTHON = frozenset(("spark.submit.pyFiles", "spark.pyspark.python", "spark.pyspark.driver.python"))
"""Properties of Spark that say which Python a driver is, and what it imports."""


class DriverKind(StrEnum):
    """What process a driver is."""

    SPARK_SUBMIT = "spark-submit"
    """An application of Spark, which lives and dies with its JVM."""
    CLIENT = "client"
    """Python alone, a client of a Spark Connect server (ADR-116)."""
    PYTHON = "python"
    """Python alone, of a group that needs no Spark (ADR-119)."""


def has_frames(pipeline: Pipeline, group: str) -> bool:
    """Whether an operator of the group works on DataFrames."""
    modes = (pipeline.operators[name].mode for name in pipeline.group_of(group).operators)
    return ExecutionMode.DATAFRAME in modes


def needs_spark(pipeline: Pipeline, group: str) -> bool:
    """Whether an operator of the group runs its generation in Spark."""
    return any(pipeline.operators[name].mode is not ExecutionMode.DRIVER for name in pipeline.group_of(group).operators)


def needs_of(pipeline: Pipeline, group: str, code: int) -> GroupNeeds:
    """What a launch of a group, or of one of its replicas, asks of the pipeline, whose code has this number.

    If any group declares tables or queries of a connection, it must be a SQL database.
    """
    own = pipeline.group_of(group)
    used = {name for operator in own.operators for name in pipeline.operators[operator].connections()}
    sql = {name for operator in pipeline.operators.values() for name in operator.sql_connections()}
    return GroupNeeds(
        code=code,
        spark=needs_spark(pipeline, group),
        frames=has_frames(pipeline, group),
        standby=bool(own.standby),
        properties=dict(own.spark),
        environment=tuple(pipeline.environment),
        connections={name: name in sql for name in sorted(used)},
    )


def driver_kind(settings: SparkSettings, conf: Mapping[str, str], *, spark: bool) -> DriverKind:
    """What a driver is with these settings and properties; `spark`: its group needs Spark (`needs_spark`)."""
    if spark_settings.is_client(settings):
        return DriverKind.CLIENT
    is_fetched = any("://" in file for file in (settings.py_files or "").split(","))
    if spark or is_fetched or OF_PYTHON & conf.keys():  # what only spark-submit understands
        return DriverKind.SPARK_SUBMIT
    return DriverKind.PYTHON


@dataclass(frozen=True, slots=True)
class StandbyRecipe:
    """With what a driver starts the process that stands by to take its place: as it was launched itself."""

    settings: SparkSettings
    conf: Mapping[str, str]
    """The effective Spark properties of its group."""


@dataclass(frozen=True, slots=True)
class DriverConfig:
    """Everything a driver needs: where the log is, which incarnation it may take, the URLs of the run's connections."""

    log_url: str
    claim: Claim
    module: str
    attr: str
    bundle_root: str
    connections: Mapping[str, str]
    """The pipeline's connection name → URL."""
    payloads: str | None = None
    """Root of the payload store, which may hold credentials."""
    needs_spark: bool = False
    """An operator of the group runs its generation in Spark: make the session first of all."""
    has_frames: bool = False
    """One of these is of mode ``dataframe``: tasks of Spark will run Python."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables that the pipeline names; they may be secrets."""
    standby: StandbyRecipe | None = field(default=None, repr=False)
    """None: no process is to stand by."""
    connect: ConnectTarget | None = field(default=None, repr=False)
    """The Spark Connect server whose client the driver is. None: it is a Spark application of its own."""
    server: ServerRecipe | None = field(default=None, repr=False)
    """How that server is started, if the drivers of the run have one of their own."""
    has_jvm: bool = False
    """spark-submit starts the driver, which lives and dies with its JVM. If not, it is Python alone (ADR-119)."""
    submission: Submission | None = None
    """As what a cluster manager has started the driver, as far as that is known on its node. None: it is a process of the
    machine that has launched it."""
    executor_code: str | None = None
    """The zip file that the driver gives to its executors, once it has a session. None: spark-submit has done it."""

    def write(self, path: Path) -> None:
        """Create the file, readable by its owner only; it must not exist."""
        driver_folders.create_private(path, msgspec.json.encode(self))


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a group, resolved and checked before its claim: what follows asks for no setting again."""

    settings: SparkSettings
    conf: Mapping[str, str]
    """The effective Spark properties of the group."""
    kind: DriverKind
    code: CodeBundle
    code_number: int
    """The claim has another one if a person took other code meanwhile: then the launch is resolved again."""
    ref: PipelineRef
    log_url: str = field(repr=False)
    connections: Mapping[str, str] = field(repr=False)
    """The pipeline's connection name → URL."""
    payloads: str | None = field(repr=False)
    """Root of the payload store, which may hold credentials."""
    needs_spark: bool
    has_frames: bool
    standby: StandbyRecipe | None
    """With what the process that stands by is started, if the group has one: the settings as they were given."""
    environment: Mapping[str, str] = field(repr=False)
    """Variables that the pipeline names; they may be secrets."""
    log_uid: str = ""
    """What tells the log from others, for labels of what is submitted; empty for a driver of this machine."""

    @property
    def is_on_cluster(self) -> bool:
        """Whether the cluster manager starts the driver, and not this process."""
        return self.settings.deploy_mode == CLUSTER_MODE

    def config(self, claim: Claim) -> DriverConfig:
        """What the driver of this claim is given."""
        return DriverConfig(
            self.log_url,
            claim,
            self.ref.module,
            self.ref.attr,
            str(self.ref.bundle_root),
            self.connections,
            self.payloads,
            self.needs_spark,
            self.has_frames,
            self.environment,
            self.standby,
            has_jvm=self.kind is DriverKind.SPARK_SUBMIT,
        )


def launch_of_standby(config: DriverConfig, settings: SparkSettings, code: CodeBundle) -> Launch:
    """The launch of the process that stands by for the driver with this configuration: as that driver was launched itself."""
    assert config.standby is not None
    conf = config.standby.conf
    return Launch(
        settings=settings,
        conf=conf,
        kind=driver_kind(settings, conf, spark=config.needs_spark),
        code=code,
        code_number=config.claim.code,
        ref=PipelineRef(config.module, config.attr, Path(config.bundle_root)),
        log_url=config.log_url,
        connections=config.connections,
        payloads=config.payloads,
        needs_spark=config.needs_spark,
        has_frames=config.has_frames,
        standby=config.standby,
        environment=config.environment,
    )


def take(path: Path) -> DriverConfig:
    """Read and remove the file. Raises `ConfigurationError` if it is not there any more: another process took it."""
    try:
        data = path.read_bytes()
        path.unlink(missing_ok=True)
        return msgspec.json.decode(data, type=DriverConfig)
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path} no longer exists: this driver was started twice, or long after its launch"
        ) from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no driver configuration: {error}") from error
