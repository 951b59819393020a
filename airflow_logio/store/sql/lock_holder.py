"""Which process of this machine holds the write lock of an SQLite file in WAL mode.

SQLite itself only says that a file is locked. Its locks are POSIX record locks, and the kernel knows who holds them. The
question is asked by a process of its own: a process that closes a file gives up all its own locks on it, SQLite's included.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

_ASK_SECONDS = 10
_ASK = """
import fcntl, struct, sys
LOCKS = 120, 3  # in the -shm file: the locks to write, to checkpoint and to recover (sqlite.org/walformat.html)
# struct flock: type, whence, start, length, pid; on macOS start, length, pid, type, whence
LAYOUT, PID, KIND = ("qqihh", 2, 3) if sys.platform == "darwin" else ("hhqqi0q", 4, 0)
# Would a shared lock be refused? Readers hold shared ones, so only a writer stands in its way.
asked = (*LOCKS, 0, fcntl.F_RDLCK, 0) if KIND else (fcntl.F_RDLCK, 0, *LOCKS, 0)
with open(sys.argv[1], "rb") as file:
    answer = struct.unpack(LAYOUT, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(LAYOUT, *asked)))
print(0 if answer[KIND] == fcntl.F_UNLCK else answer[PID])
"""


def lock_holder(database: Path) -> int | None:
    """The pid of the process that writes to `database`, checkpoints or recovers it; None if there is none, or none that this
    machine can name."""
    command = [sys.executable, "-I", "-S", "-c", _ASK, f"{database}-shm"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    pid = int(answer)
    return pid if pid > 0 else None


def described(pid: int) -> str:
    """A process in words: its pid, what it runs, and whether it is stopped."""
    try:
        process = psutil.Process(pid)
        stopped = " (it is stopped)" if process.status() == psutil.STATUS_STOPPED else ""
        return f"process {pid}, {' '.join(process.cmdline())[:120]!r}{stopped}"
    except psutil.Error:
        return f"process {pid}"
