"""What the job and the cluster are told. Where this is not Flink's default, the reason stands beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.bench.paper.scaled import Scaled
from tests.bench.paper.series import Shape

OPENED = ("lang", "lang.reflect", "net", "io", "nio", "text", "time", "util", "util.concurrent")
"""Packages of Java that Flink's own start scripts open, as far as this job needs them."""
JVM = (
    "-XX:+UseSerialGC",  # a process has one operator and few objects; two cores are shared by eight processes
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",  # it would leave files in /tmp
    "-Dlog4j2.disable.jmx=true",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
HEAP_MB = 320
LOGGED = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %-5p %c{1} - %m%n
"""


def operators(shape: str) -> tuple[str, ...]:
    """Each has a process of its own; OP3 has two in use case 3. As files of `Marks` are named."""
    if shape == Shape.REPLICAS:
        return ("op1.0", "op2.0", "op3.0", "op3.1", "op4.0", "op5.0", "end.0")
    return ("op1.0", "op2.0", "op3.0", "op4.0", "end.0")


def job(wanted: Scaled, failures: int, marks: Path, warehouse: str) -> str:
    """A file of properties for `Settings`."""
    settings = {
        **wanted.as_json(),
        "points": ",".join(map(str, wanted.points[:failures])),
        "folder": marks,
        "warehouse": jdbc(warehouse),
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


def jdbc(warehouse: str) -> str:
    """Its URL, for Java."""
    return f"jdbc:{warehouse.replace('postgres@', '')}?user=postgres"


def processes(folder: Path, port: int) -> dict[str, object]:
    """Of any cluster here: where its processes are, their memory, and checkpoints, aligned and exactly once."""
    return {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.rpc.port": port,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.bind-port": "0",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.numberOfTaskSlots": 1,
        # Without the start scripts, a TaskManager must be told what they compute.
        "taskmanager.cpu.cores": 1.0,
        "taskmanager.memory.framework.heap.size": "128m",
        "taskmanager.memory.task.heap.size": f"{HEAP_MB - 128}m",
        "taskmanager.memory.framework.off-heap.size": "64m",
        "taskmanager.memory.task.off-heap.size": "0m",
        "taskmanager.memory.managed.size": "0m",
        "taskmanager.memory.network.min": "64m",
        "taskmanager.memory.network.max": "64m",
        "taskmanager.memory.jvm-metaspace.size": "128m",
        "taskmanager.memory.jvm-overhead.min": "64m",
        "taskmanager.memory.jvm-overhead.max": "64m",
        "io.tmp.dirs": folder / "tmp",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.unaligned.enabled": "false",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": f"file://{folder / 'checkpoints'}",
    }


def lines(settings: Mapping[str, object]) -> str:
    """As config.yaml has them."""
    return "".join(f"{name}: {value}\n" for name, value in settings.items())


def cluster(wanted: Scaled, folder: Path, port: int) -> str:
    """config.yaml, of all processes of the paper's job."""
    settings = {
        **processes(folder, port),
        "execution.checkpointing.interval": f"{max(1, round(wanted.snapshot_seconds * 1e3))} ms",
        # The paper's epochs begin by the clock of the source, whether the last snapshot is complete or not. Flink would wait
        # for it, so for all that OP3 has before it: fewer snapshots, and more to do again after a failure.
        "execution.checkpointing.max-concurrent-checkpoints": 1_000,
        # Events are few: each goes at once, not after 100 ms.
        "execution.buffer-timeout.interval": "0 ms",
        # A resource manager sees that a process has ended. Here heartbeats do, as soon as the supervisor of LOG.io does.
        "heartbeat.interval": "250 ms",
        "heartbeat.rpc-failure-threshold": 2,
    }
    return lines(settings)
