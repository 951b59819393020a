"""Which run had left the days of tables that a run is about to read: noted with its description, before there is a run.

Nothing is lost if the run does not begin. If it does, the transaction that creates it puts the note into the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from airflow_logio.databases import with_driver
from airflow_logio.dataflow.operators import SourceOperator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.errors import ConfigurationError, ExternalUnavailable
from airflow_logio.protocol.scope_rules import DayAsRead
from airflow_logio.store.records.run_records import RunSpec
from airflow_logio.systems.days_as_left import days_as_left, days_not_known
from airflow_logio.systems.warehouse import Warehouse

log = logging.getLogger(__name__)


def with_days_read(
    pipeline: Pipeline, spec: RunSpec, url_of: Callable[[str], str], resumes: Callable[[], bool] = lambda: False
) -> RunSpec:
    """The description of a run with the days of tables that its sources read, as their authors say, and which run had left
    each. Ask just before the run begins: the older the answer, the more marks are there that need not be.

    `url_of` gives the URL of a connection of the pipeline; it is called for those that are asked only. A database that does
    not answer fails nothing: its days are of no run that is known, and marked as soon as the log has a run of them. Neither
    does what is wrong there, if the run is in the log already, which `resumes` tells: it has its notes.

    Raises `ConfigurationError` for days that are none.
    """
    found = {name: _days_of(pipeline, name, spec, url_of, resumes) for name in pipeline.days_read}
    return replace(spec, days_read=found) if found else spec


def _days_of(
    pipeline: Pipeline, name: str, spec: RunSpec, url_of: Callable[[str], str], resumes: Callable[[], bool]
) -> tuple[DayAsRead, ...]:
    source = pipeline.operators[name]
    assert isinstance(source, SourceOperator)
    (connection,) = source.sql_connections()
    conn_id, found = spec.connections[connection], list[DayAsRead]()
    for one in pipeline.days_read[name]:
        scopes = one.scopes(spec.params)
        try:
            with closing(Warehouse(connection, with_driver(url_of(connection)))) as warehouse:
                found += days_as_left(warehouse, one.table, scopes, conn_id)
        except (ConfigurationError, ExternalUnavailable) as error:
            if isinstance(error, ConfigurationError) and not resumes():
                raise ConfigurationError(f"source {name!r}: {error}") from error
            log.warning("source %r: which run had left the days of table %r is not known: %s", name, one.table, error)
            found += days_not_known(one.table, scopes, conn_id)
    return tuple(found)
