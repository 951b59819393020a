"""A process that has imported what a driver imports, and forks one driver for every request: a start in milliseconds.

What it forks is a process like any other: with its own pid, start time and session, with exactly the environment, working
directory, command line and output file that it is to have, and it dies alone. Nothing is shared that two drivers could
meet in: the server has one thread, no connection and no file but its socket. It reaps nothing of its own accord, so that a
dead driver is a zombie until it is asked about, as with `subprocess`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil

MANY = 4_096
"""More files than the server has open."""
ROOM = 2_000
"""Bytes for the command line of what is forked: it is written over that of the server."""

MODULES = (
    "alembic.config",
    "psycopg2.extras",
    "pyarrow.acero",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "airflow_logio.runtime.driver.incarnation",
    "airflow_logio.runtime.driver.process",
    "airflow_logio.store.sql.store",  # 40 modules, which a driver imports when it opens its log
    "tests.support.impatient",
    "tests.support.slow_driver",
    "tests.support.waiting_driver",
)
"""What a driver imports, wherever it does."""


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    _warm()
    gc.collect()
    gc.freeze()
    with channel, channel.makefile("rw") as lines:
        for line in lines:
            request = json.loads(line)
            answer = _fork(request) if "argv" in request else _ask(request["pid"])
            lines.write(f"{json.dumps(answer)}\n")
            lines.flush()


def _warm() -> None:
    for module in MODULES:
        importlib.import_module(module)
    threads = psutil.Process().num_threads()
    assert threads == 1, f"a process of {threads} threads must not fork"


_ended: dict[int, int] = {}
"""Exit codes: the system tells each of them once, and two threads may ask."""


def _ask(pid: int) -> int | None:
    """The exit code of a process that was forked here, negative for a signal; None while it runs."""
    if pid not in _ended:
        found, status = os.waitpid(pid, os.WNOHANG)
        if not found:
            return None
        _ended[pid] = os.waitstatus_to_exitcode(status)
    return _ended[pid]


def _fork(request: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        _ended.pop(pid, None)  # of an earlier process with that number
        return pid
    try:
        _become(**request)
        runpy.run_path(sys.argv[0], run_name="__main__")
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def _become(argv: list[str], environment: dict[str, str], folder: str, output: str) -> None:
    os.setsid()
    os.chdir(folder)
    os.closerange(3, MANY)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.closerange(3, max(nothing, log) + 1)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    _show([sys.executable, *argv])
    _arm()


def _show(command: list[str]) -> None:
    """Let the process say of itself what it would if it had been started with that command (on Linux)."""
    if not Path("/proc/self/stat").exists():
        return
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # 48 and 49 of proc(5): arg_start, arg_end
    shown = b"".join(os.fsencode(argument) + b"\0" for argument in command)
    assert len(shown) <= end - begin, "more room is needed"
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)


def _arm() -> None:
    """What importing these modules has done for everybody when the environment was another one."""
    from airflow_logio import crash
    from tests.support import impatient, slow_driver, waiting_driver

    if armed := os.environ.get(crash.VARIABLE):
        crash._armed = crash._Armed(armed)
    slow_driver.install()
    waiting_driver.install()
    impatient.install()


if __name__ == "__main__":
    main()
