"""Python loads this module first, where its folder is on the path: each process then shows its stacks when it is asked.

On signal `SHOW` all threads are written to the file that LOGIO_STACKS names, by C code that works even if the interpreter
hangs. Then, if the main thread still runs Python code, the tasks of its event loop: a coroutine that waits is in no thread.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from typing import Any

SHOW = signal.SIGRTMIN + 3


def _show_tasks(number: int, frame: Any) -> None:
    import asyncio

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    file: Any
    with open(_path or os.devnull, "a", encoding="utf-8") as file:
        for task in asyncio.all_tasks(loop):
            task.print_stack(limit=6, file=file)


if _path := os.environ.get("LOGIO_STACKS"):
    signal.signal(SHOW, _show_tasks)
    faulthandler.register(SHOW, file=open(_path, "a"), all_threads=True, chain=True)  # noqa: SIM115 - for as long as it lives
