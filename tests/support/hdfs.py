"""HDFS by its own daemons, each a process of its own: a NameNode and a DataNode of Hadoop's mini cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

from airflow_logio.launch.spark_submit import find_java
from tests.support.waiting import eventually
from tests.support.yarn_cluster import HEAP, LOG4J, MAINS, free_port, programs, site_xml

ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"
START_SECONDS = 300
"""A JVM on a busy machine."""
_BEANS = "Hadoop:service=NameNode,name="


@dataclass
class Hdfs:
    """`settings` are of the daemons, beside those that make them small and local."""

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    address: str = "127.0.0.1"
    ports: dict[str, int] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    # --- for who uses it ----------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"hdfs://{self.address}:{self.ports['namenode']}"

    @property
    def conf(self) -> Path:
        """Hadoop's settings, for clients."""
        return self.folder / "conf"

    def admin(self, *words: str) -> str:
        """What Hadoop's ``dfsadmin`` says."""
        done = subprocess.run(
            self._java(ADMIN, *words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            env=self._environment,
        )
        return done.stdout

    def block_files(self) -> list[Path]:
        """The DataNode's files of blocks that are whole."""
        return [file for file in self.folder.glob("blocks/**/finalized/**/blk_*") if file.suffix != ".meta"]

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for name in ("namenode", "namenode web"):
            self.ports.setdefault(name, free_port(self.address))
        self._write()
        command = self._java(MAINS["namenode"], "-format", "-nonInteractive")
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=self._environment)
        self.start_daemon("namenode")
        self.start_daemon("datanode")
        self.wait()

    def start_daemon(self, name: str) -> None:
        """`namenode` or `datanode`."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                self._java(MAINS[name]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        process = self.daemons.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def wait(self) -> None:
        """Until it takes files."""
        try:
            eventually(self._is_ready, what="HDFS takes files", timeout=START_SECONDS, every=0.2)
        except AssertionError as error:
            for log in sorted(self.folder.glob("*.log")):
                error.add_note(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
            raise

    def close(self) -> None:
        for name in list(self.daemons):
            self.kill(name)

    # --- daemons ------------------------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        for name, process in self.daemons.items():
            assert process.poll() is None, f"the {name} has ended"
        return bool(self._bean("FSNamesystemState").get("NumLiveDataNodes")) and not self._bean("NameNodeInfo").get(
            "Safemode", "unknown"
        )

    def _bean(self, name: str) -> dict[str, Any]:
        """What the NameNode says of itself; empty while it says nothing."""
        try:
            url = f"http://{self.address}:{self.ports['namenode web']}/jmx?qry={_BEANS}{name}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                [found] = json.load(answer)["beans"]
                return dict(found)
        except (OSError, HTTPException, ValueError, LookupError):
            return {}

    @property
    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return {**kept, "JAVA_HOME": str(_java_home()), "LC_ALL": "C.UTF-8"}

    def _java(self, main: str, *words: str) -> Sequence[str]:
        names = f"-Djdk.net.hosts.file={self.folder / 'hosts'}"
        java = str(_java_home() / "bin" / "java")
        scratch = f"-Djava.io.tmpdir={self.folder / 'java'}"
        return [java, *HEAP, names, scratch, "-cp", f"{self.conf}:{programs()}/*", main, *words]

    def _write(self) -> None:
        here, port = self.address, self.ports
        self.conf.mkdir(parents=True)
        (self.folder / "java").mkdir()
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.0.1 {os.uname().nodename}\n")
        (self.conf / "log4j.properties").write_text(LOG4J)
        (self.conf / "core-site.xml").write_text(
            site_xml({"fs.defaultFS": self.url, "hadoop.tmp.dir": self.folder / "tmp"})
        )
        own = {
            "dfs.namenode.name.dir": self.folder / "names",
            "dfs.datanode.data.dir": self.folder / "blocks",
            "dfs.replication": 1,
            "dfs.namenode.http-address": f"{here}:{port['namenode web']}",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": 0,
            "dfs.heartbeat.interval": 1,
            "dfs.datanode.hostname": here,
            **{f"dfs.datanode.{one}": f"{here}:0" for one in ("address", "http.address", "ipc.address")},
            **self.settings,
        }
        (self.conf / "hdfs-site.xml").write_text(site_xml(own))


def _java_home() -> Path:
    java = find_java()
    assert java is not None
    return Path(os.environ.get("JAVA_HOME") or java.resolve().parents[1])


@contextlib.contextmanager
def hdfs(folder: Path, settings: Mapping[str, Any] | None = None) -> Iterator[Hdfs]:
    """One that takes files; no process is left behind."""
    found = Hdfs(folder, settings or {})
    try:
        found.start()
        yield found
    finally:
        found.close()
