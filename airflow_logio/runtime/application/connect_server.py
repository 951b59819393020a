"""Keeps one Spark Connect server running for the drivers of a run on this machine, and ends it when they are gone (ADR-116).

Called as ``connect_server.py FOLDER -- COMMAND...``: COMMAND becomes the server, and FOLDER has the file that each client
has locked. Nothing but the standard library is imported: this process waits for as long as the server lives.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

CLIENTS = "clients"
"""File that each client holds a shared lock on. The kernel takes it back, however a client ends."""
IDLE_SECONDS = 20.0
"""A server without clients is kept for so long: one that has died is recovered meanwhile."""
LOOK_SECONDS = 1.0
END_SECONDS = 10.0


def main(folder: Path, command: list[str]) -> int:
    """Run the server until it ends, or has no clients; returns its exit code."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    (folder / f"{os.getpid()}.pid").write_text(str(server.pid))

    def end(_number: int, _frame: FrameType | None) -> None:
        server.kill()

    signal.signal(signal.SIGTERM, end)
    used_at = time.monotonic()
    while server.poll() is None:
        if _has_clients(folder / CLIENTS):
            used_at = time.monotonic()
        elif time.monotonic() - used_at > IDLE_SECONDS:
            sys.stderr.write("no driver needs this server any more\n")
            _end(server)
        time.sleep(LOOK_SECONDS)
    return server.returncode


def _has_clients(path: Path) -> bool:
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:  # the folder was removed: nobody can find this server any more
        return False


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[3:]))
