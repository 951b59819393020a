"""A process that has imported what drivers import, and forks one for every request: a start in milliseconds (ADR-126).

Called as ``fork_server.py DESCRIPTOR``, one end of a socket. It first says that it is ready, or why it cannot be; then each
request is answered when the driver works in its folder. It ends when the other end is closed. What it forks outlives it.

A driver that is forked is a process like any other, with a pid, a session, an environment, a folder and a command line of
its own. Two of them can meet in nothing: this process has no connection, and no file but its socket.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import psutil
import setproctitle

from airflow_logio.launch import processes

MODULES = (
    "airflow_logio.driver.process",
    "airflow_logio.driver.incarnation",
    "airflow_logio.store.sql.store",
    "psycopg2.extras",
    "pyarrow.acero",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "sqlalchemy.dialects.postgresql.psycopg2",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
"""What every driver imports sooner or later. Importing them begins no thread of Python. Those that Arrow's allocator and
NumPy's BLAS begin are prepared for a fork by these libraries."""
_LOCALE = "LC_CTYPE"
"""Python sets it for the processes that it starts, where there is no locale (PEP 538)."""
_BEGUN = "begun"
_LONGEST_ERROR = 4_000


def main(channel: socket.socket) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # how a driver ends is told by no one, and none is left as a zombie
    with channel, channel.makefile("rw") as lines:
        answer: dict[str, Any] = {"error": warm()}
        while True:
            lines.write(f"{json.dumps(answer)}\n")
            lines.flush()
            if not (line := lines.readline()):
                os._exit(0)
            answer = fork(**json.loads(line))


def warm(more: Iterable[str] = ()) -> str | None:
    """Import everything; returns what went wrong."""
    try:
        for module in (*MODULES, *more):
            importlib.import_module(module)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()  # a search for garbage would write to all of it, and no page of it be shared
    return None


def fork(
    argv: list[str], environment: dict[str, str], folder: str, output: str, begun: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Fork the program ``argv[0]``; returns its pid and start time, or the error for which it did not begin.

    `output` is the file to whose end it writes. `begun` is called in the new process before the program.
    """
    server, (heard, told) = os.getpid(), os.pipe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that are the libraries': see MODULES
            pid = os.fork()
        if not pid:
            _run(server, argv, environment, folder, output, told, begun)
        started = processes.start_time_of(pid)
    except (OSError, psutil.Error) as error:
        os.close(heard)
        return {"error": str(error)}
    finally:
        os.close(told)
    with os.fdopen(heard, "rb") as lines:
        said = lines.read().decode(errors="replace")
    return {"pid": pid, "start_time": started, "error": None if said == _BEGUN else said or "it ended at once"}


def _run(
    server: int,
    argv: list[str],
    environment: dict[str, str],
    folder: str,
    output: str,
    told: int,
    begun: Callable[[], None],
) -> NoReturn:
    try:
        try:
            _become(argv, environment, folder, output, keep=told)
            begun()
            if os.getppid() != server:
                raise LookupError("the process that forked it has ended, and its owner looks for what it has left")
            os.write(told, _BEGUN.encode())
        except BaseException as error:
            os.write(told, f"{type(error).__name__}: {error}".encode()[:_LONGEST_ERROR])
            raise
        os.close(told)
        runpy.run_path(argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
    finally:  # a driver ends its process itself
        os._exit(1)


def _become(argv: list[str], environment: dict[str, str], folder: str, output: str, *, keep: int) -> None:
    """What the system and an interpreter do for a program that is started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(folder)
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2 and descriptor != keep:
            _close(descriptor)
    for target, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)):
        opened = os.open(path, flags, 0o666)
        os.dup2(opened, target)
        os.close(opened)
    os.dup2(1, 2)
    _show([sys.executable, *argv])
    of_interpreter = {_LOCALE: os.environ[_LOCALE]} if _LOCALE in os.environ else {}
    os.environ.clear()
    os.environ.update(of_interpreter | environment)
    time.tzset()
    sys.argv = argv
    sys.path[0] = str(Path(argv[0]).parent)
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()  # as Python does for its own: or all drivers would draw the same numbers


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:  # the one that the folder was listed with
        return


def _show(command: list[str]) -> None:
    """Drivers are known by their command line (`driver_folders`). Raises `LookupError` if it could not be set."""
    setproctitle.setproctitle(" ".join(command))
    setproctitle.setthreadtitle(Path(command[0]).name)  # which it has set, too
    if Path(command[1]).name.encode() not in Path("/proc/self/cmdline").read_bytes():
        raise LookupError("its command line cannot be set")


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
