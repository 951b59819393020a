"""Drivers that are forked from a process which has imported what they need (ADR-126): of Python alone, on Linux.

The start of such a driver is one second of imports otherwise, and two on a busy machine. A server belongs to the process
that launches drivers, and ends with it; what it has forked does not.
"""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from airflow_logio.runtime.launch import leftovers
from airflow_logio.runtime.launch.processes import APPLICATION

log = logging.getLogger(__name__)

PROGRAM = APPLICATION.with_name("fork_server.py")
WARM_SECONDS = 30.0
"""For its imports. A driver by itself would need as long."""
ANSWER_SECONDS = 30.0
END_SECONDS = 5.0


class ForkServer:
    """Begins with the first driver that it can start. Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._lines: TextIO | None = None
        self._environment: dict[str, str] = {}
        self._is_of_use = sys.platform == "linux"

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: str,
        *,
        own: Sequence[str] = (),
    ) -> int | None:
        """Start a driver that works in `folder`; returns its pid.

        `own` names the variables of `environment` that each driver has for itself. None: it is to be started in another way,
        for its Python or its environment is another one, or because the server does not work; then no process is left here
        that works in `folder`. Raises OSError, as `subprocess` does.
        """
        shared = {name: value for name, value in environment.items() if name not in own}
        with self._lock:
            if not (self._is_of_use and command[0] == sys.executable and self._begin(shared)):
                return None
            request = {
                "argv": list(command[1:]),
                "environment": dict(environment),
                "folder": str(folder),
                "output": str(folder / output),
            }
            answer = self._ask(request)
            if answer is None:
                leftovers.end_under(folder)  # it may have been forked, and nobody told
                return None
        if answer["error"]:
            raise OSError(answer["error"])
        pid: int = answer["pid"]
        return pid

    def close(self) -> None:
        """End the server; drivers that it has forked continue."""
        with self._lock:
            self._end()

    def _begin(self, environment: dict[str, str]) -> bool:
        """Whether there is a server for drivers with that environment, which is started if there is none at all."""
        if self._process is not None:
            return environment == self._environment
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )
        ours.settimeout(WARM_SECONDS)
        self._channel, self._lines, self._environment = ours, ours.makefile("rw"), environment
        said = self._hear()
        if said is not None and said["error"]:
            self._end()
            self._is_of_use = False
            log.warning("drivers are started one by one, because their imports failed elsewhere: %s", said["error"])
            return False
        if said is not None:
            log.info("drivers are forked from process %d", self._process.pid)
            ours.settimeout(ANSWER_SECONDS)
        return said is not None

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer, or None if the server has ended, or does not answer: then it is ended."""
        assert self._lines is not None
        try:
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
        except OSError as error:
            self._lost(error)
            return None
        return self._hear()

    def _hear(self) -> dict[str, Any] | None:
        assert self._lines is not None
        try:
            line = self._lines.readline()
        except OSError as error:
            self._lost(error)
            return None
        if not line:
            self._lost("it has ended")
            return None
        found: dict[str, Any] = json.loads(line)
        return found

    def _lost(self, why: object) -> None:
        assert self._process is not None
        log.warning("process %d, from which drivers are forked, does not answer: %s", self._process.pid, why)
        self._end()

    def _end(self) -> None:
        if self._process is None or self._channel is None or self._lines is None:
            return
        for one in (self._lines, self._channel):
            try:
                one.close()
            except OSError:  # what could not be sent
                continue
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = self._channel = self._lines = None
