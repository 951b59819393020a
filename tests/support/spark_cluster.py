"""A Spark standalone master with workers, each a process of its own, on this machine; killed and watched by tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil

from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.spark_submit import environment, find_spark_submit
from demo.standalone import free_port
from tests.support.hosts import Host, Network
from tests.support.waiting import eventually

HERE = "127.0.0.1"
HOSTS = (HERE, "localhost")
"""Two names of this machine: Spark takes them for two hosts, and runs no second copy of a task on the host of the first."""
LITTLE = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass
class Cluster:
    """A master, and the workers that were started."""

    folder: Path
    port: int
    ui_port: int
    rest_port: int
    """Where the master takes drivers."""
    hosts: Mapping[str, Host] = field(default_factory=dict)
    """Those on which workers are, if not on this machine."""
    address: str = HERE
    """Where this machine is, for the workers."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """More variables of the master, the workers, and what these start."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Properties of the master and the workers."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    workers: dict[str, psutil.Process] = field(default_factory=dict)
    """Host → the process of its worker."""
    master: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"spark://{self.address}:{self.port}"

    @property
    def rest(self) -> str:
        return f"http://{self.address}:{self.rest_port}"

    def settings(self, conf: Mapping[str, str], **more: Any) -> SparkSettings:
        """Of drivers that use it, one core for each executor; `more` goes to `SparkSettings`."""
        ours = {
            "spark.driver.host": HERE,
            "spark.ui.enabled": "false",
            "spark.executor.extraJavaOptions": LITTLE,
            "spark.driver.extraJavaOptions": LITTLE,
        }
        variables = {"PYTHONPATH": str(Path(__file__).parents[2]), "SPARK_LOCAL_IP": HERE}
        limits = {"executor_memory": "512m", "executor_cores": 1, "env_vars": variables, **more}
        return SparkSettings(self.url, conf={**ours, **conf}, **limits)

    # --- what it shows ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What the page of the master shows; empty while it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:{self.ui_port}/json/", timeout=10) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except (OSError, HTTPException, ValueError):  # it begins, or is cut short
            return {}

    def running(self) -> list[str]:
        """The applications that run."""
        silent = [{"id": "the master does not answer"}]
        return [application["id"] for application in self.state().get("activeapps", silent)]

    def executors(self, host: str | None = None) -> list[psutil.Process]:
        """Those of the worker of a host, or of all."""
        found = []
        for worker in self.workers.values() if host is None else [self.workers[host]]:
            for process in _descendants(worker):
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    if "CoarseGrainedExecutor" in " ".join(process.cmdline()):
                        found.append(process)
        return found

    def host_of(self, pid: int) -> str:
        """The host whose worker has started a process, or an ancestor of it."""
        [host] = [host for host, worker in self.workers.items() if pid in {one.pid for one in _descendants(worker)}]
        return host

    # --- life ---------------------------------------------------------------------------------------------------------

    def start_master(self, *, recovers: bool = False) -> None:
        """Start the master, which is not there; `recovers`: it keeps in files what it must know after a restart."""
        options = {"spark.master.rest.enabled": "true", "spark.master.rest.port": str(self.rest_port)}
        if recovers:
            kept = self.folder / "recovery"
            options |= {"spark.deploy.recoveryMode": "FILESYSTEM", "spark.deploy.recoveryDirectory": str(kept)}
        ports = ("--port", str(self.port), "--webui-port", str(self.ui_port), "--host", self.address)
        self.master = self._start("master.Master", "master.Master", *ports, options=options)

    def kill_master(self) -> None:
        """`kill -9` of the master alone."""
        assert self.master is not None
        self.master.kill()
        self.master.wait()

    def start_worker(self, host: str, cores: int, memory: str) -> None:
        """Start the worker of a host, which has none."""
        limits: tuple[str, ...] = ("--cores", str(cores), "--memory", memory, "--webui-port", "0")
        on = self.hosts.get(host)
        limits = (*limits, "--host", host if on is None else on.address)
        process = self._start(f"worker.Worker-{host}", "worker.Worker", self.url, *limits, on=on)
        self.workers[host] = psutil.Process(process.pid)

    def wait_for_workers(self) -> None:
        """All that were started have registered."""
        try:
            registered = lambda: self.state().get("aliveworkers") == len(self.workers)  # noqa: E731
            eventually(registered, what="the workers register", timeout=240, every=0.1)
        except AssertionError as error:
            for log in sorted(self.folder.glob("*.log")):
                error.add_note(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
            raise

    def kill_worker(self, host: str) -> None:
        """`kill -9` of a worker, its executors and their processes of Python, all at once."""
        worker = self.workers[host]
        victims = [worker, *_descendants(worker)]
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()

    def close(self) -> None:
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it could not begin
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            process.wait()

    def _start(
        self, name: str, kind: str, *arguments: str, on: Host | None = None, options: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        command = [
            str(Path(find_spark_submit(None, environment(SparkSettings()))).with_name("spark-class")),
            f"org.apache.spark.deploy.{kind}",
            *arguments,
        ]
        said = " ".join(f"-D{key}={value}" for key, value in {**self.properties, **(options or {})}.items())
        variables = environment(SparkSettings()) | {
            "SPARK_LOCAL_IP": self.address if on is None else on.address,
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": f"{LITTLE} {said}",
            "SPARK_WORKER_DIR": str(self.folder / "worker"),
            **self.variables,
        }
        log = self.folder / f"{name}.log"
        if on is not None:
            on.run(command, variables, self.folder, log)
            return on.started[-1]
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=variables,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


@contextlib.contextmanager
def spark_cluster(
    folder: Path,
    hosts: tuple[str, ...] = HOSTS,
    *,
    cores: int,
    memory: str,
    variables: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    on: Network | None = None,
    recovers: bool = False,
) -> Iterator[Cluster]:
    """A master, and a worker of so many cores and so much memory on each of the hosts, perhaps still starting; no process is
    left behind. `variables` and `properties` are of each process; `on`: the hosts are those of that network; `recovers`: as
    in `Cluster.start_master`.
    """
    cluster = Cluster(
        folder, free_port(), free_port(), free_port(), variables=variables or {}, properties=properties or {}
    )
    if on is not None:
        cluster.hosts, cluster.address = on.hosts, on.address
    try:
        cluster.start_master(recovers=recovers)
        for host in hosts:
            cluster.start_worker(host, cores, memory)
        yield cluster
    finally:
        cluster.close()


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        found: list[psutil.Process] = process.children(recursive=True)
        return found
    return []
