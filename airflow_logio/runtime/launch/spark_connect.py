"""Drivers that are clients of a Spark Connect server: the address, what may be set, and the command (ADR-116).

Such a driver is a process of Python alone: no spark-submit, no JVM and no Java on its machine.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_logio.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_logio.runtime.launch.spark_submit import SparkSettings

SCHEME = "sc://"
OF_SESSIONS = "spark.sql."
"""Properties that a session may have of its own; others are of the server's application."""
_NEEDED = {
    "grpc": "grpcio",
    "grpc_status": "grpcio-status",
    "google.rpc": "googleapis-common-protos",
    "pandas": "pandas",
}
"""Module → package that pyspark's client imports."""
_HERE = frozenset(
    {
        "master",
        "deploy_mode",
        "conf",
        "py_files",
        "env_vars",
        "token",
        "name",
        "verbose",
        "spark_binary",
        "principal",
        "queue",
    }
)
"""Settings that mean something with a server, or come from a connection that means nothing by them."""


def is_connect(master: str) -> bool:
    """Whether a master is the address of a Spark Connect server."""
    return master.startswith(SCHEME)


def check(settings: SparkSettings) -> None:
    """Refuse what a server's client cannot have. Raises `ConfigurationError` that says where it belongs."""
    for one in fields(settings):
        if one.name in _HERE or one.default is MISSING:
            continue
        if getattr(settings, one.name) != one.default:
            raise ConfigurationError(
                f"{one.name}={getattr(settings, one.name)!r} cannot be set for the Spark Connect server {settings.master}, "
                "which has its application already: set it where the server is started"
            )
    check_conf(settings.conf, settings.master)
    if missing := [package for module, package in _NEEDED.items() if not _is_found(module)]:
        raise ConfigurationError(
            f"master {settings.master} needs the client of Spark Connect, which lacks {', '.join(missing)} here: "
            "pip install 'pyspark[connect]' of the pyspark that is installed"
        )


def check_conf(conf: Mapping[str, str], master: str) -> None:
    """Refuse properties that are not a session's. Raises `ConfigurationError`."""
    if refused := sorted(name for name in conf if not name.startswith(OF_SESSIONS)):
        raise ConfigurationError(
            f"{', '.join(refused)}: a session of the Spark Connect server {master} has properties of {OF_SESSIONS}* only; "
            "others are the server's. Set them where the server is started, and leave them out here"
        )


def session_conf(defaults: Mapping[str, str], given: Mapping[str, str], master: str) -> dict[str, str]:
    """The properties of a session: what is a session's of our defaults, and all that was given."""
    check_conf(given, master)
    return {**{name: value for name, value in defaults.items() if name.startswith(OF_SESSIONS)}, **given}


def command(application: Path, config: Path) -> list[str]:
    """The command line of a driver. Nothing secret is in it."""
    return [sys.executable, str(application), "--config", str(config)]


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
