"""Processes that are stopped while they hold the write locks of SQLite files."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from tests.support.waiting import eventually

HOLDS_THE_LOCK = """
import os, signal, sqlite3, sys
sys.stdin.readline()
connections = [sqlite3.connect(path, isolation_level=None) for path in sys.argv[1:]]
for connection in connections:
    connection.execute("BEGIN IMMEDIATE")
print("holding", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


@contextmanager
def holder_of(*paths: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], None]]]:
    """A process, and a function that lets it begin to write to these files and stops it there."""
    command = [sys.executable, "-c", HOLDS_THE_LOCK, *paths]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:

        def hold() -> None:
            assert holder.stdin is not None and holder.stdout is not None
            holder.stdin.write("hold\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "holding\n"
            eventually(lambda: psutil.Process(holder.pid).status() == psutil.STATUS_STOPPED, what="it is stopped")

        try:
            yield holder, hold
        finally:
            holder.kill()
