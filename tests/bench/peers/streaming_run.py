"""A run of Structured Streaming, in a process of its own with `local[2]`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.bench.peers.work import TABLE, Work
from tests.bench.throughput import WrongResult

SCRIPT = Path(__file__).with_name("streaming_script.py")
CONF = {
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    # Its default, 200 tasks for a few hundred rows, would be unfair: two cores, two tasks.
    "spark.sql.shuffle.partitions": "2",
    # All of them say when their micro-batch began.
    "spark.sql.streaming.numRecentProgressUpdates": "1000000",
}
LONG = 3_600.0


def run_streaming(size: int, work: Work, folder: Path, reads: Path, warehouse: str) -> None:
    """Micro-batches of `size` records. Raises `WrongResult`."""
    config = folder / "streaming.json"
    wanted = {
        "records": str(work.batches(size)),
        "warm": str(work.warm),
        "size": size,
        "reads": str(reads),
        "table": TABLE,
        "warehouse": warehouse,
        "checkpoint": str(folder / "checkpoint"),
        "conf": {**CONF, "spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "spark")},
    }
    config.write_text(json.dumps(wanted))
    command = [sys.executable, str(SCRIPT), str(config)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONG, check=False)
    if done.returncode:
        raise WrongResult(f"the script of Structured Streaming has failed: {done.stderr[-2_000:]}")
