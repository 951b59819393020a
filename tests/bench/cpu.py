"""CPU seconds of a process and of all that it has started, from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
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
    """Of several processes; the last reading of each is kept: it may end before anybody asks."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._seconds = {psutil.Process(pid): 0.0 for pid in pids}

    def read(self) -> float:
        for root, before in self._seconds.items():
            with suppress(psutil.NoSuchProcess):
                self._seconds[root] = max(before, cpu_seconds(root))
        return sum(self._seconds.values())


@contextmanager
def metered(pids: Iterable[int]) -> Iterator[Meter]:
    """A meter that is read all the time."""
    meter, ended = Meter(pids), threading.Event()

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
