"""Whether retention may have removed what Input Sets have made: it goes by port, and their events may be kept for longer."""

from __future__ import annotations

import time

from airflow_logio.protocol.values import Kind, Port
from airflow_logio.store.lineage.captured_ports import CapturedPorts
from airflow_logio.store.port.lineage_port import LARGEST, LineageLog
from airflow_logio.store.records.run_records import Run

MOST_COUNTED = 100
"""Events of a port, the first ones, that are looked for in the log: retention begins with them."""
CLOCK_SECONDS = 60.0
"""This machine's clock and the database's may be so far apart."""


class LostOutputs:
    """It asks for at most `most_rows` events, and says rather that outputs may be lost than that they are not."""

    def __init__(self, log: LineageLog, ports: CapturedPorts, run: Run, most_rows: int) -> None:
        self._log = log
        self._ports = ports
        self._left = most_rows
        self._lossy: dict[str, bool] = {}
        periods = [scope.retention_seconds for scope in run.spec.scopes if scope.retention_seconds is not None]
        self._shortest = min(periods, default=None)

    def first_safe(self, operator: str, sender: Port) -> int:
        """From which event of `sender` on everything is in the log that the operator has made of it."""
        if operator not in self._lossy:
            self._lossy[operator] = self._may_have_lost(operator)
        if not self._lossy[operator]:
            return 0
        if self._shortest is None:
            return LARGEST + 1
        since = time.time() - self._shortest + CLOCK_SECONDS  # an output is no older than what it was made of
        return next(iter(self._log.logged_since(sender, since, 1)), LARGEST + 1)

    def _may_have_lost(self, operator: str) -> bool:
        return any(
            self._misses(port, sent) or (sent > MOST_COUNTED and self._shortest is not None)
            for port, sent in self._log.sent_by(self._ports.recorded_outputs(operator)).items()
        )

    def _misses(self, port: Port, sent: int) -> bool:
        """Whether one of its first events is not in the log."""
        first = range(1, min(sent, MOST_COUNTED) + 1)
        self._left -= len(first)
        if self._left < 0:
            return True
        kinds = [header.kind for _, header in self._log.headers(port.operator, port.name, first)]
        return kinds.count(Kind.DATA) < len(first)
