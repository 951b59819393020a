"""Ctrl-C and its relatives while a run is supervised."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HALTING = b"\nThe drivers are asked to halt; Ctrl-C once more kills them.\n"


@contextmanager
def halting(halt: Callable[[], None]) -> Iterator[list[int]]:
    """Each signal calls `halt`, which must be safe in a signal handler. Yields the list of signals that came."""
    came: list[int] = []

    def handle(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        halt()
        if len(came) == 1:
            os.write(2, HALTING)  # not by the console: its lock may be held

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
