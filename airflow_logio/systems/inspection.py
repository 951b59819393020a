"""Whether the external systems of a pipeline are as it expects them, asked before it is run: nothing in them is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from airflow_logio.databases import read_url
from airflow_logio.dataflow.operators import Operator
from airflow_logio.dataflow.pipeline import Pipeline
from airflow_logio.dataflow.reads import DeclaredRead, TableRead
from airflow_logio.dataflow.sources.query import QuerySource
from airflow_logio.dataflow.sources.table import TableSource
from airflow_logio.dataflow.writers.action_writers import ClientWriter
from airflow_logio.dataflow.writers.delta_writer import DeltaWriter
from airflow_logio.dataflow.writers.table_writer import TableWriter
from airflow_logio.errors import ConfigurationError, LogioError, authored_frames
from airflow_logio.systems.connections import Connections
from airflow_logio.systems.databases.table_reads import selection
from airflow_logio.systems.rising_columns import rising_column
from airflow_logio.systems.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was looked at."""

    what: str
    problem: str | None = None
    """None: it is as it should be."""
    warning: str | None = None
    """What need not be so, and makes a run slow."""


def check_sql_urls(pipeline: Pipeline, urls: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` if a connection that must be a SQL database has a URL of something else.

    No system is asked.
    """
    for name, operator in pipeline.operators.items():
        for connection in sorted(operator.sql_connections() & urls.keys()):
            try:
                _check_sql_url(urls[connection])
            except ConfigurationError as error:
                raise ConfigurationError(f"connection {connection!r}, of operator {name!r}: {error}") from None


def _check_sql_url(url: str) -> None:
    parsed = read_url(url)
    try:
        parsed.get_dialect().import_dbapi()
    except sa.exc.NoSuchModuleError:
        raise ConfigurationError(
            f"{parsed.drivername!r} is no kind of SQL database; its URL begins with postgresql:// or sqlite:/// (reads: any "
            "that SQLAlchemy knows)"
        ) from None
    except ImportError as error:
        raise ConfigurationError(f"the driver for {parsed.drivername!r} is not installed: {error}") from None


def inspect_systems(pipeline: Pipeline, params: Mapping[str, Any], connections: Connections) -> Iterator[Finding]:
    """What is found of every connection, and of every table and query that an operator names, in this order."""
    unusable: set[str] = set()
    sql = frozenset().union(*(operator.sql_connections() for operator in pipeline.operators.values()))
    for name in sorted(sql):
        found = _found(f"connection {name!r}", lambda name=name: _reach(connections, name))  # type: ignore[misc]
        unusable |= {name} if found.problem else set()
        yield found
    for name, operator in pipeline.operators.items():
        if unusable.isdisjoint(operator.connections()):
            yield from _inspect(name, operator, params, connections)


def _inspect(name: str, operator: Operator, params: Mapping[str, Any], connections: Connections) -> Iterator[Finding]:
    reads: Mapping[str, DeclaredRead] = getattr(operator, "reads", {})
    for read in reads.values():
        if isinstance(read, TableRead):
            yield _found(f"operator {name!r}, {read} of {read.connection!r}", lambda r=read: _read(connections, r))  # type: ignore[misc]
    if isinstance(operator, QuerySource):
        what = f"source {name!r}, query of {operator.connection!r}"
        yield _found(what, lambda: _ask(name, connections, operator, params))
    elif isinstance(operator, TableSource):
        yield _followed(f"source {name!r}, table {operator.table!r} of {operator.connection!r}", operator, connections)
    elif isinstance(operator, TableWriter):
        what = f"writer {name!r}, table {operator.table!r} of {operator.connection!r}"
        yield _written(what, _of_run(operator, params), connections.warehouse(operator.connection))
    elif isinstance(operator, DeltaWriter):
        what = f"writer {name!r}, Delta table {operator.table or '.'!r} of {operator.connection!r}"
        yield _found(what, lambda: _inspect_delta(operator, params, connections))
    elif isinstance(operator, ClientWriter):
        yield _found(f"writer {name!r}, connection {operator.connection!r}", lambda: _connect(connections, operator))


def _of_run(writer: TableWriter, params: Mapping[str, Any]) -> TableWriter:
    """With the day of a run, where one is given."""
    return writer.for_run(params) if not writer.owns or writer.partition in params else writer


def _found(what: str, look: Callable[[], None]) -> Finding:
    try:
        look()
    except LogioError as error:
        return Finding(what, str(error))
    except Exception as error:  # of an author's code, or of a library that it uses
        return Finding(what, f"{type(error).__name__}: {error}{authored_frames(error)}")
    return Finding(what)


def _reach(connections: Connections, name: str) -> None:
    with connections.warehouse(name).snapshot() as connection:
        connection.execute(sa.select(sa.literal(1)))


def _read(connections: Connections, read: TableRead) -> None:
    """The columns, of no row."""
    with connections.warehouse(read.connection).snapshot() as connection:
        chosen = selection(connection, read.connection, read.table, read.columns)
        if read.key is not None and read.key not in chosen.table.columns:
            found = ", ".join(chosen.table.columns.keys())
            raise ConfigurationError(f"it has no column {read.key!r}, by which it is read; it has {found}")
        connection.execute(chosen.statement.where(sa.false())).close()


def _ask(name: str, connections: Connections, source: QuerySource, params: Mapping[str, Any]) -> None:
    """Its statement, for no row."""
    action, asked = source.action(params), connections.source(source.connection, name)
    statement = f"SELECT * FROM ({source.statement_of(asked, action)}) AS checked WHERE 1 = 0"
    for _ in asked.query(statement, source.values_of(action), source.columns, source.table):
        pass


def _followed(what: str, source: TableSource, connections: Connections) -> Finding:
    """Whether its rows can be read in the order of its numbers, and are found by them."""
    warnings: list[str | None] = []

    def look() -> None:
        warehouse = connections.warehouse(source.connection)
        column = rising_column(warehouse, source.table, source.by, append_only=source.append_only)
        warnings.append(column.check())
        with warehouse.snapshot() as connection:
            selection(connection, source.connection, source.table, source.columns)

    found = _found(what, look)
    return replace(found, warning=next(iter(warnings), None))


def _written(what: str, writer: TableWriter, warehouse: Warehouse) -> Finding:
    """Whether its records can be written, and the rows of a day are found in the table."""
    found = _found(what, lambda: warehouse.rehearse(writer))
    if found.problem is not None or not writer.by:
        return found
    warnings: list[str | None] = []
    found = _found(what, lambda: warnings.append(warehouse.missing_index(writer)))
    return replace(found, warning=next(iter(warnings), None))


def _inspect_delta(writer: DeltaWriter, params: Mapping[str, Any], connections: Connections) -> None:
    from airflow_logio.systems.delta.delta_target import delta_target

    known = not writer.owns or writer.partition in params
    mine = writer.for_run(params) if known and writer.placeholders() <= params.keys() else writer
    delta_target(mine, connections).inspect(connections.url(writer.connection))


def _connect(connections: Connections, writer: ClientWriter[Any]) -> None:
    with writer.connect(connections.url(writer.connection)):
        pass
