"""How the process of a driver ends: at once, after a few short steps.

Threads may still wait for a database or for Spark, or be in an author's code; all they could do is fenced, so the process
does not wait for them. Several threads may find that it has to end: the first one ends it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import NoReturn

log = logging.getLogger(__name__)
STEP_SECONDS = 5.0
"""A step that takes longer is left alone: the process ends without it."""
_steps: list[Callable[[], None]] = []
_ending = threading.Lock()


def before_exit(step: Callable[[], None]) -> None:
    """Have a step taken before the process ends, before those that were given earlier."""
    _steps.append(step)


def exit_process(code: int) -> NoReturn:
    """Take all steps, and end the process."""
    _ending.acquire()
    try:
        for step in (flush_output, *reversed(_steps), flush_output):
            thread = threading.Thread(target=_take, args=(step,), name="logio-last-step", daemon=True)
            thread.start()
            thread.join(STEP_SECONDS)
    finally:  # a process without memory starts no thread
        os._exit(code)


def flush_output() -> None:
    """Let go of what this process has printed and still holds. Never raises: where it goes may be gone."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _take(step: Callable[[], None]) -> None:
    try:
        step()
    except Exception as error:
        log.warning("a last step of the driver failed: %s: %s", type(error).__name__, error)
