"""CPU seconds of a process and of all that it has started, from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil

EVERY_SECONDS = 0.1


def cpu_seconds(root: psutil.Process) -> float:
    """Of the process and its descendants, those included that have ended and were waited for."""
    total = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:  # it has ended meanwhile, and its parent counts it
            continue
    return total


class Meter:
    """The last reading is kept: a process may end before anybody asks."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self.seconds = cpu_seconds(self._root)

    def read(self) -> float:
        with suppress(psutil.NoSuchProcess):
            self.seconds = max(self.seconds, cpu_seconds(self._root))
        return self.seconds


@contextmanager
def metered(pid: int) -> Iterator[Meter]:
    """A meter that is read all the time."""
    meter, ended = Meter(pid), threading.Event()

    def watch() -> None:
        while not ended.wait(EVERY_SECONDS):
            meter.read()

    thread = threading.Thread(target=watch, name="cpu-meter", daemon=True)
    thread.start()
    try:
        yield meter
    finally:
        ended.set()
        thread.join()
