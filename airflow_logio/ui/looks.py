"""Looks at the runs of one log, kept for a moment: many viewers of a run cost the log one look per second."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from airflow_logio.errors import UnknownRun
from airflow_logio.run_report.report import Report, Reporter
from airflow_logio.runtime.figures.authored_figures import AuthoredConnections
from airflow_logio.store.port import LogStore
from airflow_logio.ui.lag_ages import LagAges
from airflow_logio.ui.run_look import MOST_QUARANTINED, look_document

FRESH_SECONDS = 1.0
LOOK_SHARE = 0.1
"""Share of the time that looks at one run may take: a look that costs more holds for longer."""
MOST_RUNS = 64
"""Runs whose looks are kept: each keeps what rates need."""
_UID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class RunLook:
    """One look at one run."""

    def __init__(self, report: Report, document: dict[str, Any]) -> None:
        self.report = report
        self.document = document
        self.encoded = msgspec.json.encode(document)
        """The document as JSON, once for all viewers."""

    @property
    def dag_id(self) -> str:
        return self.report.run.spec.key.dag_id


class Looks:
    """Looks at the runs of a log. `log` is its connection id, for commands in sentences. Thread-safe."""

    def __init__(self, store: LogStore, log: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def at(self, uid: str) -> RunLook:
        """A look at the run of that uid, at most a second old, or a little more if the run is very large.

        Raises `UnknownRun`, `LogUnavailable`. Only a whole uid names a run here: beginnings of others could be tried.
        """
        if _UID.fullmatch(uid) is None or not (self._is_known(uid) or self.store.sight([uid])):
            raise UnknownRun("no such run is in the log")
        return self._watched(uid).look()

    def _is_known(self, uid: str) -> bool:
        with self._lock:
            return uid in self._runs

    def _watched(self, uid: str) -> _Run:
        with self._lock:
            run = self._runs.pop(uid, None)
            if run is None:
                run = _Run(Reporter(self.store, uid, log=self.log, most_quarantined=MOST_QUARANTINED), self._clock)
            self._runs[uid] = run
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
        return run


class _Run:
    """One run that is looked at, by one thread at a time: the others get what that one has seen."""

    def __init__(self, reporter: Reporter, clock: Callable[[], float]) -> None:
        self._reporter = reporter
        self._clock = clock
        self._lock = threading.Lock()
        self._authored: AuthoredConnections | None = None
        self._ages = LagAges()
        self._last: tuple[float, RunLook] | None = None
        """Until when it holds, and the look."""

    def look(self) -> RunLook:
        with self._lock:
            began = self._clock()
            if self._last is None or began >= self._last[0]:
                report = self._reporter.look()
                if not report.snapshot.groups:
                    raise UnknownRun("the run is being removed from the log")
                if self._authored is None:
                    self._authored = AuthoredConnections(report.run)
                look = RunLook(report, look_document(report, self._authored, self._ages))
                ended = self._clock()
                self._last = ended + max(FRESH_SECONDS, (ended - began) / LOOK_SHARE), look
            return self._last[1]
