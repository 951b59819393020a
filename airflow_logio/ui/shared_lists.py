"""Lists of runs, kept for a moment: those who may read the same DAGs share one."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from airflow_logio.store.port import LogStore
from airflow_logio.ui.error_texts import HIDDEN
from airflow_logio.ui.run_list import ListedRuns, listed_runs
from airflow_logio.ui.shared_value import SharedValue

FRESH_SECONDS = 2.0
MOST_LISTS = 64
_Key = tuple[frozenset[str] | None, str | None]


class SharedLists:
    """The lists of one log. `log` is its connection id, for commands in sentences. Thread-safe."""

    def __init__(self, store: LogStore, log: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._lists: OrderedDict[_Key, SharedValue[ListedRuns]] = OrderedDict()

    def fresh(self, dag_ids: Collection[str] | None, dag_run_id: str | None) -> ListedRuns | None:
        """A list that still holds; None where the log must be asked."""
        return self._shared(dag_ids, dag_run_id).fresh()

    def of(self, dag_ids: Collection[str] | None, dag_run_id: str | None) -> ListedRuns:
        """As `listed_runs`, at most two seconds old, or more where a list costs much. Raises `LogUnavailable`."""
        return self._shared(dag_ids, dag_run_id).get()

    def _shared(self, dag_ids: Collection[str] | None, dag_run_id: str | None) -> SharedValue[ListedRuns]:
        key = None if dag_ids is None else frozenset(dag_ids), dag_run_id
        with self._lock:
            found = self._lists.pop(key, None)
            if found is None:
                find = partial(listed_runs, self._store, self._log, key[0], dag_run_id=dag_run_id)
                found = SharedValue(find, FRESH_SECONDS, self._clock)
            self._lists[key] = found
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
