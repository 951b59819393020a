"""The server that forks drivers of tests: the product's (`launch.application.fork_server`), which also tells exit codes.

It reaps nothing of its own accord, so that a dead driver is a zombie until it is asked about, as with `subprocess`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

import psutil

from airflow_logio.launch.application import fork_server

MODULES = ("tests.support.impatient", "tests.support.slow_driver", "tests.support.waiting_driver")
"""What a driver of tests imports besides."""


def main(channel: socket.socket) -> None:
    error = fork_server.warm(MODULES)
    assert error is None, error
    threads = psutil.Process().num_threads()
    assert threads == 1, f"a process of {threads} threads must not fork"
    with channel, channel.makefile("rw") as lines:
        for line in lines:
            request = json.loads(line)
            answer = _fork(request) if "argv" in request else _ask(request["pid"])
            lines.write(f"{json.dumps(answer)}\n")
            lines.flush()


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
    answer = fork_server.fork(**request, begun=_arm)
    assert answer["error"] is None, answer["error"]
    pid: int = answer["pid"]
    _ended.pop(pid, None)  # of an earlier process with that number
    return pid


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
    main(socket.socket(fileno=int(sys.argv[1])))
