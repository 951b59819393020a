"""Spark options of the commands that launch drivers: given now, or kept with the run since `logio run` started it.

What may be a secret is not kept: of such a property the run remembers that it was given.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

from airflow_logio.cli.common import out, pairs, warn
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch import spark_settings
from airflow_logio.launch.spark_settings import CLIENT_MODE, LOCAL_MASTER, TOKEN_VARIABLE, SparkSettings
from airflow_logio.store.records.run_records import Run, Supervision

_OF_THE_RUN = "Default: as the run was started"
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        help=f"Spark master, or sc://host:port of a Spark Connect server. {_OF_THE_RUN}, else {LOCAL_MASTER}",
    ),
]
MemoryOption = Annotated[
    str | None, typer.Option("--driver-memory", help=f"Memory of each driver's JVM. {_OF_THE_RUN}")
]
DeployModeOption = Annotated[
    str | None,
    typer.Option(
        "--deploy-mode",
        help="client: drivers are processes of this machine. cluster: the master starts them on its nodes. "
        f"{_OF_THE_RUN}, else client",
    ),
]
ConnectOption = Annotated[
    bool | None,
    typer.Option(
        "--connect/--no-connect",
        help="The drivers share one Spark application, whose clients they are: one JVM, and recovery in a second. "
        f"{_OF_THE_RUN}, else not",
        show_default=False,
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", help="Spark property, key=value; besides those that the run was started with"),
]
_SECRET = re.compile(
    r"secret|passw|token|credential|private|://[^/\s]*@|(access|account|api|encryption|shared|signing)[._-]?key"
    r"|\bsas\b|[?&;](sig|key)=",
    re.IGNORECASE,
)
"""In the name or in the value of a property: what Spark redacts, keys of object stores and services, users in URLs."""


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """None, or nothing: not given."""

    master: str | None = None
    driver_memory: str | None = None
    connect: bool | None = None
    conf: Mapping[str, str | None] = field(default_factory=dict)
    """A value of None is one that was given when the run was started, and is not kept."""
    deploy_mode: str | None = None

    @classmethod
    def given(
        cls,
        master: str | None = None,
        driver_memory: str | None = None,
        conf: Sequence[str] | None = None,
        connect: bool | None = None,
        deploy_mode: str | None = None,
    ) -> SparkOptions:
        """As typed. Raises `typer.BadParameter`."""
        try:
            spark_settings.check_deploy_mode(deploy_mode)
        except ConfigurationError as error:
            raise typer.BadParameter(str(error), param_hint="--deploy-mode") from None
        if master is not None and "token=" in master:
            raise typer.BadParameter(
                "a token on a command line is read by everyone on the machine: leave it out of --master, and set "
                f"{TOKEN_VARIABLE}"
            )
        return cls(master, driver_memory, connect, pairs("--conf", conf or ()), deploy_mode)

    @classmethod
    def kept(cls, run: Run) -> SparkOptions:
        """Those with which a run was started; none of a run of Airflow, or of an earlier version."""
        return cls(**run.spec.spark)

    def to_keep(self) -> dict[str, Any]:
        """Plain data for the log, without secrets."""
        conf = {
            key: None if value is None or _SECRET.search(f"{key}={value}") else value
            for key, value in self.conf.items()
        }
        found = {
            "master": self.master,
            "driver_memory": self.driver_memory,
            "connect": self.connect,
            "conf": conf,
            "deploy_mode": self.deploy_mode,
        }
        return {name: value for name, value in found.items() if value}

    def over(self, others: SparkOptions) -> SparkOptions:
        """These; where they say nothing, the others."""
        return SparkOptions(
            self.master or others.master,
            self.driver_memory or others.driver_memory,
            others.connect if self.connect is None else self.connect,
            {**others.conf, **self.conf},
            self.deploy_mode or others.deploy_mode,
        )

    def settings(self) -> SparkSettings:
        conf = {key: value for key, value in self.conf.items() if value is not None}
        mode = self.deploy_mode or CLIENT_MODE
        settings = SparkSettings(self.master or LOCAL_MASTER, mode, conf, connect=bool(self.connect))
        if spark_settings.is_address(settings.master):
            settings = replace(settings, token=os.environ.get(TOKEN_VARIABLE))
        return settings if self.driver_memory is None else replace(settings, driver_memory=self.driver_memory)

    @property
    def not_kept(self) -> Sequence[str]:
        """Properties whose values would have to be given again."""
        return [key for key, value in self.conf.items() if value is None]

    def __str__(self) -> str:
        """As they are typed; what may be a secret is not shown."""
        kept = self.to_keep()
        words = [
            *(["--master", self.master] if self.master else []),
            *(["--driver-memory", self.driver_memory] if self.driver_memory else []),
            *(["--connect"] if self.connect else []),
            *(["--deploy-mode", self.deploy_mode] if self.deploy_mode else []),
        ]
        for key, value in kept.get("conf", {}).items():
            words += ["--conf", f"{key}={'...' if value is None else value}"]
        return shlex.join(words)


def options_for(run: Run, given: SparkOptions) -> SparkOptions:
    """What the drivers of a run are launched with by a command that did not start it, told to the person."""
    options = given.over(SparkOptions.kept(run))
    if run.spec.supervision is not Supervision.PROCESS and not given.master:
        warn(
            f"Airflow launches the groups of run {run.spec.key} with the Spark connection and settings of their tasks; this "
            f"command takes --master {LOCAL_MASTER}. To have those of a task, clear it"
        )
    if shown := str(options):
        out.print(f"drivers are launched with {shown}", markup=False)
    for name in options.not_kept:
        warn(
            f"run {run.spec.key} was started with --conf {name}=..., which may be a secret and was not kept: give it again "
            "if its drivers need it"
        )
    return options
