"""What is dead is ended, whether or not anybody has waited for it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

from airflow_logio.launch import driver_folders, processes

PARENT = """
import subprocess, time
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""


def test_a_dead_process_that_its_parent_has_not_waited_for_holds_nobody_up() -> None:
    """As in a container without an init process, when the terminal that started a driver is gone."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            identity = processes.identity_of(pid)
            assert identity is not None
            begun = time.monotonic()
            assert processes.end(identity, timeout=120)
            assert time.monotonic() - begun < 60
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        finally:
            parent.kill()


def test_an_unknown_driver_that_its_parent_has_not_waited_for_delays_nothing(tmp_path: Path) -> None:
    """As in a container without an init process, or where the parent is stopped."""
    driver = tmp_path / processes.APPLICATION.name
    driver.write_text(PARENT)
    parents = PARENT.replace('"sleep", "600"]', f"{sys.executable!r}, {str(driver)!r}], cwd={str(tmp_path)!r}")
    with subprocess.Popen([sys.executable, "-c", parents], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pids = {int(parent.stdout.readline()) for _ in range(2)}
            (own,) = (child.pid for child in psutil.Process(parent.pid).children())
            begun = time.monotonic()
            assert driver_folders.end_under(tmp_path, timeout=120) == 1
            assert time.monotonic() - begun < 60
            assert psutil.Process(own).status() == psutil.STATUS_ZOMBIE
            psutil.Process(*pids - {own}).kill()
        finally:
            parent.kill()
