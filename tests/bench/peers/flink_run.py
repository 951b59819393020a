"""A run on Flink: one TaskManager with one slot, aligned checkpoints, exactly once."""

from __future__ import annotations

from pathlib import Path

from demo.standalone import free_port
from tests.bench.paper import flink_settings
from tests.bench.paper.flink_cluster import FlinkCluster, Program
from tests.bench.peers.work import TABLE, WINDOW_RECORDS, Work

HEAP_MB = 1_024
CHECKPOINT_MS = 1_000
"""Rows are written when a checkpoint is complete: the last one comes as soon as all records are read."""
FAST = ("-XX:+UseParallelGC", *(one for one in flink_settings.JVM if "GC" not in one and "Tiered" not in one))
"""Here the JVM compiles as well as it can: processes are few, and throughput is what counts."""
PROGRAM = Program("peers.PeerJob", Path(__file__).with_name("flink"), HEAP_MB, FAST)
LIMIT_SECONDS = 1_800.0


def run_flink(work: Work, folder: Path, reads: Path, warehouse: str) -> None:
    """Raises `WrongResult`, and `NoFlink` where it cannot be had."""
    flink = folder / "flink"
    flink.mkdir()
    (flink / "config.yaml").write_text(_settings(flink))
    (flink / "log4j.properties").write_text(flink_settings.LOGGED)
    (flink / "job.properties").write_text(job(work, reads, warehouse))
    cluster = FlinkCluster(flink, 1, PROGRAM)
    try:
        cluster.watch(LIMIT_SECONDS, lambda: None)
    finally:
        cluster.close()


def job(work: Work, reads: Path, warehouse: str) -> str:
    """A file of properties for `Settings`."""
    settings = {
        "file": work.binary,
        "records": work.records,
        "window_records": WINDOW_RECORDS,
        "reads": reads,
        "warehouse": flink_settings.jdbc(warehouse),
        "table": TABLE,
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())


def _settings(folder: Path) -> str:
    """Those of the paper's bench, which say where processes and files are, and what is other here."""
    other = {
        "taskmanager.cpu.cores": 2.0,
        "taskmanager.memory.task.heap.size": f"{HEAP_MB - 128}m",
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        # Nothing is made to fail: what fails ends the job, and says why.
        "restart-strategy.type": "none",
        # Functions here keep no record that they were given.
        "pipeline.object-reuse": "true",
    }
    return flink_settings.lines({**flink_settings.processes(folder, free_port()), **other})
