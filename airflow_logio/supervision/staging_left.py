"""Staging tables of runs that have ended, or were given up, in a driver's place (ADR-86)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from airflow_logio.databases import read_url
from airflow_logio.errors import ConfigurationError
from airflow_logio.store.records.run_records import Run
from airflow_logio.systems.staging_tables import StagingTables
from airflow_logio.systems.table_names import TableName
from airflow_logio.systems.warehouse import Warehouse


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
