"""What a driver prints: the file is kept from filling the disk (ADR-62), and its lines are sent to the log (ADR-98).

The JVM of spark-submit writes the file, and it cannot be asked for another one: so what is there is copied, and the file is
emptied. It is written at its end (``O_APPEND``), wherever that is. Where there is no room for a copy, maybe because of this
very file, only its end is kept.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

from airflow_logio.errors import LogioError
from airflow_logio.launch.driver_log import OutputParts, older

log = logging.getLogger(__name__)
MOST_BYTES = 32 * 2**20
KEPT_BYTES = 2**20
"""What is kept of a log that cannot be copied."""
LOOK_SECONDS = 1.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SEND_SECONDS = 1.0


class LogRotation:
    """A thread that looks at the size of a log. What is printed between copying and emptying is lost; on a full disk, all but
    the end."""

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
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            copy.unlink(missing_ok=True)
            self._cut(copy, error)
            return
        finally:
            copy.unlink(missing_ok=True)
        os.truncate(self._path, 0)

    def _cut(self, copy: Path, why: OSError) -> None:
        """Empty the log before its end is written elsewhere: that needs the room which the log takes."""
        with self._path.open("rb") as file:
            file.seek(-min(KEPT_BYTES, file.seek(0, os.SEEK_END)), os.SEEK_END)
            end = file.read()
        os.truncate(self._path, 0)
        with suppress(OSError):  # another process has taken the room
            copy.write_bytes(end)
            copy.replace(older(self._path))
        log.warning("the driver's log %s was emptied but for its end: %s", self._path, why)

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            self.look()


class OutputSender:
    """Only the end of the driver waits for it: then it sends all whole lines. While the log is unavailable, lines wait."""

    def __init__(self, parts: OutputParts) -> None:
        self._parts = parts
        self._sent_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="logio-output", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=5)

    def send_last(self) -> None:
        """Send what was printed since it has stopped, and all lines if it has not: for a driver whose file nothing else
        sends when it has ended."""
        self.stop()
        if not self._thread.is_alive():  # else the log is unavailable, and what waits is lost
            self._send(all_of_it=True, is_ended=True)

    def _run(self) -> None:
        while not self._stopping.wait(SEND_SECONDS):
            self._send()
        self._send(all_of_it=True)

    def _send(self, *, all_of_it: bool = False, is_ended: bool = False) -> None:
        now = time.monotonic()
        try:
            self._parts.send(now - self._sent_at, all_of_it=all_of_it, is_ended=is_ended)
        except (OSError, LogioError) as error:  # another launcher has its own place for it, or the log is unavailable
            log.debug("what the driver prints is not sent: %s", error)
        self._sent_at = now
