"""YARN and HDFS by their own daemons, each a process of its own: a ResourceManager, NodeManagers, a NameNode, a DataNode.

Where namespaces can be had, each NodeManager is on a host of its own (`hosts.py`), which can be cut off and lose power.
Else all of them are on 127.0.0.1. The daemons are those of Hadoop's mini cluster, in the version of Spark's Hadoop client.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import psutil
import pyspark

from airflow_logio.launch.spark_settings import SparkSettings
from airflow_logio.launch.spark_submit import find_java
from tests.support.hosts import Host, network, why_not
from tests.support.maven import NotFetched, jars
from tests.support.waiting import eventually

HEAP = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
MAINS = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resourcemanager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "nodemanager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
NODES = ("east", "west")
SPARK_HOME = Path(pyspark.__file__).parent
NODE_EXPIRY_SECONDS = 30
"""Hadoop's default are ten minutes. A node that is late on a busy machine is not lost."""
DRIVER_MEGABYTES = 512 + 384
"""What a driver of `YarnCluster.settings` takes of a node: its heap, and what Spark adds at least."""
LOG4J = """log4j.rootLogger=WARN,c
log4j.appender.c=org.apache.log4j.ConsoleAppender
log4j.appender.c.layout=org.apache.log4j.PatternLayout
log4j.appender.c.layout.ConversionPattern=%d %p %c{1} %m%n
"""
Properties = Mapping[str, Any]
_PREEMPTION = "yarn.resourcemanager.monitor.capacity.preemption."
PREEMPTION: Properties = {
    "yarn.resourcemanager.scheduler.monitor.enable": "true",
    f"{_PREEMPTION}monitoring_interval": 500,
    f"{_PREEMPTION}max_wait_before_kill": 1000,
    f"{_PREEMPTION}total_preemption_per_round": 1.0,
    f"{_PREEMPTION}natural_termination_factor": 1.0,
    f"{_PREEMPTION}max_ignored_over_capacity": 0.0,
}


def programs() -> Path:
    """The folder with the daemons' jars. Raises `NotFetched`."""
    [client] = SPARK_HOME.glob("jars/hadoop-client-api-*.jar")
    version = re.sub(r"hadoop-client-api-(.*)\.jar", r"\1", client.name)
    castle = ("org.bouncycastle:bcprov-jdk18on:1.78.1", "org.bouncycastle:bcpkix-jdk18on:1.78.1")
    return jars(f"org.apache.hadoop:hadoop-client-minicluster:{version}", *castle, "org.slf4j:slf4j-reload4j:1.7.36")


def why_no_yarn() -> str | None:
    """Why this machine cannot have it, in words; None if it can. Fetches it, the first time."""
    try:
        programs()
    except NotFetched as error:
        return str(error)
    return None


