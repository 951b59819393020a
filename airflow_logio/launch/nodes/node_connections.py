"""Where the log is, and what else is secret, as a node says it to the drivers that a cluster manager starts there.

It is one JSON object, in a file of the node or of HDFS, or in a variable that comes from a Secret::

    {"log": "postgresql://logio:...@db/logio",
     "payloads": "/shared/payloads",
     "connections": {"warehouse_db": "postgresql://..."},
     "environment": {"SHOP_TOKEN": "..."}}

Executors get none of it, and no message repeats a value.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from airflow_logio.databases import parse_url
from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.driver_arguments import CONNECTIONS_PROPERTY, CONNECTIONS_VARIABLE, checked_file
from airflow_logio.systems.hdfs_roots import is_hdfs
from airflow_logio.systems.payload_roots import payload_root

CONTENT_VARIABLE = "LOGIO_CONNECTIONS_JSON"
"""The variable with the object itself, for a Secret that is given as environment."""
_KEYS = ("log", "payloads", "connections", "environment")
_NEWEST = "..data"
"""In the folder of a Secret, or of another volume of Kubernetes: the link that is changed when the volume is."""
_HOW = "docs/how-to/run-on-a-cluster.md shows one"


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    log: str
    payloads: str | None = None
    connections: dict[str, str] = {}
    environment: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class NodeConnections:
    """What the node says."""

    place: str
    """The file or variable that says it, for messages."""
    log_url: str = field(repr=False)
    payloads: str | None = field(repr=False)
    """Root of the payload store; None: there is none."""
    connections: Mapping[str, str] = field(repr=False)
    """Connection id → URL."""
    environment: Mapping[str, str] = field(repr=False)
    """Variables for pipelines that name them."""


def of_this_node(named: str | None, environment: MutableMapping[str, str]) -> NodeConnections:
    """From the file that is named, or that the environment names, or from the environment itself; a variable that holds it is
    taken out of `environment`, so that no child of this process has it.

    Raises `ConfigurationError`, which says what to do.
    """
    content = environment.pop(CONTENT_VARIABLE, None)
    variable = environment.get(CONNECTIONS_VARIABLE)
    if named is not None:
        return _read(checked_file(named, CONNECTIONS_PROPERTY))
    if variable and content:
        raise ConfigurationError(
            f"both {CONNECTIONS_VARIABLE} and {CONTENT_VARIABLE} are set for this driver, and only one of them can say where "
            "the log is: set one"
        )
    if variable:
        return _read(checked_file(variable, CONNECTIONS_VARIABLE))
    if content:
        return _checked(content.encode(), f"variable {CONTENT_VARIABLE}")
    raise ConfigurationError(
        f"this node does not say where the log is: name a file of the node by the property {CONNECTIONS_PROPERTY} or the "
        f"variable {CONNECTIONS_VARIABLE}, or give {CONTENT_VARIABLE} from a Secret ({_HOW})"
    )


def _read(file: str) -> NodeConnections:
    if is_hdfs(file):
        from airflow_logio.launch.nodes import hdfs_connections  # HDFS's client is where the file is there, and is slow

        return _checked(hdfs_connections.read(file), f"file {file}")
    return _of_path(Path(file))


def _of_path(path: Path) -> NodeConnections:
    place = f"file {path}"
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
    except FileNotFoundError:
        raise ConfigurationError(
            f"{place}, which is to say where the log is, does not exist on this node: every node that may get a driver needs "
            f"it ({_HOW})"
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"{place}, which is to say where the log is, cannot be read: {error.strerror}"
        ) from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO) and not _is_volume(path):
        raise ConfigurationError(
            f"{place} holds passwords, and others may read or change it (mode {mode:04o}): chmod 600 {path}"
        )
    return _checked(content, place)


def _is_volume(path: Path) -> bool:
    """Whether it lies in a mounted Secret: the modes there are the volume's, and only the container sees it."""
    return (path.parent / _NEWEST).is_symlink()


def _checked(content: bytes, place: str) -> NodeConnections:
    try:
        found = msgspec.json.decode(content, type=_Content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(
            f"{place} is not as drivers need it: {error}. It is a JSON object with {', '.join(_KEYS)} ({_HOW})"
        ) from None
    try:
        if parse_url(found.log).get_backend_name() == "sqlite":
            raise ConfigurationError(
                "it is an SQLite file, which one machine has: drivers on a cluster need a log on PostgreSQL"
            )
        payloads = payload_root(found.log, found.payloads)
    except ConfigurationError as error:
        raise ConfigurationError(f"{place}, log or payloads: {error}") from None
    for key, values in (("connections", found.connections), ("environment", found.environment)):
        if empty := [name for name, value in values.items() if not name or (key == "connections" and not value)]:
            raise ConfigurationError(f"{place}: {key} has {empty[0]!r} without a value, or a value without a name")
        if odd := [
            name for name, value in values.items() if "\0" in name + value or (key == "environment" and "=" in name)
        ]:
            raise ConfigurationError(f"{place}: {key} has {odd[0]!r}, which cannot be a name with its value")
    return NodeConnections(place, found.log, payloads, found.connections, found.environment)
