"""Processes of Python programs, forked from one that has imported what they need (see `fork_server`)."""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import fork_server
from tests.support.left_behind import shared
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SEEDS = 2
"""So many servers, each with its own order of hashes: a group's next incarnation meets another one, as in production."""


class ForkServer:
    """Lives as long as the tests that use it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "LC_ALL")}
        environment |= {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "MALLOC_ARENA_MAX": "2",
            # Or these libraries start a thread each when they are loaded.
            "OPENBLAS_NUM_THREADS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
        }
        with theirs:
            command = [sys.executable, fork_server.__file__, str(theirs.fileno())]
            started = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self._process = shared(started)
        self._lines = ours.makefile("rw")
        self._socket = ours
        self._one_at_a_time = threading.Lock()
        atexit.register(self.end)

    def ask(self, **request: Any) -> int | None:
        with self._one_at_a_time:
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
            answer = self._lines.readline()
        assert answer, f"the fork server has ended: {self._process.wait()}"
        found: int | None = json.loads(answer)
        return found

    def end(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait(timeout=60)


@functools.cache
def servers() -> list[ForkServer]:
    """All of them, started together when the first process is wanted."""
    return [ForkServer() for _ in range(SEEDS)]


class ForkedProcess:
    """As `subprocess.Popen` has it: dead, it is a zombie until its parent asks."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], output: Path, *, seed: int = 0) -> None:
        """Run the program of that path with its arguments in a session of its own."""
        self._server = servers()[seed % SEEDS]
        self.returncode: int | None = None
        pid = self._server.ask(
            argv=list(argv), environment=dict(environment), folder=os.getcwd(), output=str(output.absolute())
        )
        assert pid is not None
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs, stopped or not."""
        if self.returncode is None:
            self.returncode = self._server.ask(pid=self.pid)
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        eventually(lambda: self.poll() is not None, what=f"process {self.pid} ends", timeout=timeout)
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
