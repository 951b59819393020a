"""The baseline: a process per operator over plain sockets. Ended if it lasts too long."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.bench.paper.logged_run import paper_pipeline
from tests.bench.paper.processes import names_of
from tests.bench.throughput import WrongResult
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[3]
START_SECONDS = 60.0


def run_plain(marks: Path, warehouse: str, limit: float) -> None:
    """All processes are up before the source begins. `limit`: seconds. Raises `WrongResult`."""
    pipeline, _ = paper_pipeline()
    names = names_of(pipeline)
    command = [sys.executable, "-m", "tests.bench.paper.plain_process", str(marks)]
    started = [subprocess.Popen([*command, name, warehouse], cwd=ROOT) for name in names]
    try:
        ready = [marks / f"{name}.ready" for name in names]
        eventually(lambda: all(file.is_file() for file in ready), what="all processes are up", timeout=START_SECONDS)
        (marks / "go").touch()
        deadline = time.monotonic() + limit
        codes = [process.wait(max(0.0, deadline - time.monotonic())) for process in started]
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise WrongResult(str(error)) from error
    finally:
        for process in started:
            process.kill()
            process.wait()
    if any(codes):
        raise WrongResult(f"processes of the baseline have ended with {codes}")
