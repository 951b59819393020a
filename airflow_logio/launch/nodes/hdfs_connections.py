"""The file of connections in HDFS, one for all nodes, read without a JVM (ADR-218).

It is asked for as the user of this process, or of HADOOP_USER_NAME, and only that user may have it. A NameNode or DataNode
that is unavailable is waited for; one that is silent holds up a thread of its own, and the driver no longer than others do.
"""

from __future__ import annotations

import os
import pwd
import threading
from contextlib import suppress
from dataclasses import dataclass

from airflow_logio.errors import ConfigurationError
from airflow_logio.launch.driver_arguments import FILE
from airflow_logio.launch.processes import this_host
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.systems.payloads.hdfs_client import Hdfs
from airflow_logio.systems.payloads.hdfs_streams import Reading

WAIT_SECONDS = 60.0
"""For so long HDFS may be unavailable: half of the time that a launch has by default."""
_MOST_BYTES = 16 << 20
_OTHERS = 0o077


def read(url: str, wait_seconds: float = WAIT_SECONDS) -> bytes:
    """All of it. Raises `ConfigurationError`, which says what to do, and has nothing of what the file says."""
    asked = _Asked(url, Patience(wait_seconds, waits_for="HDFS"))
    thread = threading.Thread(target=asked.ask, name="logio-hdfs-connections", daemon=True)
    thread.start()
    thread.join(wait_seconds + 1.0)
    if asked.content is not None:
        return asked.content
    error = asked.error or asked.last or "no answer"
    if isinstance(error, ConfigurationError):
        raise error from None
    raise ConfigurationError(
        f"file {url}, which is to say where the log is, could not be read by node {this_host()} for {wait_seconds:g} s: "
        f"{error}. Are NameNode and DataNodes alive, and does this node reach them? If the group is parked by then: "
        "`logio retry`"
    ) from None


@dataclass
class _Asked:
    """What a thread finds out."""

    url: str
    patience: Patience
    content: bytes | None = None
    error: Exception | None = None
    last: str = ""
    """What was waited out last."""

    def ask(self) -> None:
        try:
            hdfs = Hdfs(self.url, FILE)
            self.content = self.patience.call(f"reading {self.url}", lambda: _content(hdfs), told=self._told)
        except Exception as error:
            self.error = error

    def _told(self, error: str) -> None:
        self.last = error


def _content(hdfs: Hdfs) -> bytes:
    try:
        status = hdfs.status("")
    except FileNotFoundError as error:
        is_folder = "is a folder" in str(error)
        raise ConfigurationError(
            f"file {hdfs.root}, which is to say where the log is, "
            + ("is a folder: name the file in it" if is_folder else "does not exist: put it there (hdfs dfs -put)")
            + ", readable by its owner only (hdfs dfs -chmod 600)"
        ) from None
    mode, users = status.permission & 0o777, _users()
    if mode & _OTHERS:  # with an access control list, the group's part is what the list may give at most
        raise ConfigurationError(
            f"file {hdfs.root} holds passwords, and others may read or change it (mode {mode:04o}): "
            f"hdfs dfs -chmod 600 {hdfs.root}"
        )
    if users and status.owner != users[0]:
        raise ConfigurationError(
            f"file {hdfs.root} says where the log is, and belongs to {status.owner!r}, while drivers are {users[0]!r} to "
            f"HDFS: hdfs dfs -chown {users[0]} {hdfs.root}, or set HADOOP_USER_NAME={status.owner} for drivers"
        )
    if status.length > _MOST_BYTES:
        raise ConfigurationError(f"file {hdfs.root} has {status.length:,} bytes: it is no file of connections")
    with Reading(hdfs, "") as file:
        return file.read()


def _users() -> list[str]:
    """As whom the client of this process works there, without Kerberos: the first. It does not look at USER, which a manager
    may set to another one. Empty: this system has no name for its user."""
    named = [os.environ.get(variable) for variable in ("HADOOP_PROXY_USER", "HADOOP_USER_NAME")]
    with suppress(KeyError):
        named.append(pwd.getpwuid(os.geteuid()).pw_name)
    return [name for name in named if name]
