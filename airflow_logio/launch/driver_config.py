"""What a driver is given, and what it answers: a configuration that it removes after reading it, and an exit code.

The file has mode 0600, so that no secret is on a command line. Exit codes are for people: supervisors believe only the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import driver_folders
from airflow_logio.launch.shared_server import ServerRecipe
from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.spark.connect_engine import ConnectTarget
from airflow_logio.store.records.driver_records import Claim

FINISHED = 0
"""Finished or halted."""
FAILED = 1
"""Failed, and will be recovered."""
REPLACED = 3
"""Another incarnation has taken its place."""
PARKED = 4
"""A person has to fix something first."""


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

    def write(self, path: Path) -> None:
        """Create the file, readable by its owner only; it must not exist."""
        driver_folders.create_private(path, msgspec.json.encode(self))


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
