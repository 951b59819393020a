"""A driver process whose thread waits at a crash point until a test lets it continue; its other threads do not.

A stop stops the whole process, with what it has not committed yet, and how many events one commit takes depends on the
machine. Here all that came before the point is committed, and the driver is alive. `LOGIO_WAIT_AT=<folder>;<n>;<point>`:
the thread that passes that point for the n-th time waits until file `go` is in the folder. File `reached` is there from
then on.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from airflow_logio import crash
from airflow_logio.crash import CrashPoint

VARIABLE = "LOGIO_WAIT_AT"


class Waiting:
    """What a test says to a driver that waits, and hears from it."""

    def __init__(self, folder: Path, point: CrashPoint, count: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._reached, self._go = folder / "reached", folder / "go"
        self.variables = {VARIABLE: f"{folder};{count};{point}"}

    def is_there(self) -> bool:
        """The thread stands at the point, or has stood there."""
        return self._reached.exists()

    def end(self) -> None:
        self._go.touch()


class _Armed(crash._Armed):
    def __init__(self, text: str) -> None:
        folder, count, point = text.split(";", 2)
        super().__init__(f"{point}:{count}")
        self._reached, self._go = Path(folder, "reached"), Path(folder, "go")

    def strike(self) -> None:
        self._reached.touch()
        while not self._go.exists():
            time.sleep(0.05)


def install() -> None:
    """In the driver's process, where the environment says so: instead of what would kill it."""
    if VARIABLE in os.environ:
        crash._armed = _Armed(os.environ[VARIABLE])
