"""Which databases the tables of a pipeline may be in: checked before the log knows of a run."""

from __future__ import annotations

from collections.abc import Callable

from airflow_logio.databases import read_url
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.sources import TableSource
from airflow_logio.dataflow.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError
from airflow_logio.systems.rising_numbers import not_followed
from airflow_logio.systems.table_names import check_schema_of_sqlite
from airflow_logio.systems.warehouse import CONDITIONAL, not_conditional


def check_table_databases(pipeline: Pipeline, url_of: Callable[[str], str]) -> None:
    """Raise `ConfigurationError` if a `TableWriter` names a database in which it cannot write exactly once, or a
    `TableSource` one that it cannot follow.

    `url_of` gives the URL of a connection of the pipeline; it is called for those of its tables only. Asks no database.
    """
    for name, operator in pipeline.operators.items():
        if not isinstance(operator, TableWriter | TableSource):
            continue
        kind = "writer" if isinstance(operator, TableWriter) else "source"
        try:
            backend = read_url(url_of(operator.connection)).get_backend_name()
            if backend == "sqlite":
                check_schema_of_sqlite(operator.table)
        except ConfigurationError as error:
            raise ConfigurationError(f"{kind} {name!r}, connection {operator.connection!r}: {error}") from None
        if backend not in CONDITIONAL:
            refused = not_conditional if isinstance(operator, TableWriter) else not_followed
            raise ConfigurationError(f"{kind} {name!r}: {refused(operator.connection, backend)}")
