"""Drivers as a cluster manager starts them: with arguments, in a folder of the manager's, and a file of the node. No JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from airflow_logio.crash import VARIABLE
from airflow_logio.launch.driver_arguments import CONNECTIONS_VARIABLE, DriverArguments
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import Launched, Launcher
from airflow_logio.launch.processes import APPLICATION
from airflow_logio.store.records.driver_records import Claim, Submission
from tests.support.running import Armed

ROOT = Path(__file__).parents[2]


@dataclass
class Node:
    """One machine; `folder` is the manager's. What it says to drivers is in a file of mode 0600; its variable may name
    another one."""

    folder: Path
    says: Mapping[str, object]
    named: str | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "connections.json"

    def write_file(self, content: str | None = None) -> None:
        self.file.touch(0o600)
        self.file.write_text(json.dumps(self.says) if content is None else content)

    def start(self, words: Sequence[str], **environment: str) -> NodeProcess:
        """Start a driver as a worker of a standalone cluster does."""
        place = self.folder / f"driver-20261130120000-{len(self.started):04d}"
        place.mkdir()
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ}
        with (place / "stdout").open("wb") as output:
            started = subprocess.Popen(
                [sys.executable, str(APPLICATION), *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=inherited
                | {"PYTHONPATH": str(ROOT), CONNECTIONS_VARIABLE: self.named or str(self.file)}
                | environment,
                cwd=place,
                close_fds=True,
                start_new_session=True,
            )
        self.started.append(started)
        return NodeProcess(started, place)

    def close(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class NodeProcess:
    process: subprocess.Popen[bytes]
    place: Path

    @property
    def output(self) -> str:
        """What the manager keeps of it."""
        return (self.place / "stdout").read_text()

    def wait(self, timeout: float = 120) -> int:
        return self.process.wait(timeout)


@dataclass
class NodeLauncher(Launcher):
    """Every driver is one of the node."""

    node: Node
    armed: Armed = field(default_factory=dict)
    drivers: dict[tuple[str, int], NodeProcess] = field(default_factory=dict)
    """(group, incarnation) → its process."""
    is_off: bool = False
    """The manager accepts drivers, and starts none."""

    def launch(self, claim: Claim, launch: Launch) -> Launched:
        if not self.is_off:
            driver = (claim.group, claim.incarnation)
            more = {VARIABLE: self.armed[driver]} if driver in self.armed else {}
            self.drivers[driver] = self.node.start(words_of(claim, launch.conf), **more)
        return Launched(None, None)


def words_of(claim: Claim, conf: Mapping[str, str]) -> list[str]:
    name = f"logio-{claim.run_uid[:8]}-{claim.group}-{claim.incarnation}-0f0f0f"
    return DriverArguments.of(claim, Submission("standalone", "http://127.0.0.1:1", name), conf).words()
