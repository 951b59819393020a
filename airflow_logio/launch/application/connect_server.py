"""Keeps one Spark Connect server running for the drivers of a run on this machine, and ends it when they are gone (ADR-116).

Called as ``connect_server.py FOLDER -- COMMAND...``: COMMAND becomes the server, and FOLDER has the file that each client
has locked. It notes there what it knows: in ``<its pid>.pid`` the pid of the server, and in ``<its pid>.end`` how the server
has ended. Nothing but the standard library is imported: this process waits for as long as the server lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
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
NOT_A_PROGRAM = 126
"""Noted for a command that cannot be executed, as a shell does."""
LASTING = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOEXEC}
    | {errno.ELOOP, errno.ENAMETOOLONG, errno.E2BIG, errno.EINVAL}
)
"""Errors of the system that come again until a person mends something; others say that the machine is short of something."""
_PR_SET_PDEATHSIG = 1


def main(folder: Path, command: list[str]) -> int:
    """Run the server until it ends, or has no clients; returns its exit code, which is negative for a signal.

    It is noted, too. If there is no note, this process was killed, or there was no room for one.
    """
    own = os.getpid()
    note = folder / f"{own}.end"
    try:
        # This process has no threads, for which that would be unsafe.
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=lambda: _die_with(own))  # noqa: PLW1509
    except OSError as error:
        if error.errno not in LASTING:  # no memory for a process, for instance
            raise
        sys.stderr.write(f"Error: {command[0]} cannot be executed: {error}\n")
        note.write_text(str(NOT_A_PROGRAM))
        return NOT_A_PROGRAM

    def end(_number: int, _frame: FrameType | None) -> None:
        server.kill()

    signal.signal(signal.SIGTERM, end)
    try:
        (folder / f"{own}.pid").write_text(str(server.pid))
        _keep(server, folder)
    finally:
        server.kill()
    code = server.wait()
    with contextlib.suppress(OSError):  # the folder was removed, or the disk is full
        note.write_text(str(code))
    return code


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
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(LOOK_SECONDS)


def _die_with(parent: int) -> None:
    """On Linux, the kernel ends the server if this process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before
            os._exit(1)


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
