"""Waiting for the thing itself, with a deadline; tests never sleep for a time that is hoped to be enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(question: Callable[[], T], *, what: str = "", timeout: float = 90.0, every: float = 0.01) -> T:
    """Ask until the answer is true, and return it; fail after `timeout` seconds, which a machine with other work may need."""
    deadline = time.monotonic() + timeout
    while not (answer := question()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout:g} s: {what or question}; last answer {answer!r}")
        time.sleep(every)
    return answer
