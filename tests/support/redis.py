"""A real Redis for one test, at an address of its choice: the one on this machine, or Debian's, unpacked."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.debian import libraries, unpacked
from tests.support.waiting import eventually


@contextmanager
def redis(folder: Path, address: str, port: int) -> Iterator[str]:
    """Yield its URL. What it keeps is in memory, and gone with it."""
    program, environment = _program()
    options = ["--bind", address, "--port", str(port), "--save", "", "--appendonly", "no", "--protected-mode", "no"]
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(
            ["redis-server", *options],
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=environment,
        )
    try:
        eventually(lambda: _answers(address, port), what="Redis answers")
        yield f"redis://{address}:{port}/0"
    finally:
        process.kill()
        process.wait()


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _program() -> tuple[str, dict[str, str]]:
    if installed := shutil.which("redis-server"):
        return installed, {"PATH": os.defpath}
    folder = unpacked("redis-tools", "lib")
    # The server is this program under another name: Debian's package `redis-server` is a link to it.
    return str(folder / "usr" / "bin" / "redis-check-rdb"), {"PATH": os.defpath, "LD_LIBRARY_PATH": libraries(folder)}
