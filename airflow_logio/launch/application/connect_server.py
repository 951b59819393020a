"""Keeps one Spark Connect server running for the drivers of a run on this machine, and ends it when they are gone (ADR-116).

Called as ``connect_server.py FOLDER -- COMMAND...``: COMMAND becomes the server, and FOLDER has the file that each client
has locked. Nothing but the standard library is imported: this process waits for as long as the server lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

CLIENTS = "clients"
"""File that each client holds a shared lock on. The kernel releases it, however the client ends."""
STATE = "server.json"
"""File in which the client that started this process has noted it."""
NOTE_SECONDS = 150.0
"""A server that is not noted by then is unknown to all clients: the one that started it has died."""
IDLE_SECONDS = 20.0
"""A server without clients is kept for so long: one that has died is recovered meanwhile."""
LOOK_SECONDS = 1.0
END_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def main(folder: Path, command: list[str]) -> int:
    """Run the server until it ends, or has no clients; returns its exit code."""
    # This process has no threads, for which that would be unsafe.
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_parent)  # noqa: PLW1509

    def end(_number: int, _frame: FrameType | None) -> None:
        server.kill()

    signal.signal(signal.SIGTERM, end)
    try:
        (folder / f"{os.getpid()}.pid").write_text(str(server.pid))
        _keep(server, folder)
    finally:
        server.kill()
    return server.wait()


def _keep(server: subprocess.Popen[bytes], folder: Path) -> None:
    """Returns when the server has ended."""
    begun = used_at = time.monotonic()
    while server.poll() is None:
        now = time.monotonic()
        if _has_clients(folder / CLIENTS) and (now - begun < NOTE_SECONDS or _is_noted(folder / STATE)):
            used_at = now
        elif now - used_at > IDLE_SECONDS:
            _end(server)
            with contextlib.suppress(OSError):  # a full disk
                sys.stderr.write("no driver needs this server any more\n")
        time.sleep(LOOK_SECONDS)


def _die_with_parent() -> None:
    """On Linux, the kernel ends the server if this process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _is_noted(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text())["keeper"]["pid"] == os.getpid())
    except (OSError, ValueError, KeyError):
        return False


def _has_clients(path: Path) -> bool:
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:  # the folder was removed: no one can find this server any more
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[3:]))
