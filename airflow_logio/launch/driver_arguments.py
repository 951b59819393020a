"""The command line of a driver that a cluster manager starts: which claim it may take, and as what it was submitted.

None of it is a secret: who reads it in a manager's page and has not the log's password can do nothing with it. Where the log
is, and every password, comes from a file that the node has, or from its environment (`LOGIO_CONNECTIONS`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from airflow_logio import __version__
from airflow_logio.errors import ConfigurationError
from airflow_logio.store.records.driver_records import Claim, Submission
from airflow_logio.systems.hdfs_roots import is_hdfs, parsed

APPLICATION_PROPERTY = "spark.logio.application"
"""Where the nodes have `logio_driver.py`, if not where this machine has it: a path, or ``local:///path`` in an image."""
CONNECTIONS_PROPERTY = "spark.logio.connections"
"""Which file of the nodes says where the log is, if their environment does not: a path, or ``hdfs://host:port/path``."""
CONNECTIONS_VARIABLE = "LOGIO_CONNECTIONS"
"""The variable of the nodes' environment that names it as well."""
FILE = "the file of connections"
"""For messages."""
_CONTAINER = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_(\d+)_\d+")
"""YARN's name of a container: maybe an epoch of its manager, then application, attempt, number."""
_STANDALONE = re.compile(r"driver-\d+-\d+")
"""How a standalone worker names the folder of a driver: as its master names the driver."""


@dataclass(frozen=True, slots=True)
class DriverArguments:
    """What a driver on a cluster is told by its command line."""

    run_uid: str
    group: str
    incarnation: int
    nonce: str
    submission: Submission
    """Without id and attempt: the driver finds out both itself."""
    connections: str | None = None
    """The node's file, or one in HDFS, as `checked_file` has it; None: the environment says which."""
    version: str = __version__
    """Of this package, where it was submitted."""

    @classmethod
    def of(cls, claim: Claim, submission: Submission, conf: Mapping[str, str]) -> DriverArguments:
        """Those of a claim; `conf` is what the group's properties have become."""
        file = conf.get(CONNECTIONS_PROPERTY)
        return cls(claim.run_uid, claim.group, claim.incarnation, claim.nonce, submission, file)

    def words(self) -> list[str]:
        """The arguments, for the driver's program."""
        said = {
            "run": self.run_uid,
            "group": self.group,
            "incarnation": str(self.incarnation),
            "nonce": self.nonce,
            "manager": self.submission.manager,
            "address": self.submission.address,
            "name": self.submission.name,
            "namespace": self.submission.namespace,
            "cluster": self.submission.cluster,
            "access": self.submission.access,
            "version": self.version,
            "connections": self.connections or "",
        }
        return [f"--{name}={value}" for name, value in said.items() if value]

    @classmethod
    def add_to(cls, parser: argparse.ArgumentParser) -> None:
        """Let a parser understand `words`."""
        for name in ("run", "group", "nonce", "manager", "address", "name"):
            parser.add_argument(f"--{name}")
        parser.add_argument("--incarnation", type=int)
        parser.add_argument("--namespace", default="")
        parser.add_argument("--cluster", default="")
        parser.add_argument("--access", default="")
        parser.add_argument("--version", default="")
        parser.add_argument("--connections")

    @staticmethod
    def missing(found: argparse.Namespace) -> list[str]:
        """What a parser has not found, and a driver cannot do without."""
        needed = ("run", "group", "incarnation", "nonce", "manager", "address", "name")
        return [f"--{name}" for name in needed if getattr(found, name) in (None, "")]

    @classmethod
    def parsed(cls, found: argparse.Namespace) -> DriverArguments:
        """What a parser has understood."""
        submission = Submission(
            found.manager, found.address, found.name, found.namespace, cluster=found.cluster, access=found.access
        )
        return cls(found.run, found.group, found.incarnation, found.nonce, submission, found.connections, found.version)


def checked_file(named: str, by: str) -> str:
    """The file of connections that property or variable `by` names: one that all nodes can find. Raises `ConfigurationError`,
    without what may be secret in an address."""
    if is_hdfs(named):
        if not parsed(named, FILE)[1]:
            raise ConfigurationError(f"{by} names {named}, which is no file: give hdfs://host:port/path of one")
    elif "://" in named:
        raise ConfigurationError(
            f"{by} names an address {named.partition('://')[0]}://..., where drivers do not look for connections: give the "
            "path of a file that every node has, or hdfs://host:port/path"
        )
    elif not Path(named).is_absolute():
        raise ConfigurationError(
            f"{by} names {named}, which is no absolute path: a driver starts in a folder of its own on its node. Give "
            "one, or hdfs://host:port/path"
        )
    return named


def own_submission(told: Submission, environment: Mapping[str, str], folder: Path) -> Submission:
    """What the driver of this process was submitted as, with what it finds out itself of the manager's name for it.

    `told` is that of its arguments. YARN says the application and its attempt in the environment, and a standalone worker
    starts a driver in a `folder` of its name. Where neither says it, the submission stays as it was told.
    """
    container = _CONTAINER.fullmatch(environment.get("CONTAINER_ID", ""))
    if told.manager == "yarn" and container is not None:
        return msgspec.structs.replace(told, id=f"application_{container[1]}", attempt=int(container[2]))
    if told.manager == "standalone" and _STANDALONE.fullmatch(folder.name):
        return msgspec.structs.replace(told, id=folder.name)
    return told
