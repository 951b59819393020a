"""How many files of the package a reader passes with one event: counted in real drivers, and bounded."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bundle import one_by_one
from tests.support.tracing import TracedProcesses
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance]

MOST_FILES = 58


def unfinished(log: Path) -> int:
    """Rows of events and write actions in the log that are not marked done."""
    with sqlite3.connect(f"file:{log}?mode=ro", uri=True) as connection:
        (count,) = connection.execute("SELECT count(*) FROM logio_event_log WHERE status = 'undone'").fetchone()
    return int(count)


def test_an_event_of_the_plain_pipeline_passes_at_most_58_files(tmp_path: Path) -> None:
    """From its read to the mark of its write, in three drivers that `logio run` has started, on SQLite.

    Counted is every file with a function that any thread of a driver calls meanwhile, once for all drivers. Start-up does not
    count: five events have passed before. Nor do threads that live as long as the driver (heartbeat, rotation and sending of
    what it prints, guard of calls): they begin before the pipeline is loaded. No garbage is collected meanwhile.
    """
    folder, files = tmp_path / "trace", tmp_path / "files"
    folder.mkdir()
    files.mkdir()
    variables = {
        one_by_one.FOLDER: str(folder),
        one_by_one.REPOSITORY: str(Path(__file__).parents[2]),
        "LOGIO_CONN_FILES": f"file://{files}",
    }
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_URL")} | variables
    command = [sys.executable, "-m", "airflow_logio.cli", "run", f"{one_by_one.__file__}:pipeline"]

    def has_passed(events: int) -> bool:
        return len(list(files.iterdir())) == events and not unfinished(tmp_path / ".logio" / "logio.db")

    with (tmp_path / "printed").open("w") as printed:
        run = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=printed, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: has_passed(one_by_one.BEFORE), what="the events before it", timeout=120)
        drivers = TracedProcesses(folder, *one_by_one.GROUPS)
        drivers.begin()
        one_by_one.let_go(folder, one_by_one.BEFORE)
        eventually(lambda: has_passed(one_by_one.BEFORE + 1), what="the event", timeout=60)
        entered = drivers.end()
        one_by_one.let_go(folder, one_by_one.BEFORE + 1)
        assert run.wait(timeout=120) == 0, (tmp_path / "printed").read_text()
    finally:
        run.kill()
        run.wait()
    passed = sorted({file for of_driver in entered.values() for file in of_driver})
    assert len(passed) <= MOST_FILES, "\n".join([f"{len(passed)} files:", *passed])
