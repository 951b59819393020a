"""A terminal with `logio run` is killed, with its drivers or without: what is said, and that `logio retry` continues."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_logio.cli.connection_file import DEFAULT_LOG
from airflow_logio.errors import LogioError
from airflow_logio.launch.driver_folders import end_under, processes_under
from airflow_logio.protocol.states import GroupState
from airflow_logio.status.condition import LEFT_SECONDS
from airflow_logio.store import open_store
from tests.acceptance.test_logio_run import SALES, folder, is_exact, started
from tests.support.waiting import eventually

__all__ = ["folder"]  # a fixture

pytestmark = [pytest.mark.acceptance, pytest.mark.spark]

PATIENCE = LEFT_SECONDS + 60
LOOK_SECONDS = 5.0
"""Each look is a command, which starts with a second of CPU; the answer changes after `LEFT_SECONDS`."""


def said(folder: Path, *arguments: str) -> str:
    command = started(folder, *arguments)
    printed, _ = command.communicate(timeout=240)
    assert command.returncode == 0, printed
    return printed


def condition(folder: Path) -> tuple[str, str, set[str]]:
    """Of the only run: its condition, the next step, the states of its groups."""
    (found,) = json.loads(said(folder, "status", "--json"))
    return found["condition"], found["next_step"], {group["state"] for group in found["groups"].values()}


def typed(step: str) -> list[str]:
    """The command in a sentence, as a person types it."""
    program, *arguments = step.split("`")[1].split()
    assert program == "logio"
    return arguments


@pytest.fixture
def terminal(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """All four drivers work. Asks the log, not `logio status`, which starts for seconds on a machine with much to do."""
    run = started(folder, "run", SALES, "--param", "transactions=transactions.parquet", "--run-id", "mine")
    try:
        eventually(lambda: all_run(folder / DEFAULT_LOG), what="its drivers run", timeout=240, every=0.1)
        yield run
    finally:
        if run.poll() is None:
            run.kill()
            run.communicate()


def all_run(log: Path) -> bool:
    if not log.exists():
        return False
    try:
        store = open_store(f"sqlite:///{log}", application="logio test")
    except LogioError:  # its tables are being made
        return False
    try:
        states = {status.state for run in store.list_runs() for status in store.groups(run.run_id)}
    finally:
        store.dispose()
    return GroupState.RUNNING in states and states <= {GroupState.RUNNING, GroupState.FINISHED}


def test_a_run_that_was_killed_with_its_drivers_goes_on_as_status_says(
    folder: Path, terminal: subprocess.Popen[str]
) -> None:
    terminal.kill()
    terminal.communicate()
    eventually(lambda: end_under(folder) == 0, what="its drivers are gone, and those that spark-submit was starting")
    eventually(
        lambda: condition(folder)[0] == "waiting for a person",
        what="no process runs it",
        timeout=PATIENCE,
        every=LOOK_SECONDS,
    )
    _, step, states = condition(folder)
    assert "running" in states and "no process supervises this run" in said(folder, "status", "mine")
    printed = said(folder, *typed(step))
    assert "is dead: the driver's process" in printed
    assert condition(folder) == ("finished", "", {"finished"})
    assert is_exact(folder)
    assert processes_under(folder) == []


def test_a_run_whose_terminal_was_killed_finishes_its_groups_and_then_waits(
    folder: Path, terminal: subprocess.Popen[str]
) -> None:
    terminal.kill()
    terminal.communicate()
    eventually(lambda: condition(folder)[2] == {"finished"}, what="its drivers continue by themselves", timeout=200)
    eventually(
        lambda: condition(folder)[0] == "waiting for a person",
        what="no process finishes it",
        timeout=PATIENCE,
        every=LOOK_SECONDS,
    )
    said(folder, *typed(condition(folder)[1]))
    assert condition(folder) == ("finished", "", {"finished"})
    assert is_exact(folder)
