"""Old runs leave the log by themselves, as their pipeline says (`keep_runs="90d"`): carried out by what supervises runs.

What ends a run looks for old ones of its pipeline, and `logio tend` for those of all. A look costs one read. Of all processes
that look, one has the turn for ten minutes (`LogStore.take_turns`). It removes one run after the other, each in small
transactions, and stops after half a minute: what is left is for the next turn. A process that dies leaves a run that is being
removed, which the next turn removes first.

A run is removed as `logio gc` removes one: staging tables, payloads, rows. What stays is one row that says which run it was
(`RemovedRun`). Markers of a warehouse are removed when all runs of the pipeline up to theirs are: then one row stands for
all of them, by which drivers that come back are refused.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from airflow_logio.databases import cause_of, read_url, sqlite_file
from airflow_logio.dataflow.quantities import period_text
from airflow_logio.errors import ConfigurationError, LogioError
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.supervision import tidying
from airflow_logio.supervision.clusters.left_drivers import LeftDrivers
from airflow_logio.supervision.clusters.manager_answers import shared_answers
from airflow_logio.systems.payloads import Payloads
from airflow_logio.systems.warehouse import CONDITIONAL, Warehouse

log = logging.getLogger(__name__)

PAUSE_SECONDS = 600.0
"""How long a process has the turn at a pipeline."""
MOST_SECONDS = 30.0
"""After so long no further run is begun to be removed."""
RUNS_AT_ONCE = 50
MARKERS_AT_ONCE = 500
PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Places:
    """Where runs have left something outside the log, as far as it is known to this process."""

    payloads: str | None
    """Root of the payload store, if there is one."""
    url_of: Callable[[str], str | None]
    """The URL of a connection, by its id; None if it is not known here."""

    def databases(self, run: Run) -> dict[str, str]:
        """The databases among the connections of a run that may have markers: name → URL."""
        found = {}
        for name, conn_id in run.spec.connections.items():
            try:
                url = self.url_of(conn_id)
                if url is not None and _may_have_markers(url):
                    found[name] = url
            except LogioError as error:
                log.debug("connection %r is left out: %s", conn_id, error)
        return found


def remove_old(
    store: LogStore,
    places: Places,
    pipeline: str | None = None,
    *,
    pause_seconds: float = PAUSE_SECONDS,
    most_seconds: float = MOST_SECONDS,
) -> list[str]:
    """Remove what is old enough of a pipeline, or of all; returns a sentence for each of which something was removed.

    Whatever goes wrong is logged: nothing waits for this.
    """
    said, until = list[str](), time.monotonic() + most_seconds
    try:
        turns = store.take_turns(pause_seconds, pipeline=pipeline)
    except LogioError as error:
        log.debug("old runs are not looked for: %s", error)
        return []
    for name, seconds in turns.items():
        try:
            said += _remove_runs(store, places, name, f"by keep_runs={period_text(seconds)!r}", until)
            _remove_markers(store, places, name)
        except Exception as error:  # of a payload store, or of a database that is no longer what it was
            log.warning("old runs of pipeline %s stay for now: %s", name, cause_of(error))
    for sentence in said:
        log.info("%s", sentence)
    return said


def _remove_runs(store: LogStore, places: Places, pipeline: str, reason: str, until: float) -> Iterator[str]:
    removed, rows, staying = list[Run](), 0, set[str]()
    while time.monotonic() < until:
        found = [run for run in store.expired(pipeline, RUNS_AT_ONCE) if run.uid not in staying]
        for run in found:
            if time.monotonic() >= until:
                break
            staying.add(run.uid)  # on SQLite the row of the newest run stays until another one begins
            if (count := remove_run(store, places, run, reason)) is not None:
                removed += [run] if count else []
                rows += count
        if not found:
            break
    if removed:
        names = ", ".join(run.partition or run.spec.key.dag_run_id for run in (removed[0], *removed[1:][-1:]))
        yield (
            f"pipeline {pipeline}: {len(removed)} run(s) removed from the log {reason}, {rows:,} rows "
            f"({names.replace(', ', ' to ')})"
        )


def remove_run(store: LogStore, places: Places, run: Run, reason: str) -> int | None:
    """Remove an ended run, with what it has left elsewhere: how many rows. None if it stays, because of that."""
    urls = {name: url for name, url in places.databases(run).items() if tidying.is_staged_in(url)}
    try:
        tidying.drop_staging_of(urls, run)
        if left := tidying.staging_of(urls, run):
            log.warning("run %s stays in the log until its staging tables are dropped: %s", run.spec.key, left)
            return None
        if LeftDrivers(store, shared_answers().managers, [run.run_id]).look_after():
            log.warning("run %s stays in the log until its drivers have left their cluster", run.spec.key)
            return None
        if places.payloads is None and store.references(run.run_id, ""):
            log.warning("run %s stays in the log: where its payloads are is not known here", run.spec.key)
            return None
        payloads = None if places.payloads is None else Payloads(places.payloads)
        return tidying.remove(
            store,
            run.run_id,
            (lambda _: None) if payloads is None else payloads.remove,
            (lambda: None) if payloads is None else (lambda: payloads.discard(payloads.find(run.uid), run.uid)),
            reason=reason,
            patience=Patience(total_seconds=PATIENCE_SECONDS),
        )
    except LogioError as error:
        log.warning("run %s stays in the log for now: %s", run.spec.key, error)
        return None


def _remove_markers(store: LogStore, places: Places, pipeline: str) -> None:
    """In the databases of the youngest run. Where one cannot be reached, its markers stay, and are removed another time."""
    for run in store.list_runs(pipeline=pipeline, limit=1):
        for name, url in places.databases(run).items():
            warehouse = Warehouse(name, url)
            try:
                if count := _remove_markers_in(store, warehouse, pipeline):
                    log.info("connection %s: %d markers of removed runs are removed", name, count)
            except LogioError as error:
                log.info("markers of removed runs stay in connection %s: %s", name, error)
            finally:
                warehouse.close()


def _remove_markers_in(store: LogStore, warehouse: Warehouse, pipeline: str) -> int:
    log_uid, up_to, count = store.log_uid(), store.removed_up_to(pipeline), 0
    done = warehouse.removed_up_to(log_uid, pipeline)
    while done is not None and done < up_to:
        span = (done + 1, up_to)
        removed = store.removed_runs(pipeline=pipeline, ordinals=span, limit=MARKERS_AT_ONCE, oldest_first=True)
        done = removed[-1].ordinal if len(removed) == MARKERS_AT_ONCE else up_to
        count += warehouse.remove_markers(log_uid, pipeline, done, [one.uid for one in removed])
    return count


def _may_have_markers(url: str) -> bool:
    try:
        backend = read_url(url).get_backend_name()
    except ConfigurationError:
        return False
    file = sqlite_file(url)
    return backend in CONDITIONAL and (file is None or file.is_file())
