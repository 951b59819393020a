"""Lists of runs, kept for a moment: those who may read the same DAGs share one."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from airflow_logio.store.port import LogStore
from airflow_logio.ui.error_texts import HIDDEN
from airflow_logio.ui.run_list import ListedRuns, listed_runs
from airflow_logio.ui.shared_value import SharedValue

FRESH_SECONDS = 2.0
MOST_LISTS = 64


class ListAsked(NamedTuple):
    """Which runs are listed; None for all."""

    dag_ids: frozenset[str] | None
    dag_run_id: str | None = None
    named: str | None = None
    """A part of the name of the pipeline, the DAG or the DAG run."""


class SharedLists:
    """The lists of one log. `log` is its connection id, for commands in sentences. Thread-safe."""

    def __init__(self, store: LogStore, log: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._lists: OrderedDict[ListAsked, SharedValue[ListedRuns]] = OrderedDict()

    def fresh(self, asked: ListAsked) -> ListedRuns | None:
        """A list that still holds; None where the log must be asked."""
        return self._shared(asked).fresh()

    def of(self, asked: ListAsked) -> ListedRuns:
        """As `listed_runs`, at most two seconds old, or more where a list costs much. Raises `LogUnavailable`."""
        return self._shared(asked).get()

    def _shared(self, asked: ListAsked) -> SharedValue[ListedRuns]:
        with self._lock:
            found = self._lists.pop(asked, None)
            if found is None:
                dag_ids, dag_run_id, named = asked
                find = partial(listed_runs, self._store, self._log, dag_ids, dag_run_id=dag_run_id, named=named)
                found = SharedValue(find, FRESH_SECONDS, self._clock)
            self._lists[asked] = found
            while len(self._lists) > MOST_LISTS:
                self._lists.popitem(last=False)
        return found


def list_document(found: ListedRuns, may_read_errors: Callable[[str], bool]) -> dict[str, Any]:
    """The list for one reader; `may_read_errors` says it for a DAG."""
    with_reasons = {one["dag_id"] for one in found.runs if any(group["reason"] for group in one["stopped"])}
    hidden = {dag_id for dag_id in with_reasons if not may_read_errors(dag_id)}
    return {
        "runs": [_without_reasons(one) if one["dag_id"] in hidden else one for one in found.runs],
        "older": found.older,
    }


def _without_reasons(one: dict[str, Any]) -> dict[str, Any]:
    return {**one, "stopped": [{**group, "reason": HIDDEN if group["reason"] else ""} for group in one["stopped"]]}
