"""The thread of a driver that sends what the driver prints to the log, so that it can be read elsewhere (ADR-98)."""

from __future__ import annotations

import logging
import threading
import time

from airflow_logio.errors import LogioError
from airflow_logio.launch.driver_log import OutputParts

log = logging.getLogger(__name__)

SEND_SECONDS = 1.0


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

    def _run(self) -> None:
        while not self._stopping.wait(SEND_SECONDS):
            self._send()
        self._send(all_of_it=True)

    def _send(self, *, all_of_it: bool = False) -> None:
        now = time.monotonic()
        try:
            self._parts.send(now - self._sent_at, all_of_it=all_of_it)
        except (OSError, LogioError) as error:  # another launcher has its own place for it, or the log is unavailable
            log.debug("what the driver prints is not sent: %s", error)
        self._sent_at = now
