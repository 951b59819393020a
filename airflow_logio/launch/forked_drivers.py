"""Drivers that are forked from a process which has imported what they need (ADR-126): of Python alone, on Linux.

The start of such a driver is one second of imports otherwise, and two on a busy machine. A server belongs to the process
that launches drivers, and ends with it; what it has forked does not.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_logio.launch import leftovers
from airflow_logio.launch.processes import APPLICATION, boot_id, this_host
from airflow_logio.store.records.driver_records import DriverIdentity

log = logging.getLogger(__name__)

PROGRAM = APPLICATION.with_name("fork_server.py")
WARM_SECONDS = 20.0
"""For its imports. Drivers are started by themselves if it takes longer."""
ANSWER_SECONDS = 20.0


class ForkServer:
    """Starts drivers of one environment. After its first failure it starts none any more: its owner does it in another way.

    For one thread.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Begin; it is ready after a second or two. `environment` is what the variables of all drivers have in common."""
        self._environment = dict(environment)
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(ANSWER_SECONDS)
        self._lines = self._socket.makefile("rw")
        self._until = time.monotonic() + WARM_SECONDS
        self._is_ready = self._has_ended = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=self._environment,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a Ctrl-C in the terminal is not for it
            )

    def is_warming(self) -> bool:
        """Whether it is about to be ready. Returns at once."""
        if self._is_ready or self._has_ended:
            return False
        if select.select([self._socket], [], [], 0)[0]:
            said = self._hear()
            self._is_ready = said is not None
        elif time.monotonic() > self._until:
            self._fail(f"its imports take more than {WARM_SECONDS:g} s")
        return not (self._is_ready or self._has_ended)

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        output: str,
        *,
        own: Sequence[str] = (),
    ) -> DriverIdentity | None:
        """Start a driver that works in `folder`.

        `own` names the variables of `environment` that each driver has for itself. None: it is to be started in another way;
        then no process is left here that works in `folder`. Raises nothing but what interrupts it.
        """
        shared = {name: value for name, value in environment.items() if name not in own}
        if self.is_warming() or self._has_ended or command[0] != sys.executable:
            return None
        if shared != self._environment:
            differ = sorted({name for name, _ in shared.items() ^ self._environment.items()})
            log.info("a driver is not forked, because it has another environment: %s", ", ".join(differ))
            return None
        request = {"argv": list(command[1:]), "environment": dict(environment)}
        try:
            answer = self._ask(request | {"folder": str(folder), "output": str(folder / output)})
        except BaseException:
            self.close()  # an answer that is still to come would be taken for that to the next request
            raise
        if answer is None:
            leftovers.end_under(folder)  # it may have been forked, and the answer not have come
            return None
        return DriverIdentity(this_host(), boot_id(), answer["pid"], answer["start_time"])

    def close(self) -> None:
        """End the server; drivers that it has forked continue."""
        if self._has_ended:
            return
        self._has_ended = True
        for one in (self._lines, self._socket):
            try:
                one.close()
            except OSError:  # what could not be sent
                continue
        self._process.kill()  # it may be stopped, or in the middle of its imports
        self._process.wait()
        self._errors.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            self._lines.write(json.dumps(request) + "\n")
            self._lines.flush()
        except OSError as error:
            self._fail(str(error))
            return None
        return self._hear()

    def _hear(self) -> dict[str, Any] | None:
        """The answer, or None if there is none, or an error: then the server is ended."""
        try:
            answer: dict[str, Any] = json.loads(self._lines.readline() or '{"error": "it has ended"}')
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        if answer["error"] is None:
            return answer
        self._fail(answer["error"])
        return None

    def _fail(self, why: str) -> None:
        self._errors.seek(0)
        said = "".join(self._errors.read().splitlines(keepends=True)[-1:]).strip()
        log.warning(
            "drivers are started one by one from now on, because they cannot be forked: %s", f"{why} {said}".strip()
        )
        self.close()
