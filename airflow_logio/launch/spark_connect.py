"""Drivers that are clients of a Spark Connect server: what may be set, and the commands (ADR-116).

Such a driver is a process of Python alone. The server exists, and its address is the master, or the drivers of a run
share one.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_logio.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow_logio.launch.spark_submit import SparkSettings

SCHEME = "sc://"
TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""The environment has the token of a Spark Connect server under the name that Spark itself gives it."""
_TOKEN = "token="
OF_SESSIONS = "spark.sql."
"""Properties that a session may have of its own; others are of the server's application."""
SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""All groups are in one heap: its end is seen by all of them as a lost server, and blamed on none of their records."""
NO_FILE = "spark-internal"
"""What spark-submit is given for the application's file, where the class is Spark's own."""
LOCAL_MEMORY = "2g"
"""Of the server's heap on a local master, by default: several groups, and the executor, are in it."""
SERVER_CONF: Mapping[str, str] = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.scheduler.mode": "FAIR",
    # Clients cannot choose a pool: within the one that there is, jobs of all groups get their share.
    "spark.scheduler.allocation.file": Path(__file__).with_name("fair_pools.xml").as_uri(),
}
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


def check(settings: SparkSettings) -> None:
    """Refuse what a server's client cannot have. Raises `ConfigurationError` that says where it belongs."""
    if missing := [package for module, package in _NEEDED.items() if not _is_found(module)]:
        raise ConfigurationError(
            f"drivers that are clients of Spark Connect need {', '.join(missing)}, which this Python lacks: "
            "pip install 'pyspark[connect]' of the version of the pyspark that is installed"
        )
    if remote := [one for one in (settings.py_files or "").split(",") if ":" in one]:
        raise ConfigurationError(
            f"py_files has {remote[0].strip()}: a driver that is a client of Spark Connect sends its tasks files of its own "
            "machine only; copy it there"
        )
    if not is_address(settings.master):
        if settings.keytab_content is not None:
            raise ConfigurationError(
                "a Spark Connect server takes a keytab from a file only: give keytab, with its path"
            )
        return
    if split_token(settings.master)[1] is not None:
        raise ConfigurationError(
            "the address of the Spark Connect server has its token in it, which would be in messages: leave it out, and set "
            f"{TOKEN_VARIABLE}, or the password of the Airflow connection"
        )
    if settings.connect:
        raise ConfigurationError(
            f"master {settings.master} is a Spark Connect server already: leave connect (--connect) out, or give the master "
            "on which a server is to be started"
        )
    for one in fields(settings):
        if one.name in _HERE or one.default is MISSING:
            continue
        if getattr(settings, one.name) != one.default:
            raise ConfigurationError(
                f"{one.name}={getattr(settings, one.name)!r} cannot be set for the Spark Connect server {settings.master}, "
                "which has its application already: set it where the server is started"
            )
    _check_conf(settings.conf, settings.master)


def _check_conf(conf: Mapping[str, str], server: str) -> None:
    if refused := sorted(name for name in conf if not name.startswith(OF_SESSIONS)):
        raise ConfigurationError(
            f"{', '.join(refused)}: a session of {server} has properties of {OF_SESSIONS}* only; others are the server's. "
            "Set them where the server is started, and leave them out here"
        )


def session_conf(settings: SparkSettings, defaults: Mapping[str, str], group_conf: Mapping[str, str]) -> dict[str, str]:
    """The properties of a group's session: our defaults, those of the group, and those of the launch, as far as they are a
    session's. Raises `ConfigurationError` for others of the group, or of the launch where the server exists already."""
    server = f"the Spark Connect server {settings.master}"
    if settings.connect:
        server = "the Spark Connect server that the groups of a run share (`connect`)"
    else:
        _check_conf(settings.conf, server)
    _check_conf(group_conf, server)
    return {**_of_sessions(defaults), **group_conf, **_of_sessions(settings.conf)}


def _of_sessions(conf: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in conf.items() if name.startswith(OF_SESSIONS)}


def files_of(py_files: str | None) -> tuple[str, ...]:
    """The paths in `py_files`, absolute."""
    return tuple(str(Path(one.strip()).absolute()) for one in (py_files or "").split(",") if one.strip())


def importable(folder: Path, py_files: str) -> list[str]:
    """What belongs on the path of Python, so that it can import `py_files`: a file .py is copied into `folder` for that.

    Raises OSError.
    """
    files = files_of(py_files)
    modules = [file for file in files if file.endswith(".py")]
    if modules:
        folder.mkdir()
    for module in modules:
        shutil.copy(module, folder)
    return [*([str(folder)] if modules else []), *(file for file in files if file not in modules)]


def _is_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
