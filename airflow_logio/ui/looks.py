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
from airflow_logio.status.authored_figures import AuthoredConnections
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.ui.lag_ages import LagAges
from airflow_logio.ui.run_look import MOST_QUARANTINED, common_parts, has_ids, operators_document, parts_with_errors
from airflow_logio.ui.shared_value import SharedValue

FRESH_SECONDS = 1.0
MOST_RUNS = 64
"""Runs whose looks are kept: each keeps what rates need."""
_UID = re.compile(r"[0-9a-f]{32}", re.ASCII)


class RunLook:
    """One look at one run, encoded once for all viewers: of its thousands of parts, only the bytes stay."""

    def __init__(self, report: Report, common: dict[str, Any]) -> None:
        """`common` as `common_parts` has them."""
        self.report = report
        self.has_ids = has_ids(report)
        """Whether it names Input Sets: else no one needs to be asked who may read their ids."""
        self._common = common
        self._encoded: dict[tuple[bool, bool], bytes] = {}
        self.encoded(errors=True, ids=True)

    def encoded(self, *, errors: bool, ids: bool) -> bytes:
        """For those who may read error texts, and ids of Input Sets, or not."""
        found = self._encoded.get((errors, ids))
        if found is None:
            parts = parts_with_errors(self.report, shown=errors, ids_shown=ids)
            found = self._encoded[errors, ids] = msgspec.json.encode({**self._common, **parts})
        return found

    @property
    def dag_id(self) -> str:
        return self.report.run.spec.key.dag_id


class Looks:
    """Looks at the runs of a log. `log` is its connection id, for commands in sentences. Thread-safe."""

    def __init__(self, store: LogStore, log: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._runs: OrderedDict[str, SharedValue[RunLook]] = OrderedDict()

    def fresh(self, uid: str) -> RunLook | None:
        """A look that still holds; None where the log must be asked."""
        known = self._known(uid)
        return None if known is None else known.fresh()

    def at(self, uid: str) -> RunLook:
        """A look at the run of that uid, at most a second old, or a little more if the run is very large.

        Raises `UnknownRun`, `LogUnavailable`. Only a whole uid names a run here: beginnings of others could be tried.
        """
        known = self._known(uid)
        if known is None:
            seen = self._store.sight([uid]) if _UID.fullmatch(uid) else ()
            if not seen:
                raise UnknownRun("no such run is in the log")
            known = self._watched(seen[0].run)
        return known.get()

    def _known(self, uid: str) -> SharedValue[RunLook] | None:
        with self._lock:
            known = self._runs.get(uid)
            if known is not None:
                self._runs.move_to_end(uid)
        return known

    def _watched(self, run: Run) -> SharedValue[RunLook]:
        with self._lock:
            known = self._runs.get(run.uid)
            if known is None:
                # The run itself, not its name: a DAG run may be named as the uid of another one is.
                watch = _Watch(Reporter(self._store, run, log=self._log, most_quarantined=MOST_QUARANTINED), run)
                known = self._runs[run.uid] = SharedValue(watch.look, FRESH_SECONDS, self._clock)
            while len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)
        return known


class _Watch:
    """One run, and what is kept between looks at it. For one thread at a time."""

    def __init__(self, reporter: Reporter, run: Run) -> None:
        self._reporter = reporter
        self._operators = operators_document(run.spec)
        self._authored = AuthoredConnections(run)
        self._ages = LagAges()

    def look(self) -> RunLook:
        report = self._reporter.look()
        if not report.snapshot.groups:
            raise UnknownRun("the run is being removed from the log")
        return RunLook(report, common_parts(report, self._operators, self._authored, self._ages))
