"""How many files of the package a reader passes with one event, and with one failure: counted in real processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from airflow_logio.launch.bundle import load, parse_ref
from airflow_logio.launch.code_bundle import collect
from airflow_logio.launch.driver_config import Launch
from airflow_logio.launch.launcher import LaunchContext, Launched, LocalProcessLauncher
from airflow_logio.launch.start_run import run_spec
from airflow_logio.store import open_store
from airflow_logio.store.records.driver_records import Claim
from airflow_logio.store.records.status_records import GroupStatus
from airflow_logio.supervision import local_run
from airflow_logio.supervision.local_run import LocalRun
from tests.support.bundle import one_by_one
from tests.support.tracing import TracedProcesses, threads_traced
from tests.support.waiting import eventually

pytestmark = [pytest.mark.acceptance]

MOST_FILES = 35


def unfinished(log: Path) -> int:
    """Rows of events and write actions in the log that are not marked done."""
    with sqlite3.connect(f"file:{log}?mode=ro", uri=True) as connection:
        (count,) = connection.execute("SELECT count(*) FROM logio_event_log WHERE status = 'undone'").fetchone()
    return int(count)


def test_an_event_of_the_plain_pipeline_passes_at_most_35_files(tmp_path: Path) -> None:
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


STEADY = parse_ref(f"{Path(__file__).parents[1] / 'support' / 'bundle' / 'steady.py'}:steady")
NEVER = 1e9


def test_a_failure_passes_at_most_20_files_in_the_supervisor(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the `kill -9` of a plain Python driver to the start of the next one, in the loop of `logio run`, on SQLite.

    Counted is every file with a function that a thread of the supervisor calls meanwhile. What it does every few seconds,
    failure or not, does not count: the note that it is there, and the progress that it shows.
    """
    monkeypatch.setattr(local_run, "_NOTE_SECONDS", NEVER)
    warehouse = {"warehouse": f"sqlite:///{tmp_path / 'warehouse.db'}"}
    pipeline, code = load(STEADY), collect(STEADY)
    named: dict[str, Any] = {
        "dag_id": "tests",
        "dag_run_id": "run",
        "params": {},
        "connections": {"warehouse": "warehouse"},
    }
    store = open_store(sqlite_url)
    run = store.start_run(run_spec(pipeline, STEADY, code=code, **named), code=code.kept())

    def status() -> GroupStatus:
        return store.group(run.run_id, "count")

    with threads_traced() as entered:

        class Launcher(LocalProcessLauncher):
            def launch(self, claim: Claim, launch: Launch) -> Launched:
                launched = super().launch(claim, launch)
                entered.is_listening = False
                return launched

        context = LaunchContext(store, sqlite_url, run, pipeline, STEADY, warehouse, Launcher(tmp_path / "drivers"))
        supervisor = LocalRun(context, snapshot_every=NEVER)
        thread = threading.Thread(target=supervisor.run)
        thread.start()
        try:
            eventually(lambda: status().commits, what="its first driver commits", timeout=120)
            identity = status().identity
            assert identity is not None and identity.pid is not None
            entered.is_listening = True
            os.kill(identity.pid, signal.SIGKILL)
            eventually(lambda: not entered.is_listening, what="its next driver is started", timeout=60)
        finally:
            supervisor.halt()
            supervisor.halt()
            thread.join(60)
            store.dispose()
    assert status().incarnation == 2
    passed = sorted(entered.threads)
    assert "supervision/look.py" in passed
    assert len(passed) <= 20, "\n".join([f"{len(passed)} files:", *passed])
