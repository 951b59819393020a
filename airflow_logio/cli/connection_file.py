"""Databases by connection id, for `logio` outside Airflow: the environment, then a file, then a default.

``LOGIO_CONN_<ID>`` names any connection, ``LOGIO_URL`` the log, and ``WAREHOUSE_URL`` the connection `warehouse`. Without
them, section ``[connections]`` of ``./logio.toml`` or ``~/.config/logio/connections.toml`` applies: ``id = "URL"``. The
payload store of a log is in ``LOGIO_PAYLOADS_<ID>`` or section ``[payloads]``, under the id of the log; ``LOGIO_PAYLOADS``
is that of the default log. A URL never comes from a command line, where every user of the machine could read it.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from airflow_logio.databases import sqlite_url, with_absolute_path
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.payload_roots import payload_root

LOG_CONNECTION = "logio_default"
SHORT_NAMES = {LOG_CONNECTION: "LOGIO_URL", "warehouse": "WAREHOUSE_URL"}
CONNECTION = "LOGIO_CONN_"
PAYLOADS = "LOGIO_PAYLOADS"
SECTIONS = ("connections", "payloads")
DEFAULT_LOG = Path(".logio/logio.db")


def candidates(environment: Mapping[str, str]) -> list[Path]:
    """The files to look for, the nearest first."""
    config = Path(environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config")
    return [Path("logio.toml"), config / "logio" / "connections.toml"]


@dataclass(frozen=True, slots=True)
class ConnectionFile:
    """URLs by connection id. Without a file there are none."""

    path: Path | None
    urls: Mapping[str, str]
    payloads: Mapping[str, str] = field(default_factory=dict)
    """Connection id of a log → its payload store."""

    @classmethod
    def find(cls, environment: Mapping[str, str], warn: Callable[[str], None]) -> ConnectionFile:
        """The first file that exists. Warns if others may read it. Raises `ConfigurationError` for an unreadable one."""
        for path in candidates(environment):
            if path.is_file():
                return cls.read(path, partial(_once, path, environment, warn))
        return cls(None, {})

    @classmethod
    def read(cls, path: Path, warn: Callable[[str], None]) -> ConnectionFile:
        try:
            content = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"connection file {path} cannot be read: {error}") from error
        urls, payloads = _section(path, content, "connections"), _section(path, content, "payloads")
        if (urls or payloads) and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            warn(f"{path} holds database URLs and may be read by others; protect it: chmod 600 {path}")
        for name in content:
            if name not in SECTIONS:
                warn(f"{path}: {name!r} is not used; the sections are {', '.join(f'[{one}]' for one in SECTIONS)}")
        return cls(path, urls, payloads)


def _once(path: Path, environment: Mapping[str, str], warn: Callable[[str], None], text: str) -> None:
    """Warn, but not with each command: again only if the file has changed since. Where that cannot be noted, each time."""
    home = Path(environment.get("HOME", "~")).expanduser()
    folder = Path(environment.get("XDG_STATE_HOME") or home / ".local" / "state") / "logio" / "warned"
    found = path.stat()
    note = folder / sha256(f"{path.resolve()} {found.st_mtime_ns} {found.st_mode}".encode()).hexdigest()[:32]
    if note.exists():
        return
    warn(text)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        note.touch()


def _section(path: Path, content: Mapping[str, Any], called: str) -> dict[str, str]:
    section = content.get(called, {})
    if not isinstance(section, dict):
        raise ConfigurationError(f"{path}: {called} must be a section, [{called}]")
    for name, url in section.items():
        if not isinstance(url, str):
            example = "postgresql://..." if called == "connections" else "s3://bucket/folder"
            raise ConfigurationError(f'{path}: connection {name!r} must be a text, {name} = "{example}"')
    return section


@dataclass(frozen=True, slots=True)
class ConnectionUrls:
    """Resolves connection ids to URLs."""

    environment: Mapping[str, str]
    file: ConnectionFile

    @classmethod
    def load(cls, warn: Callable[[str], None]) -> ConnectionUrls:
        known = cls(os.environ, ConnectionFile.find(os.environ, warn))
        for unknown in known.unknown_payloads():
            warn(unknown)
        return known

    def unknown_payloads(self) -> list[str]:
        """A sentence for each payload store whose log is not known: a payload store belongs to a log."""
        ids = {variable(conn_id): conn_id for conn_id in (LOG_CONNECTION, *self.file.urls)}
        ids |= {name: name for name in self.environment if name.startswith(CONNECTION) and name not in ids}
        logs = ", ".join(sorted(ids.values()))
        unknown = [
            f"payload store {conn_id!r} in section [payloads] of {self.file.path}"
            for conn_id in self.file.payloads
            if variable(conn_id) not in ids
        ]
        unknown += [
            name
            for name in sorted(self.environment)
            if name.startswith(f"{PAYLOADS}_") and CONNECTION + name.removeprefix(f"{PAYLOADS}_") not in ids
        ]
        return [f"{one} is not used: there is no log of that id, only {logs}" for one in unknown]

    def find(self, conn_id: str) -> str | None:
        names = (variable(conn_id), SHORT_NAMES.get(conn_id))
        found = next((self.environment[name] for name in names if name and self.environment.get(name)), None)
        url = found or self.file.urls.get(conn_id)
        return with_absolute_path(url) if url else None

    def get(self, conn_id: str) -> str:
        """Raises `ConfigurationError`, which says where to give the URL."""
        if "://" in conn_id:
            raise ConfigurationError(
                "a connection is named by its id: a URL on the command line would show its password to everyone who lists "
                f"processes. Set {variable('my_log')} to the URL, and give my_log"
            )
        if url := self.find(conn_id):
            return url
        names = " or ".join(filter(None, (variable(conn_id), SHORT_NAMES.get(conn_id))))
        where = self.file.path or " or ".join(str(path) for path in candidates(self.environment))
        raise ConfigurationError(
            f"connection {conn_id!r} is not known: set {names} to its URL (such as postgresql://user@host/name, "
            f"or sqlite:////folder/name.db), or add it to section [connections] of {where}"
        )

    def log_url(self, conn_id: str | None) -> str:
        """The URL of the log, by id. The default log is an SQLite file, whose folder is created here."""
        if conn_id is not None and conn_id != LOG_CONNECTION:
            return self.get(conn_id)
        return self.find(LOG_CONNECTION) or sqlite_url(DEFAULT_LOG)

    def payloads(self, conn_id: str | None) -> str | None:
        """The payload store of a log: as configured, else the default of an SQLite log; None if there is none.

        Raises `ConfigurationError`.
        """
        log = conn_id or LOG_CONNECTION
        names = (variable(log, PAYLOADS + "_"), PAYLOADS if log == LOG_CONNECTION else None)
        configured = next((self.environment[name] for name in names if name and self.environment.get(name)), None)
        configured = configured or self.file.payloads.get(log)
        if configured and "://" not in configured:
            configured = str(Path(configured).expanduser().absolute())
        return payload_root(self.log_url(conn_id), configured)


def variable(conn_id: str, prefix: str = CONNECTION) -> str:
    """The environment variable of a connection id."""
    return prefix + "".join(letter if letter.isalnum() else "_" for letter in conn_id).upper()