@dataclass
class YarnCluster:
    """`address` is that of ResourceManager and HDFS."""

    folder: Path
    address: str
    hosts: Mapping[str, Host]
    """Node → its host; empty: the nodes are on `address`."""
    node_megabytes: int
    has_hdfs: bool
    queues: tuple[str, ...] = ("default",)
    """With equal shares of it. What one of several takes beyond its share is preempted when another one wants it."""
    ports: dict[str, int] = field(default_factory=dict)
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    # --- for who uses it ----------------------------------------------------------------------------------------------

    @property
    def conf(self) -> Path:
        """Hadoop's settings, for clients."""
        return self.folder / "conf"

    @property
    def url(self) -> str:
        """Of the ResourceManager's pages."""
        return f"http://{self.address}:{self.ports['web']}"

    def settings(self, conf: Mapping[str, str] | None = None, **more: Any) -> SparkSettings:
        """Of small drivers on it."""
        little = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {self._names}"
        ours = {
            "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
            "spark.yarn.stagingDir": self.staging,
            "spark.driver.extraJavaOptions": little,
            "spark.executor.extraJavaOptions": little,
            "spark.executor.instances": "1",
            "spark.ui.enabled": "false",
            **(conf or {}),
        }
        if self.has_hdfs:
            del ours["spark.yarn.stagingDir"]
        limits = {"driver_memory": "512m", "executor_memory": "512m", "executor_cores": 1}
        variables = {"HADOOP_CONF_DIR": str(self.conf)}
        return SparkSettings("yarn", "cluster", conf=ours, env_vars=variables, **{**limits, **more})

    @property
    def staging(self) -> str:
        return f"file://{self.folder}/staging"

    def ask(self, path: str) -> dict[str, Any]:
        """What the ResourceManager says; empty while it does not answer."""
        try:
            found: dict[str, Any] = json.loads(self._page(path))
            return found
        except (OSError, HTTPException, ValueError):
            return {}

    def _page(self, path: str) -> str:
        with urllib.request.urlopen(f"{self.url}/ws/v1/cluster{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def application(self, application_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ask(f"/apps/{application_id}").get("app", {})
        return found

    def is_living(self, application_id: str) -> bool:
        return self.application(application_id)["state"] not in ("FINISHED", "FAILED", "KILLED")

    def output(self, application_id: str) -> str:
        """All that its containers have printed."""
        files = sorted(self.folder.glob(f"*/logs/{application_id}/*/std*"))
        return "".join(f"--- {file.parent.name} {file.name}\n{file.read_text(errors='replace')}" for file in files)

    def processes(self, application_id: str) -> list[psutil.Process]:
        """Those that run in its containers, on whichever node."""
        mark = f"/appcache/{application_id}/"
        return [process for process in psutil.process_iter() if any(mark in text for text in _texts(process))]

    def attempts(self, application_id: str) -> dict[int, str]:
        """An application's attempts, by number → what is said of each."""
        path = f"/apps/{application_id}/appattempts"
        found = self.ask(path)["appAttempts"]["appAttempt"]
        return {one["id"]: self._page(f"{path}/{one['appAttemptId']}") for one in found}

    def node_of(self, application_id: str) -> str:
        """The node of its master's container."""
        where = self.application(application_id)["amHostHttpAddress"]
        [node] = [name for name in NODES if where == self._web_of(name)]
        return node

    def _web_of(self, node: str) -> str:
        return f"{node if self.hosts else 'localhost'}:{self.ports[f'{node} web']}"

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, *nodes: str) -> None:
        (self.folder / "etc").mkdir(parents=True)
        (self.folder / "java").mkdir()
        self._write_names()
        self._write(self.conf, {})
        if self.has_hdfs:
            command = [*self._java("namenode", self.conf), "-format", "-nonInteractive"]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=self._environment)
            self._start("namenode", self.conf)
            self._start("datanode", self.conf)
        self.start_resource_manager()
        for node in nodes:
            self.start_node(node)
        self.wait_for(*nodes)

    def start_resource_manager(self, more: Properties | None = None, *, recovers: bool = True) -> None:
        """`recovers`: with the applications that an earlier one has had. `more` are settings of its own."""
        conf = self.folder / "conf-resourcemanager"
        state = {
            "yarn.resourcemanager.recovery.enabled": str(recovers).lower(),
            "yarn.resourcemanager.store.class": (
                "org.apache.hadoop.yarn.server.resourcemanager.recovery.FileSystemRMStateStore"
            ),
            "yarn.resourcemanager.fs.state-store.uri": f"file://{self.folder}/state",
        }
        self._write(conf, {**state, **(more or {})})
        self._start("resourcemanager", conf)

    def kill_resource_manager(self) -> None:
        self._kill("resourcemanager")

    def start_node(self, node: str) -> None:
        conf, folder = self.folder / f"conf-{node}", self.folder / node
        folder.mkdir(exist_ok=True)
        address = self.hosts[node].address if self.hosts else self.address
        web = self.ports.setdefault(f"{node} web", free_port(self.address))
        own = {
            "yarn.nodemanager.hostname": address,
            "yarn.nodemanager.bind-host": address,
            "yarn.nodemanager.webapp.address": f"{address}:{web}",
            "yarn.nodemanager.localizer.address": f"{address}:0",
            "yarn.nodemanager.local-dirs": str(folder / "local"),
            "yarn.nodemanager.log-dirs": str(folder / "logs"),
            "hadoop.tmp.dir": str(folder / "tmp"),
        }
        self._write(conf, own)
        if not self.hosts:
            self._start(f"nodemanager-{node}", conf)
            return
        names = f"mount --bind {self.folder / 'etc' / 'hosts'} /etc/hosts"
        command = ["sh", "-c", f'{names} && exec "$@"', "sh", *self._java("nodemanager", conf)]
        self.hosts[node].run(command, self._environment, folder, self.folder / f"nodemanager-{node}.log")

    def kill_node(self, node: str) -> None:
        """The node and all that runs on it, as if it lost power."""
        if self.hosts:
            self.hosts[node].power_off()
            return
        self._kill(f"nodemanager-{node}")
        self._kill_below(self.folder / node)

    def return_node(self, node: str) -> None:
        """After `kill_node`."""
        if self.hosts:
            self.hosts[node].power_on()
        self.start_node(node)
        self.wait_for(node)

    def wait_for(self, *nodes: str) -> None:
        wanted = {self._web_of(node) for node in nodes}

        def are_there() -> bool:
            found = (self.ask("/nodes").get("nodes") or {}).get("node") or []
            return wanted <= {one["nodeHTTPAddress"] for one in found if one["state"] == "RUNNING"}

        try:
            eventually(are_there, what="the nodes register", timeout=400, every=0.3)
            if self.has_hdfs:
                eventually(self._has_datanode, what="HDFS has its DataNode", timeout=400, every=0.3)
        except AssertionError as error:
            for log in sorted(self.folder.glob("*.log")):
                error.add_note(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
            raise

    def close(self) -> None:
        for name in list(self.daemons):
            self._kill(name)
        self._kill_below(self.folder)

    # --- daemons ------------------------------------------------------------------------------------------------------

    @property
    def _environment(self) -> dict[str, str]:
        java = find_java()
        assert java is not None
        home = os.environ.get("JAVA_HOME") or str(java.resolve().parents[1])
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return {**kept, "JAVA_HOME": home, "LC_ALL": "C.UTF-8"}

    def _java(self, kind: str, conf: Path) -> list[str]:
        java = Path(self._environment["JAVA_HOME"]) / "bin" / "java"
        scratch = f"-Djava.io.tmpdir={self.folder / 'java'}"
        return [str(java), *HEAP, self._names, scratch, "-cp", f"{conf}:{programs()}/*", MAINS[kind]]

    @property
    def _names(self) -> str:
        """An option of JVMs: names come from this file alone, and no name server is waited for."""
        return f"-Djdk.net.hosts.file={self.folder / 'etc' / 'hosts'}"

    def _start(self, name: str, conf: Path) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                self._java(name.partition("-")[0], conf),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        process = self.daemons.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def _kill_below(self, folder: Path) -> None:
        """What a NodeManager has started outlives it."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if Path(process.cwd()).is_relative_to(folder) and process.pid != os.getpid():
                    process.kill()

    def _has_datanode(self) -> bool:
        bean = "Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            url = f"http://{self.address}:{self.ports['hdfs web']}/jmx?qry={bean}"
            with urllib.request.urlopen(url, timeout=10) as answer:
                return bool(json.load(answer)["beans"][0]["NumLiveDataNodes"])
        except (OSError, HTTPException, ValueError, LookupError):
            return False

    # --- settings -----------------------------------------------------------------------------------------------------

    def _write_names(self) -> None:
        lines = ["127.0.0.1 localhost", f"127.0.0.1 {socket.gethostname()}"]
        lines += [f"{host.address} {name}" for name, host in self.hosts.items()]
        if self.hosts:
            lines.append(f"{self.address} manager")
        (self.folder / "etc" / "hosts").write_text("\n".join(lines) + "\n")

    def _write(self, folder: Path, own: Properties) -> None:
        """The settings of one daemon: what is of all, and its own."""
        folder.mkdir(exist_ok=True)
        for name in ("client", "scheduler", "tracker", "admin", "web", "hdfs", "hdfs web"):
            self.ports.setdefault(name, free_port(self.address))
        here, port = self.address, self.ports
        core = {
            "fs.defaultFS": f"hdfs://{here}:{port['hdfs']}" if self.has_hdfs else "file:///",
            "hadoop.tmp.dir": self.folder / "tmp",
        }
        hdfs = {
            "dfs.namenode.name.dir": self.folder / "names",
            "dfs.datanode.data.dir": self.folder / "blocks",
            "dfs.replication": 1,
            "dfs.namenode.http-address": f"{here}:{port['hdfs web']}",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.datanode.hostname": here,
            **{f"dfs.datanode.{one}": f"{here}:0" for one in ("address", "http.address", "ipc.address")},
        }
        yarn = {
            "yarn.resourcemanager.hostname": here,
            "yarn.resourcemanager.address": f"{here}:{port['client']}",
            "yarn.resourcemanager.scheduler.address": f"{here}:{port['scheduler']}",
            "yarn.resourcemanager.resource-tracker.address": f"{here}:{port['tracker']}",
            "yarn.resourcemanager.admin.address": f"{here}:{port['admin']}",
            "yarn.resourcemanager.webapp.address": f"{here}:{port['web']}",
            "yarn.nm.liveness-monitor.expiry-interval-ms": NODE_EXPIRY_SECONDS * 1000,
            "yarn.nodemanager.resource.memory-mb": self.node_megabytes,
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 99.9,
            "yarn.nodemanager.disk-health-checker.min-free-space-per-disk-mb": 0,
            "yarn.nodemanager.sleep-delay-before-sigkill.ms": 250,
            "yarn.scheduler.minimum-allocation-mb": 128,
            "yarn.node-labels.fs-store.root-dir": f"file://{self.folder}/tmp/node-labels",
            "yarn.node-attribute.fs-store.root-dir": f"file://{self.folder}/tmp/node-attributes",
            "yarn.resourcemanager.connect.max-wait.ms": 20000,
            "yarn.resourcemanager.connect.retry-interval.ms": 1000,
            "yarn.nodemanager.resourcemanager.connect.max-wait.ms": 900_000,  # else a node ends its containers, and itself
            **(PREEMPTION if len(self.queues) > 1 else {}),
        }
        capacity = {
            "yarn.scheduler.capacity.root.queues": ",".join(self.queues),
            "yarn.scheduler.capacity.maximum-am-resource-percent": 1,
            "yarn.scheduler.capacity.root.acl_administer_queue": " ",
        }
        for queue in self.queues:
            own_share = {
                "capacity": 100 / len(self.queues),
                "maximum-capacity": 100,
                "user-limit-factor": len(self.queues),
                "acl_administer_queue": " ",
            }
            capacity |= {f"yarn.scheduler.capacity.root.{queue}.{name}": value for name, value in own_share.items()}
        files = {"core": {**core, **own}, "hdfs": hdfs, "yarn": {**yarn, **own}, "capacity-scheduler": capacity}
        for name, properties in files.items():
            file = folder / (f"{name}-site.xml" if name != "capacity-scheduler" else f"{name}.xml")
            file.write_text(site_xml(properties))
        (folder / "log4j.properties").write_text(LOG4J)


def _texts(process: psutil.Process) -> Iterator[str]:
    """Where a process works, as far as this one may know, and its command."""
    with contextlib.suppress(psutil.Error, OSError):
        yield " ".join(process.cmdline())
    with contextlib.suppress(psutil.Error, OSError):
        yield process.cwd()


def site_xml(properties: Properties) -> str:
    lines = [
        f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
        for name, value in properties.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>\n"])


def free_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def yarn_cluster(
    folder: Path,
    nodes: tuple[str, ...] = NODES,
    *,
    node_megabytes: int = 2 * DRIVER_MEGABYTES,
    on_hosts: bool = True,
    hdfs: bool = True,
    queues: tuple[str, ...] = ("default",),
) -> Iterator[YarnCluster]:
    """One that is ready; no process is left behind."""
    with contextlib.ExitStack() as stack:
        hosts: Mapping[str, Host] = {}
        address = "127.0.0.1"
        if on_hosts and why_not() is None:
            net = stack.enter_context(network(*nodes))
            hosts, address = net.hosts, net.address
        cluster = YarnCluster(folder, address, hosts, node_megabytes, hdfs, queues)
        try:
            cluster.start(*nodes)
            yield cluster
        finally:
            cluster.close()
