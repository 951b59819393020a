"""Keeps the log of a driver that never ends from filling the disk (ADR-62).

The JVM of spark-submit writes the file, and it cannot be asked for another one: so what is there is copied, and the file is
emptied. It is written at its end (``O_APPEND``), wherever that is.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path

from airflow_logio.runtime.launch.driver_log import older

log = logging.getLogger(__name__)

MOST_BYTES = 32 * 2**20
LOOK_SECONDS = 1.0


class LogRotation:
    """A thread that looks at the size of a log. What is printed between copying and emptying is lost."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._failed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-log-rotation", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def look(self) -> bool:
        """Rotate the log if it is too large; whether it was."""
        try:
            if self._path.stat().st_size <= self._most_bytes:
                return False
        except OSError:  # another launcher, which has its own place for what drivers print
            return False
        try:
            self._rotate()
        except OSError as error:
            if not self._failed:
                log.warning("the driver's log %s cannot be rotated: %s", self._path, error)
            self._failed = True
            return False
        self._failed = False
        return True

    def _rotate(self) -> None:
        copy = self._path.with_name(f"{self._path.name}.copy")
        try:
            shutil.copyfile(self._path, copy)
            copy.replace(older(self._path))
        finally:
            copy.unlink(missing_ok=True)
        os.truncate(self._path, 0)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self.look()
