"""Two or more at once: threads that start together, and what became of each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from airflow_logio.store.sql.engines import LockTimeout

T = TypeVar("T")


def race(*actions: Callable[[], T]) -> Sequence[T | Exception]:
    """Run the actions at the same time; the result of each, or what it raised.

    One that has waited too long for a lock acts again, as callers do: on a busy machine, the others may need seconds.
    """
    barrier = threading.Barrier(len(actions))

    def run(action: Callable[[], T]) -> T | Exception:
        barrier.wait(timeout=90)
        try:
            while True:
                with suppress(LockTimeout):
                    return action()
        except Exception as error:  # the outcome is what the test is about
            return error

    with ThreadPoolExecutor(len(actions)) as pool:
        return list(pool.map(run, actions))
