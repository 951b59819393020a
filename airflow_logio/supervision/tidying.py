"""What is left to collect when groups have ended: rows, payloads, and staging tables in databases (ADR-86)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from airflow_logio.databases import read_url
from airflow_logio.errors import ConfigurationError, LogioError, UnknownRun
from airflow_logio.store.port import LogStore
from airflow_logio.store.records.run_records import Run
from airflow_logio.store.records.upkeep_records import BY_PERSON, Collected
from airflow_logio.store.rules.session_rules import Patience
from airflow_logio.systems.databases.table_names import TableName
from airflow_logio.systems.payloads import Payloads, clear_away
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.warehouse import Warehouse

log = logging.getLogger(__name__)

BATCH_ROWS = 5_000

Progress = Callable[[int], None]
"""Called with the number of rows that each batch has removed."""


def clear_up(root: str | None, store: LogStore, run: Run) -> None:
    """At the end of a run: rows that its groups have left, and payloads that no row names.

    `root` is where the payload store is, if there is one. The run stays finished whatever goes wrong here; errors are
    logged.
    """
    try:
        rows = tidy(store, run.run_id, _discard_at(root))
        log.info("run %s: %d rows collected that its groups have left", run.spec.key, rows)
    except LogioError as error:
        log.warning("run %s is not tidied up (`logio gc` does it): %s", run.spec.key, error)
    clear_away(root, store, run)


def _discard_at(root: str | None) -> Callable[[Sequence[str]], None]:
    return (lambda _: None) if root is None else Payloads(root).remove


def tidy(
    store: LogStore,
    run_id: int,
    discard: Callable[[Sequence[str]], None] = lambda _: None,
    *,
    patience: Patience | None = None,
    progress: Progress = lambda _: None,
) -> int:
    """Collect what the finished groups of a run have left; returns the number of rows. Raises `LogUnavailable`."""
    return _in_batches(partial(store.collect, run_id, BATCH_ROWS), discard, patience, progress)


def remove(
    store: LogStore,
    run_id: int,
    discard: Callable[[Sequence[str]], None] = lambda _: None,
    clear: Callable[[], None] = lambda: None,
    *,
    unfinished: bool = False,
    reason: str = BY_PERSON,
    patience: Patience | None = None,
    progress: Progress = lambda _: None,
) -> int:
    """Remove an ended run with all its rows. Raises `ProtocolViolation` if it has not ended, `LogUnavailable`.

    The log keeps which run it was, and the reason, as half a sentence.
    `clear` removes what the run has outside the log. The run's own row goes after that: an interrupted removal is found by
    it, and made good by the next one.
    """
    batch = partial(store.remove_run, run_id, BATCH_ROWS, unfinished=unfinished, reason=reason)
    rows = _in_batches(partial(batch, keep_row=True), discard, patience, progress)
    clear()
    return rows + _in_batches(batch, discard, patience, progress)


def _in_batches(
    batch: Callable[[], Collected],
    discard: Callable[[Sequence[str]], None],
    patience: Patience | None,
    progress: Progress,
) -> int:
    patience = patience or Patience(total_seconds=60)
    total, more = 0, True
    while more:
        try:
            collected = patience.call("collecting garbage", batch)
        except UnknownRun:  # another one removes old runs as well, and was faster
            break
        if collected.refs:
            discard(collected.refs)
        total += collected.rows
        more = collected.more
        progress(collected.rows)
    return total


def staging_of(urls: Mapping[str, str], run: Run) -> Sequence[str]:
    """The staging tables that a run has left in the databases of its connections, by name. Raises as `drop_staging_of`."""
    found = []
    for name, url in urls.items():
        with _tables(name, url) as tables:
            found += [str(table) for table in tables.of_run(run.uid)]
    return found


def drop_staging_of(urls: Mapping[str, str], run: Run) -> int:
    """Drop them; returns how many are dropped. Raises `ExternalUnavailable`, `ConfigurationError`."""
    dropped = 0
    for name, url in urls.items():
        with _tables(name, url) as tables:
            dropped += drop_left(tables, run)
    return dropped


def drop_left(tables: StagingTables, run: Run) -> int:
    """As `drop_staging_of`, in one database."""
    left: Sequence[TableName] = tables.of_run(run.uid)
    return len(left) - len(tables.drop(left))


def is_staged_in(url: str) -> bool:
    """Whether there may be staging tables where a connection leads to: not to a folder, or another kind of database."""
    try:
        return read_url(url).get_backend_name() == "postgresql"
    except ConfigurationError:
        return False


@contextmanager
def _tables(name: str, url: str) -> Iterator[StagingTables]:
    warehouse = Warehouse(name, url)
    try:
        yield StagingTables(warehouse)
    finally:
        warehouse.close()
