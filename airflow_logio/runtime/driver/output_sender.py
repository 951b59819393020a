"""The thread of a driver that sends what the driver prints to the log, so that it can be read elsewhere (ADR-98)."""

from __future__ import annotations

import logging
import threading
import time

from airflow_logio.errors import LogioError
from airflow_logio.protocol.liveness import BEAT_SECONDS
from airflow_logio.runtime.launch.output_parts import OutputParts

log = logging.getLogger(__name__)


class OutputSender:
    """Nothing waits for it but the end of the driver, which sends the rest. While the log is unavailable, lines wait."""

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
        while not self._stopping.wait(BEAT_SECONDS):
            self._send()
        self._send(last=True)

    def _send(self, *, last: bool = False) -> None:
        now = time.monotonic()
        try:
            self._parts.send(now - self._sent_at, last=last)
        except (OSError, LogioError) as error:  # another launcher has its own place for it, or the log is unavailable
            log.debug("what the driver prints is not sent: %s", error)
        self._sent_at = now
